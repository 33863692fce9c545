"""What Google's two Flax projects share: their ViT's names, its shapes, the layout of files.

Flax keeps dense kernels as (inputs, outputs), filters as (height, width, inputs, outputs) and each
head on an axis of its own. Published files count a block's layers through (LayerNorm_2,
MlpBlock_3); today's code counts each kind (LayerNorm_1, MlpBlock_0).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from vitrail.config import InputError
from vitrail.models import HybridSpec, ViTSpec
from vitrail.weights.formats.format import FileFacts, Shapes, count_layers
from vitrail.weights.formats.keymap import Part, Row, Shape, Tensors

ROOTS = ("", "params/", "opt/target/", "params/img/")
"""Where a file may keep its model: bare, a training state's, an older one's, an image tower's."""
BIT_ROOT = "root_block/conv_root/kernel"
"""The tensor that marks a BiT."""
SCANNED = "Transformer/encoderblock/"
"""Where all blocks' tensors are stacked along a first axis."""
_STEM_NORM = re.compile(r"(block\d/unit\d+/)?gn(\d|_root|_proj)/(scale|bias)")
HEAD = {"head/kernel": 2, "pre_logits/kernel": 2}
"""The axes of what a file may also lack."""
PLAIN: dict[str, Any] = {
    "attention": "full",
    "position_at": "input",
    "patch_bias": True,
    "qkv_bias": True,
    "head_bias": True,
}
"""What the projects' ViTs always are, and no parameter of ours without a place would tell."""


@dataclass(frozen=True)
class Dialect:
    """How one of the projects spells a ViT."""

    positions: str
    norm: str
    """A block's second norm; all call the first LayerNorm_0."""
    mlp: str
    attention: str

    def spell(self, key: str) -> str:
        """Bring a block's tensor to this spelling from whichever it has."""
        found = re.fullmatch(r"(Transformer/encoderblock_\d+/)(\w+)(/.+)", key)
        if found is None:
            return key
        kinds = {
            "LayerNorm_[12]": self.norm,
            "MlpBlock_[03]": self.mlp,
            "MultiHeadDotProductAttention_[01]": self.attention,
        }
        layer = next((new for old, new in kinds.items() if re.fullmatch(old, found[2])), found[2])
        return found[1] + layer + found[3]


def respell(tensors: Mapping[str, Tensor], dialect: Dialect) -> Tensors:
    """Name a file's tensors as the dialect does, without copies.

    Its prefix is taken off, blocks that a scan stacked stand apart and the published hybrids' norms
    have one axis. A tensor whose new name is taken keeps its own, to be reported as unknown.
    """
    marks = [(root, root + mark) for root in ROOTS for mark in ("embedding/kernel", BIT_ROOT)]
    root = next((root for root, key in marks if key in tensors), "")
    scale = tensors.get(f"{root}{SCANNED}LayerNorm_0/scale")
    # An empty tensor could promise any number of layers.
    depth = len(scale) if scale is not None and scale.ndim == 2 and scale.numel() else 0
    hybrid = f"{root}conv_root/kernel" in tensors
    spelled: Tensors = {}
    for key, whole in tensors.items():
        if hybrid and _STEM_NORM.fullmatch(key.removeprefix(root)) and whole.ndim == 4:
            whole = whole.squeeze((0, 1, 2))  # so published; Flax has given them one axis since
        for name, tensor in _pieces(key, root, whole, depth):
            new = dialect.spell(name)
            taken = new != key and (new in tensors or new in spelled)
            spelled[key if taken else new] = tensor
    return spelled


def _pieces(key: str, root: str, whole: Tensor, depth: int) -> Iterator[tuple[str, Tensor]]:
    name = key.removeprefix(root)
    if name.startswith(SCANNED) and depth and whole.ndim and len(whole) == depth:
        rest = name.removeprefix(SCANNED)
        for layer, tensor in enumerate(whole.unbind()):
            yield f"Transformer/encoderblock_{layer}/{rest}", tensor
    else:
        yield name, whole


def flax_vit_rows(spec: ViTSpec, dialect: Dialect) -> Iterator[Row]:
    """Give the rows that the projects' ViTs share."""
    if spec.activation == "swiglu":
        raise InputError(f"{spec}: an MLP of Flax's ViTs has no gate; activation=swiglu needs one")
    yield "class_token", "cls"
    positions = spec.positioned + spec.grid[0] * spec.grid[1]
    yield "positions.0.table", Part(dialect.positions, (1, positions, spec.width))
    channels = spec.stem_channels if isinstance(spec, HybridSpec) else spec.channels
    yield conv("embedding", "embedding", (*spec.patch, channels, spec.width))
    yield "embedding.bias", "embedding/bias"
    for i in range(spec.depth):
        ours, theirs = f"blocks.{i}", f"Transformer/encoderblock_{i}"
        attention = f"{theirs}/{dialect.attention}"
        yield from norm(f"{ours}.attention.norm", f"{theirs}/LayerNorm_0")
        yield from split_heads(spec, f"{ours}.attention.qkv", attention, "query", "key", "value")
        yield from join_heads(spec, f"{ours}.attention.output", f"{attention}/out")
        yield from norm(f"{ours}.mlp.norm", f"{theirs}/{dialect.norm}")
        yield from mlp(spec, f"{ours}.mlp", f"{theirs}/{dialect.mlp}")
    yield from norm("norm", "Transformer/encoder_norm")
    yield from flax_dense("head.hidden", "pre_logits", (spec.width, spec.representation))
    yield from flax_dense("head.output", "head", (spec.representation or spec.width, spec.classes))


def conv(ours: str, theirs: str, shape: Shape) -> Row:
    """Give the row of filters (height, width, inputs, outputs)."""
    return f"{ours}.weight", Part(f"{theirs}/kernel", shape, (3, 2, 0, 1))


def norm(ours: str, theirs: str, shape: Shape | None = None) -> Iterator[Row]:
    """Give the rows of a norm, with its shape where it is not ours."""
    for leaf, name in (("weight", f"{theirs}/scale"), ("bias", f"{theirs}/bias")):
        yield f"{ours}.{leaf}", name if shape is None else Part(name, shape)


def flax_dense(ours: str, theirs: str, shape: Shape) -> Iterator[Row]:
    """Give the rows of a dense layer (inputs, outputs)."""
    yield f"{ours}.weight", Part(f"{theirs}/kernel", shape, (1, 0))
    yield f"{ours}.bias", f"{theirs}/bias"


def mlp(spec: ViTSpec, ours: str, theirs: str) -> Iterator[Row]:
    """Give the rows of an MLP's two layers."""
    yield from flax_dense(f"{ours}.hidden", f"{theirs}/Dense_0", (spec.width, spec.mlp))
    yield from flax_dense(f"{ours}.output", f"{theirs}/Dense_1", (spec.mlp, spec.width))


def split_heads(spec: ViTSpec, ours: str, theirs: str, *parts: str) -> Iterator[Row]:
    """Give the rows of projections to heads, which we stack."""
    heads = (spec.heads, spec.width // spec.heads)
    kernels = (Part(f"{theirs}/{part}/kernel", (spec.width, *heads), (1, 2, 0)) for part in parts)
    yield f"{ours}.weight", *kernels
    yield f"{ours}.bias", *(Part(f"{theirs}/{part}/bias", heads) for part in parts)


def join_heads(spec: ViTSpec, ours: str, theirs: str) -> Iterator[Row]:
    """Give the rows of the projection from heads."""
    shape = (spec.heads, spec.width // spec.heads, spec.width)
    yield f"{ours}.weight", Part(f"{theirs}/kernel", shape, (2, 0, 1))
    yield f"{ours}.bias", f"{theirs}/bias"


def infer_vit(shapes: Shapes, facts: FileFacts, dialect: Dialect) -> dict[str, Any]:
    """Read what the projects' ViTs say of themselves alike; the rest are our defaults."""
    block = "Transformer/encoderblock_0"
    query = f"{block}/{dialect.attention}/query/kernel"
    hidden = f"{block}/{dialect.mlp}/Dense_0/kernel"
    check_axes(shapes, {"embedding/kernel": 4, query: 3, hidden: 2}, HEAD)
    return {
        # Three digits at most, so that no name makes a model too large to list.
        "depth": count_layers(shapes, r"Transformer/encoderblock_(\d{1,3})/"),
        "width": shapes["embedding/kernel"][3],
        "heads": shapes[query][1],
        "mlp": shapes[hidden][1],
        "patch": shapes["embedding/kernel"][:2],
        "classes": shapes.get("head/kernel", (0, 0))[1],
        "representation": shapes.get("pre_logits/kernel", (0, 0))[1],
        "activation": facts.told("activation", "gelu-tanh"),  # as Flax's nn.gelu
        "norm_eps": facts.told("norm_eps", 1e-6),
    }


def check_axes(
    shapes: Shapes, needed: Mapping[str, int], optional: Mapping[str, int] | None = None
) -> None:
    """Refuse a file that lacks what its spec is read from, or has it with other axes."""
    problems = [f"missing {key!r}" for key in needed if key not in shapes]
    problems += [
        f"{key!r} has shape {tuple(shapes[key])}, expected {axes} axes"
        for key, axes in {**needed, **(optional or {})}.items()
        if key in shapes and len(shapes[key]) != axes
    ]
    if problems:
        raise InputError(*problems)


def left_out(key: str) -> str | None:
    """Say why a tensor is not part of the model, or give None."""
    if key.startswith(("opt/", "extra/", "chrono/")) and not key.startswith("opt/target/"):
        return "training state, not part of the model"
    return None
