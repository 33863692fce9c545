"""Another project's weights as a table that is read in both directions.

An entry says which of the project's tensors make up one of our parameters. Projects differ in
three ways: names, shapes or order of axes, and several tensors stacked into one. Each is exactly
reversible, so writing is reading backwards and loses no bit.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vitrail.config import InputError
from vitrail.models import Spec, ViTSpec, build

Shape = tuple[int, ...]
Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Part:
    """One of the other project's tensors, and how its axes become ours."""

    key: str
    shape: Shape
    """Its shape there."""
    axes: tuple[int, ...] | None = None
    """Order of its axes before it is reshaped to ours; None keeps them."""

    def turn(self, theirs: Tensor) -> Tensor:
        """Permute the other project's tensor to our order of axes."""
        return theirs if self.axes is None else theirs.permute(self.axes)

    def turn_back(self, ours: Tensor) -> Tensor:
        """Bring a slice of our parameter to the other project's shape."""
        if self.axes is None:
            return ours.reshape(self.shape)
        back = sorted(range(len(self.axes)), key=self.axes.__getitem__)
        return ours.reshape([self.shape[axis] for axis in self.axes]).permute(back)


@dataclass(frozen=True)
class Entry:
    """One of our parameters, made of tensors stacked along its first axis."""

    ours: str
    shape: Shape
    parts: tuple[Part, ...]


Table = tuple[Entry, ...]
"""Every parameter of a model, once."""

TensorSource = str | Part
"""One of the other project's tensors; a bare name has our shape, or an equal share of it."""

Row = tuple[str, *tuple[TensorSource, ...]]
"""One of our parameters, then what it is stacked of."""


def cut_name(key: str) -> str:
    """Write a tensor's name from a file into a message: quoted, escaped, at most 80 characters."""
    return repr(key if len(key) <= 80 else f"{key[:80]}…")


_TIMM_ONLY = (
    *("unpooled_class_token", "pool_prefix", "pool_heads", "pool_mlp", "register_position"),
    *("rotary", "key_bias", "dense_bias", "patch_norm", "norm", "norm_place", "sub_norm"),
    "last_norm",
)
"""Options that only timm's format knows, and families of transformers that name them."""


_RARE = {"pool": ("probe", "token-gap"), "activation": ("geglu",), "position": ("sincos-2d-mae",)}
"""Values that only those formats have which name the option."""


_ZERO_SHOT = ("representation_tanh", "representation_bias", "unit_features")
"""Options of a zero-shot classifier's head, which other projects compute beside the model."""


def make_table(spec: Spec, rows: Iterable[Row], project: str, knows: Collection[str] = ()) -> Table:
    """Complete a format's rows with the shapes that a spec gives our parameters.

    `knows` names options of newer models that the project has. Rows for parameters that the model
    does not have are skipped. A parameter without a row is refused: the project does not support
    what the spec asks for.
    """
    options = _ZERO_SHOT if project == "timm" else (*_TIMM_ONLY, *_ZERO_SHOT)
    for option in options if isinstance(spec, ViTSpec) else ():
        value = getattr(spec, option)
        if option not in knows and value != getattr(ViTSpec, option):
            raise InputError(f"{project} does not support {option}={value}, of {spec}")
    for option, rare in _RARE.items() if isinstance(spec, ViTSpec) else ():
        if option not in knows and getattr(spec, option) in rare:
            raise InputError(
                f"{project} does not support {option}={getattr(spec, option)}, of {spec}"
            )
    shapes = {name: tuple(p.shape) for name, p in build(spec, device="meta").named_parameters()}
    return fill_rows(rows, shapes, f"{project} does not support {{}} of {spec}")


def fill_rows(rows: Iterable[Row], shapes: Mapping[str, Shape], refusal: str) -> Table:
    """Complete rows with our parameters' shapes; `refusal` says that one has no row."""
    entries = {ours: _entry(ours, shapes[ours], parts) for ours, *parts in rows if ours in shapes}
    if unmatched := [name for name in shapes if name not in entries]:
        raise InputError(refusal.format(", ".join(unmatched[:5])))
    return tuple(entries.values())


def _entry(ours: str, shape: Shape, sources: Sequence[TensorSource]) -> Entry:
    share = (shape[0] // len(sources), *shape[1:])
    parts = (Part(source, share) if isinstance(source, str) else source for source in sources)
    return Entry(ours, shape, tuple(parts))


def linear_rows(ours: str, theirs: str) -> Iterator[Row]:
    """Give the rows of a layer whose weight and bias both sides name alike."""
    yield f"{ours}.weight", f"{theirs}.weight"
    yield f"{ours}.bias", f"{theirs}.bias"


def read_table(
    table: Table, theirs: Mapping[str, Tensor], left_out: Callable[[str], str | None]
) -> tuple[Tensors, dict[str, str]]:
    """Make our parameters from another project's tensors; also say what was left out, and why.

    `left_out` gives the reason why a tensor without an entry may be ignored, or None. Missing,
    misshapen and unknown tensors are reported together.
    """
    wanted = {part.key: part.shape for entry in table for part in entry.parts}
    extra = {key: left_out(key) for key in theirs if key not in wanted}
    problems = [
        f"missing {cut_name(key)} {shape}" for key, shape in wanted.items() if key not in theirs
    ]
    problems += [
        f"{cut_name(key)} has shape {tuple(theirs[key].shape)}, expected {shape}"
        for key, shape in wanted.items()
        if key in theirs and tuple(theirs[key].shape) != shape
    ]
    problems += [f"unknown {cut_name(key)}" for key, reason in extra.items() if reason is None]
    if problems:
        raise InputError(*problems)
    ours = {entry.ours: _stack(entry, theirs) for entry in table}
    return ours, {key: reason for key, reason in extra.items() if reason is not None}


def _stack(entry: Entry, theirs: Mapping[str, Tensor]) -> Tensor:
    pieces = [part.turn(theirs[part.key]) for part in entry.parts]
    if len(pieces) == 1:
        return pieces[0].reshape(entry.shape).contiguous()  # no copy where nothing is turned
    return torch.cat([piece.reshape(-1, *entry.shape[1:]) for piece in pieces])


def write_table(table: Table, ours: Mapping[str, Tensor]) -> Tensors:
    """Make the other project's tensors from our parameters: `read_table` backwards."""
    theirs: Tensors = {}
    for entry in table:
        rows = 0
        for part in entry.parts:
            numbers = torch.Size(part.shape).numel()
            count = numbers // max(torch.Size(entry.shape[1:]).numel(), 1)
            piece = ours[entry.ours][rows : rows + count]
            theirs[part.key] = part.turn_back(piece).contiguous()
            rows += count
    return theirs
