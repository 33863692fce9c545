"""timm's ResNetV2: BiT, and the stem of its hybrids."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from vitrail.config import InputError
from vitrail.models import BiTSpec, HybridSpec
from vitrail.models.spec import Size
from vitrail.weights.formats.format import Shapes, blocks_of, count_stages
from vitrail.weights.formats.keymap import Part, Row, linear_rows

_STEM = "patch_embed.backbone"


def timm_stem_rows(spec: HybridSpec) -> Iterator[Row]:
    """Give the rows of a hybrid's ResNet."""
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
    """Say whether tensors are a ResNetV2's, whatever its norms."""
    return {"stem.conv.weight", "stages.0.blocks.0.conv1.weight"} <= shapes.keys()


def infer_bit(shapes: Shapes, image: Size | None) -> BiTSpec:
    """Read a BiT's spec; at which resolution it was trained only the config can say."""
    if any(key.endswith("running_mean") for key in shapes):
        raise InputError("timm's ResNetV2 with BatchNorm is not a BiT, whose norms are GroupNorms")
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
    pattern = r"patch_embed\.backbone\.stages\.(\d+)\.blocks\.(\d+)\.conv1\.weight"
    stages = count_stages(shapes, pattern)
    root = shapes.get(f"{_STEM}.stem.conv.weight" if stages else f"{_STEM}.conv.weight")
    if root is None or len(root) != 4:
        raise InputError(f"{_STEM} is not the ResNetV2 that the paper's hybrids stand on")
    stem = {"stages": stages, "stem_width": root[0], "channels": root[1]}
    return {**stem, "stem_norm_eps": 1e-5, "standardize": "timm"}
