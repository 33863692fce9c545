"""Kinds of features: which tensor of a model represents an image, and the forward pass to it.

pre-logits               the input of the head's last layer; the paper's representation
class-token              the class token after the last norm
patch-mean               the mean of the patches after the last norm; for a ResNet, of its cells
class-token@6            the same after block 6, before any norm; @0 is the first block's input
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from vitrail.config import InputError, suggest
from vitrail.models import BiT, Model, ViTSpec
from vitrail.models.layers.heads import mean_tokens

NAMES = ("pre-logits", "class-token", "patch-mean")


@dataclass(frozen=True)
class FeatureKind:
    """A kind of features; `str` writes what `parse_feature_kind` reads."""

    name: str = "pre-logits"
    layer: int | None = None
    """After which block; after the last norm if None."""

    def __str__(self) -> str:
        return self.name if self.layer is None else f"{self.name}@{self.layer}"


def parse_feature_kind(text: str) -> FeatureKind:
    """Read a kind of features, for example `pre-logits` or `patch-mean@6`."""
    name, at, layer = text.partition("@")
    if name not in NAMES:
        raise InputError(
            f"unknown features {text!r}: expected {', '.join(NAMES)}, or NAME@LAYER"
            f"{suggest(name, NAMES)}"
        )
    if not at:
        return FeatureKind(name)
    if name == "pre-logits":
        raise InputError(f"{text!r}: pre-logits have no layer; write class-token@{layer or 6}")
    if not re.fullmatch(r"[0-9]{1,4}", layer):
        raise InputError(f"{text!r}: expected the number of a block after @, for example {name}@6")
    return FeatureKind(name, int(layer))


def check_feature_kind(model: Model[Any], kind: FeatureKind) -> None:
    """Refuse a kind of features that a model does not have."""
    spec, blocks = model.spec, _blocks(model)
    if kind.name == "class-token" and not (isinstance(spec, ViTSpec) and spec.class_tokens):
        raise InputError(f"{spec.name} has no class token; use patch-mean or pre-logits")
    if kind.layer is not None and kind.layer > len(blocks):
        raise InputError(
            f"{kind}: {spec.name} has {len(blocks)} blocks, the last is @{len(blocks)}"
        )


def encode(model: Model[Any], images: Tensor, kind: FeatureKind) -> Tensor:
    """Run normalized images through a model up to their features (batch, width)."""
    if kind.name == "pre-logits":
        return model.features(images)
    tokens = _tokens_at(model, images, kind.layer)
    if kind.name == "class-token":
        return tokens[:, 0]
    prefix = model.spec.prefix if isinstance(model.spec, ViTSpec) else 0
    # Of images of different sizes, what pads their patches does not count.
    return mean_tokens(tokens[:, prefix:], images[..., 2] > 0 if images.ndim == 3 else None)


def _tokens_at(model: Model[Any], images: Tensor, layer: int | None) -> Tensor:
    """Give the tokens (batch, tokens, width) after a block, or after the last norm."""
    if layer is None:
        return model.tokens(images)
    try:
        with _stop_at(_blocks(model), layer):
            model.tokens(images)
    except _Reached as reached:
        tokens = reached.tokens
        if tokens.ndim == 3:
            return tokens
        # A ResNet's feature map has its channels second; axial attention's grid has them last.
        return tokens.flatten(2).mT if isinstance(model, BiT) else tokens.flatten(1, 2)
    raise AssertionError("a model runs its blocks")


class _Reached(Exception):
    """The pass has reached the wanted tokens; the rest need not be computed."""

    def __init__(self, tokens: Tensor) -> None:
        super().__init__()
        self.tokens = tokens


@contextmanager
def _stop_at(blocks: nn.ModuleList, layer: int) -> Iterator[None]:
    """End a forward pass after a block, or before the first."""

    def before(block: nn.Module, inputs: tuple[Any, ...]) -> None:
        raise _Reached(inputs[0])

    def after(block: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        raise _Reached(output)

    if layer:
        hook = blocks[layer - 1].register_forward_hook(after)
    else:
        hook = blocks[0].register_forward_pre_hook(before)
    try:
        yield
    finally:
        hook.remove()


def _blocks(model: Model[Any]) -> nn.ModuleList:
    blocks = model.blocks
    assert isinstance(blocks, nn.ModuleList)
    return blocks
