"""big_vision's names for ViTs with a class token, GAP or MAP head; its BiT is in google.py.

The class token has no position since 2022, and sin-cos positions are not in the file. Any prefix,
blocks stacked by scan and older spellings are read; what is written has each block apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor

from vitrail.models import BiTSpec, Spec, ViTSpec
from vitrail.weights.formats.conventions import find_image, require
from vitrail.weights.formats.flax import (
    PLAIN,
    Dialect,
    check_axes,
    flax_vit_rows,
    infer_vit,
    join_heads,
    mlp,
    norm,
    respell,
    split_heads,
)
from vitrail.weights.formats.flax import left_out as left_out_by_both
from vitrail.weights.formats.format import FileFacts, Format, Shapes, is_square
from vitrail.weights.formats.google import GOOGLE, google_bit_rows
from vitrail.weights.formats.keymap import Row, Table, Tensors, make_table

_DIALECT = Dialect(
    positions="pos_embedding",
    norm="LayerNorm_1",
    mlp="MlpBlock_0",
    attention="MultiHeadDotProductAttention_0",
)


def _normalize(tensors: Mapping[str, Tensor]) -> Tensors:
    """Bring a file's tensors to the table's spelling, bare of a prefix; see `respell`.

    Before 2022 the positions stood in the encoder and the MAP head at the top.
    """
    spelled = respell(tensors, _DIALECT)
    older = {key: _modernise(key) for key in spelled if _modernise(key) not in spelled}
    return {older.get(key, key): tensor for key, tensor in spelled.items()}


def _modernise(key: str) -> str:
    if key == "Transformer/pos_embedding":
        return _DIALECT.positions
    parts = ("LayerNorm_0", "MlpBlock_0", "MultiHeadDotProductAttention_0", "probe")
    return f"MAPHead_0/{key}" if key.partition("/")[0] in parts else key


def _table(spec: Spec) -> Table:
    if isinstance(spec, BiTSpec):
        return make_table(spec, google_bit_rows(spec), "big_vision")
    learned = spec.position == "learned-1d"
    require(spec, "big_vision", **PLAIN, position="learned-1d" if learned else "sincos-2d")
    return make_table(spec, _rows(spec), "big_vision")


def _rows(spec: ViTSpec) -> Iterator[Row]:
    yield from flax_vit_rows(spec, _DIALECT)
    attention = "MAPHead_0/MultiHeadDotProductAttention_0"
    yield "pooling.probe", "MAPHead_0/probe"
    yield from split_heads(spec, "pooling.query", attention, "query")
    yield from split_heads(spec, "pooling.key_value", attention, "key", "value")
    yield from join_heads(spec, "pooling.output", f"{attention}/out")
    yield from norm("pooling.mlp.norm", "MAPHead_0/LayerNorm_0")
    yield from mlp(spec, "pooling.mlp", "MAPHead_0/MlpBlock_0")


def _recognizes(shapes: Shapes) -> bool:
    encoder = {"embedding/kernel", "Transformer/encoder_norm/scale"} <= shapes.keys()
    return encoder and not GOOGLE.recognizes(shapes)


def _infer(shapes: Shapes, facts: FileFacts) -> Spec:
    given = infer_vit(shapes, facts, _DIALECT)
    learned = _DIALECT.positions in shapes
    check_axes(shapes, {}, {_DIALECT.positions: 3})
    rows = shapes[_DIALECT.positions][1] if learned else None
    # Before 2022 the class token had a position too.
    covered = rows is not None and "cls" in shapes and is_square(rows - 1) and not is_square(rows)
    patches = None if rows is None else rows - covered
    return ViTSpec(
        **given,
        image=find_image(facts, given["patch"], patches),
        channels=shapes["embedding/kernel"][2],
        pool="token" if "cls" in shapes else "map" if "MAPHead_0/probe" in shapes else "gap",
        position="learned-1d" if learned else "sincos-2d",
        class_position=covered,
    )


def _left_out(key: str) -> str | None:
    if key.startswith("params/txt/"):
        return "the text tower, not part of an image model"
    if key in ("params/t", "params/b"):
        return "what compares images with texts, not part of an image model"
    return left_out_by_both(key)


BIGVISION = Format("bigvision", _recognizes, _infer, _table, _left_out, _normalize)
