"""A peer's weights as a table that is read in both directions.

A table's entry says of which of the peer's tensors one of our parameters is made. Every difference
between two projects is one of three: another name, another shape or order of axes, several tensors
stacked into one. Each is undone exactly, so writing is reading backwards and loses no bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vitrail.config import InputError
from vitrail.models import Spec, build

Shape = tuple[int, ...]
Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Part:
    """One of the peer's tensors, and how it is turned to stand in ours."""

    key: str
    shape: Shape
    """Shape that the peer gives it."""
    axes: tuple[int, ...] | None = None
    """Order of the peer's axes before it is reshaped to ours; None keeps them."""

    def turn(self, theirs: Tensor) -> Tensor:
        """Bring the peer's tensor into our order of axes."""
        return theirs if self.axes is None else theirs.permute(self.axes)

    def turn_back(self, ours: Tensor) -> Tensor:
        """Bring a piece of our parameter into the peer's shape."""
        if self.axes is None:
            return ours.reshape(self.shape)
        back = sorted(range(len(self.axes)), key=self.axes.__getitem__)
        return ours.reshape([self.shape[axis] for axis in self.axes]).permute(back)


@dataclass(frozen=True)
class Entry:
    """One of our parameters, made of the peer's tensors stacked along its first axis."""

    ours: str
    shape: Shape
    parts: tuple[Part, ...]


Table = tuple[Entry, ...]
"""Every parameter of a model, once."""

TensorSource = str | Part
"""One of the peer's tensors; a bare name stands for our own shape, or an equal share of it."""

Row = tuple[str, *tuple[TensorSource, ...]]
"""One of our parameters, then what it is stacked of."""


def make_table(spec: Spec, rows: Iterable[Row], project: str) -> Table:
    """Complete a format's rows with the shapes that a spec gives our parameters.

    Rows of parameters that the model does not have are passed over. A parameter without a row is
    refused: the project has no place for what the spec asks.
    """
    shapes = {name: tuple(p.shape) for name, p in build(spec, device="meta").named_parameters()}
    entries = {ours: _entry(ours, shapes[ours], parts) for ours, *parts in rows if ours in shapes}
    unmatched = [name for name in shapes if name not in entries]
    if unmatched:
        raise InputError(f"{project} has no place for {', '.join(unmatched[:5])} of {spec}")
    return tuple(entries.values())


def _entry(ours: str, shape: Shape, sources: Sequence[TensorSource]) -> Entry:
    share = (shape[0] // len(sources), *shape[1:])
    parts = (Part(source, share) if isinstance(source, str) else source for source in sources)
    return Entry(ours, shape, tuple(parts))


def dense(ours: str, theirs: str) -> Iterator[Row]:
    """Give the rows of a layer whose weight and bias both sides name alike."""
    yield f"{ours}.weight", f"{theirs}.weight"
    yield f"{ours}.bias", f"{theirs}.bias"


def read_table(
    table: Table, theirs: Mapping[str, Tensor], left_out: Callable[[str], str | None]
) -> tuple[Tensors, dict[str, str]]:
    """Make our parameters of the peer's tensors; also say what was left out, and why.

    `left_out` gives the reason why a tensor that no entry names may be ignored, or None. Whatever
    does not fit is said at once: missing, misshapen and unknown tensors.
    """
    wanted = {part.key: part.shape for entry in table for part in entry.parts}
    extra = {key: left_out(key) for key in theirs if key not in wanted}
    problems = [f"missing {key!r} {shape}" for key, shape in wanted.items() if key not in theirs]
    problems += [
        f"{key!r} has shape {tuple(theirs[key].shape)}, expected {shape}"
        for key, shape in wanted.items()
        if key in theirs and tuple(theirs[key].shape) != shape
    ]
    problems += [f"unknown {key!r}" for key, reason in extra.items() if reason is None]
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
    """Make the peer's tensors of our parameters: `read_table` backwards."""
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
