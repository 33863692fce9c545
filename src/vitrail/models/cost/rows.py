"""A layer's cost as a row of numbers, and the rows that all families share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace


@dataclass(frozen=True, kw_only=True)
class Row:
    """One layer's cost for one image; a row may stand for several equal layers."""

    layer: str
    output: tuple[int, ...]
    """Shape of what comes out, without the batch."""
    parameters: int
    macs: int = 0
    kept: int = 0
    """Numbers that training keeps for the backward pass."""
    kept_once: int = 0
    """Numbers that it keeps once, however many images: standardized weights."""
    repeats: int = 1
    """Equal layers that the row sums up."""
    block_input: int = 0
    """Numbers that come into a block: all that gradient checkpointing keeps of it."""

    def times(self, repeats: int) -> Row:
        """Sum up several such layers."""
        return replace(
            self,
            parameters=self.parameters * repeats,
            macs=self.macs * repeats,
            kept=self.kept * repeats,
            kept_once=self.kept_once * repeats,
            block_input=self.block_input * repeats,
            repeats=repeats,
        )


def dense(inputs: int, outputs: int, *, bias: bool = True) -> int:
    """Count a dense layer's parameters."""
    return outputs * (inputs + bias)


def head_rows(
    width: int, classes: int, *, representation: int = 0, bias: bool = True
) -> Iterator[Row]:
    """Write down a head on pooled tokens."""
    if representation:
        yield Row(
            layer="head, hidden",
            output=(representation,),
            parameters=dense(width, representation),
            macs=width * representation,
            kept=width + representation,
        )
        width = representation
    if classes:
        yield Row(
            layer="head",
            output=(classes,),
            parameters=dense(width, classes, bias=bias),
            macs=width * classes,
            kept=width,
        )
