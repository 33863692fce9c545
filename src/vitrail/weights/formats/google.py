"""google-research/vision_transformer's names: ViT and hybrids; also BiT as big_vision names it.

Both spellings of a block's layers are read; the published one, which every reader knows, is
written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from vitrail.models import BiTSpec, HybridSpec, Spec, ViTSpec
from vitrail.weights.formats.conventions import find_image, require
from vitrail.weights.formats.flax import (
    BIT_ROOT,
    HEAD,
    PLAIN,
    Dialect,
    check_axes,
    conv,
    flax_dense,
    flax_vit_rows,
    infer_vit,
    left_out,
    norm,
    respell,
)
from vitrail.weights.formats.format import FileFacts, Format, Shapes, blocks_of, count_stages
from vitrail.weights.formats.keymap import Row, Shape, Table, Tensors, make_table

_DIALECT = Dialect(
    positions="Transformer/posembed_input/pos_embedding",
    norm="LayerNorm_2",
    mlp="MlpBlock_3",
    attention="MultiHeadDotProductAttention_1",
)


def _normalize(tensors: Mapping[str, Tensor]) -> Tensors:
    """Bring a file's tensors to the table's spelling, bare of a prefix; see `respell`."""
    return respell(tensors, _DIALECT)


def _table(spec: Spec) -> Table:
    if isinstance(spec, BiTSpec):
        return make_table(spec, google_bit_rows(spec), "google")
    require(spec, "google", **PLAIN, position="learned-1d")
    if spec.pool == "token":
        require(spec, "google", class_position=True)
    return make_table(spec, _vit_rows(spec), "google")


def _vit_rows(spec: ViTSpec) -> Iterator[Row]:
    if isinstance(spec, HybridSpec):
        yield from _stem_rows(spec)
    yield from flax_vit_rows(spec, _DIALECT)


def units(stages: tuple[int, ...], width: int) -> Iterator[tuple[int, int, int, list[Shape]]]:
    """Give each ResNet block's number, its stage and unit from 1, and its filters' four shapes.

    The fourth is the shortcut's, which only some blocks have.
    """
    inputs = width
    for number, (stage, unit) in enumerate(blocks_of(stages)):
        middle = width * 2**stage
        outputs = 4 * middle
        inner: list[Shape] = [(1, 1, inputs, middle), (3, 3, middle, middle)]
        outer: list[Shape] = [(1, 1, middle, outputs), (1, 1, inputs, outputs)]
        yield number, stage + 1, unit + 1, [*inner, *outer]
        inputs = outputs


def _stem_rows(spec: HybridSpec) -> Iterator[Row]:
    yield conv("stem.conv", "conv_root", (7, 7, spec.channels, spec.stem_width))
    yield from norm("stem.norm", "gn_root")
    for number, stage, unit, shapes in units(spec.stages, spec.stem_width):
        ours, theirs = f"stem.blocks.{number}", f"block{stage}/unit{unit}"
        for layer, shape in enumerate(shapes[:3], 1):
            yield conv(f"{ours}.conv{layer}", f"{theirs}/conv{layer}", shape)
            yield from norm(f"{ours}.norm{layer}", f"{theirs}/gn{layer}")
        yield conv(f"{ours}.shortcut.0", f"{theirs}/conv_proj", shapes[3])
        yield from norm(f"{ours}.shortcut.1", f"{theirs}/gn_proj")


def google_bit_rows(spec: BiTSpec) -> Iterator[Row]:
    """Give the rows of a BiT as big_vision's bit_paper.py names it; its norms have four axes."""
    yield conv("root", "root_block/conv_root", (7, 7, spec.channels, spec.width))
    for number, stage, unit, shapes in units(spec.stages, spec.width):
        ours, theirs = f"blocks.{number}", f"block{stage}/unit{unit:02}"
        for layer, shape in enumerate(shapes[:3], 1):
            wide = (1, 1, 1, shape[2])  # a norm stands before its convolution
            yield from norm(f"{ours}.norm{layer}", f"{theirs}/gn{layer}", wide)
            yield conv(f"{ours}.conv{layer}", f"{theirs}/conv{layer}", shape)
        yield conv(f"{ours}.shortcut", f"{theirs}/conv_proj", shapes[3])
    yield from norm("norm", "norm-pre-head", (1, 1, 1, spec.pooled))
    yield from flax_dense("head.output", "head", (spec.pooled, spec.classes))


def _recognizes(shapes: Shapes) -> bool:
    return {_DIALECT.positions, "embedding/kernel"} <= shapes.keys() or BIT_ROOT in shapes


def _infer(shapes: Shapes, facts: FileFacts) -> Spec:
    if BIT_ROOT in shapes:
        return _infer_bit(shapes, facts)
    given = infer_vit(shapes, facts, _DIALECT)
    check_axes(shapes, {_DIALECT.positions: 3})
    token = "cls" in shapes
    given["pool"] = "token" if token else "gap"
    patches = shapes[_DIALECT.positions][1] - token
    if "conv_root/kernel" not in shapes:
        image = find_image(facts, given["patch"], patches)
        return ViTSpec(**given, image=image, channels=shapes["embedding/kernel"][2])
    check_axes(shapes, {"conv_root/kernel": 4})
    channels, width = shapes["conv_root/kernel"][2:]
    stages = count_stages(shapes, r"block(\d)/unit(\d{1,3})/conv1/kernel")
    stride = 4 * 2 ** max(len(stages) - 1, 0)
    image = find_image(facts, (stride * given["patch"][0], stride * given["patch"][1]), patches)
    stem: dict[str, Any] = {"stages": stages, "stem_width": width, "channels": channels}
    return HybridSpec(**given, **stem, image=image)


def _infer_bit(shapes: Shapes, facts: FileFacts) -> BiTSpec:
    check_axes(shapes, {BIT_ROOT: 4}, HEAD)
    return BiTSpec(
        stages=count_stages(shapes, r"block(\d)/unit(\d{2,3})/conv1/kernel"),
        width=shapes[BIT_ROOT][3],
        channels=shapes[BIT_ROOT][2],
        classes=shapes.get("head/kernel", (0, 0))[1],
        image=find_image(facts, (1, 1), None),
    )


GOOGLE = Format("google", _recognizes, _infer, _table, left_out, _normalize)
