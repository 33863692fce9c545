"""timm's ResNetV2: BiT, and the stem of its hybrids; MobileCLIP's stem."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from vitrail.config import InputError
from vitrail.models import BiTSpec, HybridSpec
from vitrail.models.spec import Size
from vitrail.weights.formats.format import Shapes, blocks_of, count_stages
from vitrail.weights.formats.keymap import Part, Row, linear_rows

_STEM = "patch_embed.backbone"
_BATCH_NORM = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
_EPS = 1e-5


def timm_stem_rows(spec: HybridSpec) -> Iterator[Row]:
    """Give the rows of a hybrid's stem, but for the last of MobileCLIP's convolutions."""
    if spec.stem == "mobileclip":
        yield from linear_rows("stem.conv", f"{_STEM}.0.conv")
        yield from linear_rows("stem.conv2", f"{_STEM}.1.conv")
        return
    root = f"{_STEM}.stem" if spec.stages else _STEM  # timm wraps a root alone less deeply
    yield "stem.conv.weight", f"{root}.conv.weight"
    yield from linear_rows("stem.norm", f"{root}.norm")
    for number, (stage, unit) in enumerate(blocks_of(spec.stages)):
        ours, theirs = f"stem.blocks.{number}", f"{_STEM}.stages.{stage}.blocks.{unit}"
        for layer in (1, 2, 3):
            yield f"{ours}.conv{layer}.weight", f"{theirs}.conv{layer}.weight"
            yield from linear_rows(f"{ours}.norm{layer}", f"{theirs}.norm{layer}")
        yield f"{ours}.shortcut.0.weight", f"{theirs}.downsample.conv.weight"
        yield from linear_rows(f"{ours}.shortcut.1", f"{theirs}.downsample.norm")


def timm_bit_rows(spec: BiTSpec) -> Iterator[Row]:
    """Give the rows of a BiT."""
    yield "root.weight", "stem.conv.weight"
    for number, (stage, unit) in enumerate(blocks_of(spec.stages)):
        ours, theirs = f"blocks.{number}", f"stages.{stage}.blocks.{unit}"
        for layer in (1, 2, 3):
            yield from linear_rows(f"{ours}.norm{layer}", f"{theirs}.norm{layer}")
            yield f"{ours}.conv{layer}.weight", f"{theirs}.conv{layer}.weight"
        yield f"{ours}.shortcut.weight", f"{theirs}.downsample.conv.weight"
    yield from linear_rows("norm", "norm")
    yield "head.output.weight", Part("head.fc.weight", (spec.classes, spec.pooled, 1, 1))
    yield "head.output.bias", "head.fc.bias"


def is_bit(shapes: Shapes) -> bool:
    """Say whether tensors are a ResNetV2's, whatever its stem and norms."""
    stems = {"stem.conv.weight", "stem.conv1.weight"}
    return "stages.0.blocks.0.conv1.weight" in shapes and not stems.isdisjoint(shapes)


def infer_bit(shapes: Shapes, image: Size | None) -> BiTSpec:
    """Read a BiT's spec; at which resolution it was trained only the config can say."""
    if any(key.endswith("running_mean") for key in shapes):
        raise InputError("timm's ResNetV2 with BatchNorm is not a BiT, whose norms are GroupNorms")
    if "stem.conv.weight" not in shapes:
        raise InputError("timm's ResNetV2-D, of three convolutions before its stages, is not a BiT")
    if len(shapes["stem.conv.weight"]) != 4:
        raise InputError(f"'stem.conv.weight' has shape {shapes['stem.conv.weight']}, not 4 axes")
    width, channels = shapes["stem.conv.weight"][:2]
    return BiTSpec(
        stages=count_stages(shapes, r"stages\.(\d+)\.blocks\.(\d+)\.conv1\.weight"),
        width=width,
        channels=channels,
        classes=(shapes.get("head.fc.weight") or (0,))[0],
        image=image or BiTSpec.image,
        standardize="timm",
        pool_padding="zeros",
    )


def infer_stem(shapes: Shapes) -> dict[str, Any] | None:
    """Read what a HybridSpec says of its stem; None where patches are cut from the image."""
    if not any(key.startswith(f"{_STEM}.") for key in shapes):
        return None
    if len(first := shapes.get(f"{_STEM}.0.conv.weight", ())) == 4:
        return {"stem": "mobileclip", "stem_width": first[0], "channels": first[1]}
    pattern = r"patch_embed\.backbone\.stages\.(\d+)\.blocks\.(\d+)\.conv1\.weight"
    stages = count_stages(shapes, pattern)
    root = shapes.get(f"{_STEM}.stem.conv.weight" if stages else f"{_STEM}.conv.weight")
    if root is None or len(root) != 4:
        raise InputError(
            f"{_STEM} is neither the ResNetV2 that the paper's hybrids stand on, nor MobileCLIP's "
            "stem; timm's hybrids on a ResNet-D with BatchNorm have no published weights"
        )
    stem = {"stages": stages, "stem_width": root[0], "channels": root[1]}
    return {**stem, "stem_norm_eps": 1e-5, "standardize": "timm"}


def read_patch_stem(theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Fold MobileCLIP's BatchNorms into the convolutions before them; the last has none."""
    tensors = dict(theirs)
    for room in (f"{_STEM}.0", f"{_STEM}.1"):
        weight, norm = f"{room}.conv.weight", [f"{room}.bn.{leaf}" for leaf in _BATCH_NORM]
        if {weight, *norm} <= tensors.keys():
            scale, bias, mean, variance, _ = (tensors.pop(key) for key in norm)
            factor = scale * (variance + _EPS).rsqrt()
            tensors[f"{room}.conv.bias"] = bias - mean * factor
            tensors[weight] = tensors[weight] * factor[:, None, None, None]
    for leaf in ("weight", "bias"):
        if (last := f"{_STEM}.2.conv.{leaf}") in tensors:
            tensors[f"patch_embed.proj.{leaf}"] = tensors.pop(last)
    return tensors


def write_patch_stem(ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Put BatchNorms that only add the bias after MobileCLIP's convolutions."""
    tensors = {key.replace("patch_embed.proj.", f"{_STEM}.2.conv."): ours[key] for key in ours}
    for room in (f"{_STEM}.0", f"{_STEM}.1"):
        bias = tensors.pop(f"{room}.conv.bias")
        one = torch.ones_like(bias)
        count = torch.zeros((), dtype=torch.long)
        norm = ((1 + _EPS) ** 0.5 * one, bias, torch.zeros_like(bias), one, count)
        tensors |= {f"{room}.bn.{leaf}": x for leaf, x in zip(_BATCH_NORM, norm, strict=True)}
    return tensors
