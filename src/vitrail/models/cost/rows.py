"""The cost of one layer as a row of numbers, and the rows that all families share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple


@dataclass(frozen=True)
class Product:
    """A matrix product or convolution for one image: (rows, inputs) by (inputs, outputs)."""

    rows: int
    inputs: int
    outputs: int
    operand: Literal["weight", "positions", "activations"] = "weight"
    """What it multiplies by: the layer's weights, a table of positions, or other activations."""
    roles: tuple[str, ...] = ()
    """The matrices that the weight stacks, for low-rank updates of some of them."""
    input_kept: bool = False
    """Whether only the gradient of its weights needs its input."""

    @property
    def macs(self) -> int:
        """Multiply-adds of the forward pass."""
        return self.rows * self.inputs * self.outputs


@dataclass(frozen=True, kw_only=True)
class Row:
    """A layer's cost per image, or the sum of several equal layers."""

    layer: str
    output: tuple[int, ...]
    """Shape of the output, without the batch."""
    parameters: int
    macs: int = field(init=False)
    kept: int = 0
    """Numbers that training keeps for the backward pass."""
    kept_once: int = 0
    """Numbers that it keeps once per batch: standardized weights."""
    repeats: int = 1
    """Equal layers that the row sums up."""
    block_input: int = 0
    """Numbers that enter a block: all that gradient checkpointing keeps of it."""
    starts_with_norm: bool = field(default=False, repr=False)
    """Whether a norm precedes the first product, which then has a gradient's input if trained."""
    products: tuple[Product, ...] = field(default=(), repr=False)
    """The products of one of these layers, in order."""
    ends_in_product: bool = field(default=False, repr=False)
    """Whether the backward pass needs nothing after the last product, so that checkpointing
    doesn't compute it again."""

    def __post_init__(self) -> None:
        macs = self.repeats * sum(product.macs for product in self.products)
        object.__setattr__(self, "macs", macs)

    def times(self, repeats: int) -> Row:
        """Return the sum of several such layers."""
        return replace(
            self,
            parameters=self.parameters * repeats,
            kept=self.kept * repeats,
            kept_once=self.kept_once * repeats,
            block_input=self.block_input * repeats,
            repeats=repeats,
        )

    def one(self) -> Row:
        """Return one of the equal layers."""
        return replace(
            self,
            parameters=self.parameters // self.repeats,
            kept=self.kept // self.repeats,
            kept_once=self.kept_once // self.repeats,
            block_input=self.block_input // self.repeats,
            repeats=1,
        )


class ModelRows(NamedTuple):
    """A model's rows from input to output, by what fine-tuning trains together."""

    embedding: tuple[Row, ...]
    blocks: tuple[Row, ...]
    late: tuple[Row, ...]
    """What follows the blocks: norm, pooling, a decoder."""
    head: tuple[Row, ...]


def count_dense(inputs: int, outputs: int, *, bias: bool = True) -> int:
    """Count a dense layer's parameters."""
    return outputs * (inputs + bias)


def dense_row(label: str, rows: int, inputs: int, outputs: int, *, bias: bool = True) -> Row:
    """Return the row of a dense layer over `rows` tokens."""
    return Row(
        layer=label,
        output=(outputs,) if rows == 1 else (rows, outputs),
        parameters=count_dense(inputs, outputs, bias=bias),
        products=(Product(rows, inputs, outputs),),
        kept=rows * inputs,
    )


def head_rows(
    width: int,
    classes: int,
    *,
    representation: int = 0,
    tanh: bool = True,
    hidden_bias: bool = True,
    bias: bool = True,
) -> Iterator[Row]:
    """List the layers of a head on pooled tokens."""
    if representation:
        hidden = dense_row("head, hidden", 1, width, representation, bias=hidden_bias)
        own = 0 if classes or not tanh else representation  # tanh's output, or kept below
        kept = hidden.kept + own
        yield replace(hidden, kept=kept)
        width = representation
    if classes:
        yield dense_row("head", 1, width, classes, bias=bias)
