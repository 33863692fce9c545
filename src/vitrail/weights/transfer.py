"""From pre-trained weights to a new task: another head, resolution, channel count or patch size.

Section 3.2 of the paper: "we remove the whole pre-trained prediction head and attach a
zero-initialized feedforward layer", and position embeddings are resized to the new grid. What was
done to each parameter is reported.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from vitrail.config import InputError
from vitrail.models.positions.grid_resizing import (
    resize_grid,
    resize_lines,
    resize_offsets,
    resize_patches,
    resize_positions,
)
from vitrail.models.spec import BiTSpec, HybridSpec, ResizeRule, Size, Spec, ViTSpec
from vitrail.models.vit_spec import PLAIN_HEAD
from vitrail.weights.formats.keymap import Tensors

HeadMode = Literal["replace", "keep", "keep-hidden"]
"""Put a zero linear layer in the whole head's place, keep the head, or replace its last layer."""

Action = Literal["resized", "replaced", "dropped", "adapted"]


@dataclass(frozen=True)
class Change:
    """What was done to one parameter; those not named were kept as they are."""

    parameter: str
    action: Action
    detail: str

    def __str__(self) -> str:
        return f"{self.action} {self.parameter}: {self.detail}"


@dataclass(frozen=True)
class Transfer:
    """Weights that are ready for the new task."""

    spec: Spec
    tensors: Tensors
    changes: tuple[Change, ...]


def transfer(
    spec: Spec,
    tensors: Mapping[str, Tensor],
    *,
    classes: int | None = None,
    image: Size | None = None,
    channels: int | None = None,
    patch: Size | None = None,
    head: HeadMode = "replace",
    kept: Sequence[int | None] = (),
) -> Transfer:
    """Fit weights to a new task; what is not named stays as it was.

    Giving `classes` replaces the head as `head` says; without it the head is kept. `kept` gives for
    each new class the old one whose row it takes over, or None for a row of zeros. Rows of a
    zero-shot head compare with projected features of length 1, so these stay with the rows.
    """
    zero_shot = isinstance(spec, ViTSpec) and spec.unit_features
    if head == "replace" and zero_shot and any(row is not None for row in kept):
        head = "keep-hidden"
    new = _new_spec(spec, classes, image, channels, patch, head)
    made: Tensors = dict(tensors)
    changes = [*_fit_head(spec, new, made, classes, head, kept), *_fit_patches(spec, new, made)]
    if isinstance(spec, ViTSpec) and isinstance(new, ViTSpec):
        changes += _fit_positions(spec, new, made)
    return Transfer(new, made, tuple(changes))


def _new_spec(
    spec: Spec,
    classes: int | None,
    image: Size | None,
    channels: int | None,
    patch: Size | None,
    head: HeadMode,
) -> Spec:
    if patch is not None and not (isinstance(spec, ViTSpec) and not isinstance(spec, HybridSpec)):
        raise InputError(f"{spec.name} has no patches of pixels to resize")
    if image not in (None, spec.image) and isinstance(spec, BiTSpec) and spec.heads:
        raise InputError(f"{spec.name} takes images of any size as it is; leave image out")
    given: dict[str, Any] = {"image": image, "channels": channels, "patch": patch}
    changes = {name: value for name, value in given.items() if value is not None}
    if classes is not None:
        if head == "keep" and classes != spec.classes:
            raise InputError(f"the head has {spec.classes} classes and can't be kept for {classes}")
        changes["classes"] = classes
        if isinstance(spec, ViTSpec) and head == "replace":
            changes |= {**PLAIN_HEAD, "head_bias": True}
    return replace(spec, **changes)


def _fit_head(
    spec: Spec,
    new: Spec,
    made: Tensors,
    classes: int | None,
    head: HeadMode,
    kept: Sequence[int | None],
) -> list[Change]:
    """Replace the head (and a distillation head) in place; say so also of a head of zeros."""
    weight = made.get("head.output.weight")
    if classes is None or head == "keep":
        zero = weight is not None and not weight.any()
        detail = "all zeros, as published: the file holds no classifier, only features"
        return [Change("head.output.weight", "adapted", detail)] if zero else []
    changes = []
    for room in ("head", "distillation_head")[: 1 + getattr(spec, "distilled", False)]:
        hidden = made.get(f"{room}.hidden.weight")
        if head == "replace" and hidden is not None:
            for leaf in ("weight", "bias"):
                made.pop(f"{room}.hidden.{leaf}", None)
            kind = "tanh layer" if getattr(spec, "representation_tanh", True) else "projection"
            changes.append(Change(f"{room}.hidden", "dropped", f"the pre-training head's {kind}"))
            kept = ()  # the rows read what that layer gave
        inputs = new.pooled if head == "replace" or hidden is None else len(hidden)
        changes.append(_fit_output(made, f"{room}.output", new, inputs, kept))
    return changes


def _fit_output(
    made: Tensors, name: str, new: Spec, inputs: int, kept: Sequence[int | None]
) -> Change:
    """Give a head's last layer a row per new class: the old one that is kept, or zeros."""
    old, bias = made.pop(f"{name}.weight", None), made.pop(f"{name}.bias", None)
    like = next(iter(made.values()))
    rows = {place: row for place, row in enumerate(kept) if row is not None}
    if old is None or not old.any():
        rows = {}
    if new.classes:
        made[f"{name}.weight"] = _pick_rows(old, rows, like.new_zeros(new.classes, inputs))
        if getattr(new, "head_bias", True):
            made[f"{name}.bias"] = _pick_rows(bias, rows, like.new_zeros(new.classes))
    if old is not None and rows:
        counts = f"{len(rows)} of {new.classes} classes kept by name"
        counts += f", {new.classes - len(rows)} start at zero" if len(rows) < new.classes else ""
        gone = len(old) - len(rows)
        return Change(name, "adapted", counts + (f", {gone} dropped" if gone else ""))
    was = "none" if old is None else f"{len(old)} classes"
    if old is not None and not old.any():
        was += " (all zeros, as published)"
    return Change(name, "replaced", f"{was} -> {new.classes} classes, zeros")


def _pick_rows(old: Tensor | None, rows: Mapping[int, int], made: Tensor) -> Tensor:
    if old is not None and rows:
        made[list(rows)] = old[list(rows.values())]
    return made


def _fit_patches(spec: Spec, new: Spec, made: Tensors) -> list[Change]:
    """Resize the first layer's filters and bring them to another channel count, in place."""
    name = {"vit": "embedding.weight", "hybrid": "stem.conv.weight", "bit": "root.weight"}[
        spec.family
    ]
    changes = []
    if isinstance(new, ViTSpec) and isinstance(spec, ViTSpec) and new.patch != spec.patch:
        made[name] = resize_patches(made[name], new.patch)
        detail = f"{_size(spec.patch)} -> {_size(new.patch)} pixels, by the pseudo-inverse"
        changes.append(Change(name, "resized", detail))
    if new.channels != spec.channels:
        made[name] = adapt_channels(made[name], new.channels)
        how = "summed up" if new.channels < spec.channels else "taken in turn"
        detail = f"{spec.channels} -> {new.channels} channels, {how}"
        changes.append(Change(name, "adapted", detail))
    return changes


def adapt_channels(weight: Tensor, channels: int) -> Tensor:
    """Bring filters (outputs, channels, height, width) to another channel count.

    An image whose channels are all equal gives the same as before: fewer channels share what the
    others had (one, a gray image's, takes the sum), more take the old ones in turn, in shares.
    """
    old = weight.shape[1]
    if channels <= old:
        return weight[:, :channels] + weight[:, channels:].sum(1, keepdim=True) / channels
    turns = torch.arange(channels, device=weight.device) % old
    counts = torch.bincount(turns, minlength=old).to(weight.dtype)
    return weight[:, turns] / counts[turns][None, :, None, None]


def _fit_positions(spec: ViTSpec, new: ViTSpec, made: Tensors) -> list[Change]:
    """Resize every table of positions to the new grid, in place."""
    old_grid, grid = spec.grid, new.grid
    rule = "google" if spec.position == "relative" else spec.position_resize
    if old_grid == grid or spec.position == "relative-mlp":  # which fits any grid
        return []
    changes = []
    if spec.position == "factorized":
        return _fit_lines(old_grid, grid, rule, made)
    for name in [name for name in made if name.startswith("positions.")]:
        leaf = name.rpartition(".")[2]
        table = made[name]
        if leaf == "class_token":
            continue
        if spec.position == "relative":
            made[name] = resize_grid(table, (len(table), 1), (2 * new.tokens - 1, 1))
        elif spec.position == "relative-2d":
            made[name] = resize_offsets(table, old_grid, grid, rule)
        elif leaf == "table":
            made[name] = resize_positions(table, old_grid, grid, rule, spec.positioned)
        elif leaf == "x":
            made[name] = resize_grid(table, (1, old_grid[1]), (1, grid[1]), rule)
        else:
            made[name] = resize_grid(table, (old_grid[0], 1), (grid[0], 1), rule)
        detail = f"grid {_size(old_grid)} -> {_size(grid)}, {rule}'s rule"
        changes.append(Change(name, "resized", detail))
    return changes


def _fit_lines(old: Size, new: Size, rule: ResizeRule, made: Tensors) -> list[Change]:
    """Resize factorized positions, whose two tables depend on both sides of the grid."""
    changes = []
    for x in [name for name in made if re.fullmatch(r"positions\.\d+\.x", name)]:
        y = f"{x.removesuffix('x')}y"
        made[y], made[x] = resize_lines(made[y], made[x], new, rule)
        detail = f"grid {_size(old)} -> {_size(new)}, {rule}'s rule"
        changes += [Change(name, "resized", detail) for name in (x, y)]
    return changes


def _size(size: Size) -> str:
    return f"{size[0]}x{size[1]}"
