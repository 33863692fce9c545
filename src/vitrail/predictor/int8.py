"""Static int8: linear layers that multiply 8-bit levels, by ranges measured on images.

The input of a layer is divided per channel and its weights are multiplied by the same factors, so
that channels with large values don't cost the others their precision (SmoothQuant, arXiv
2211.10438). Weights have one scale per output.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.models import BiT, ViT
from vitrail.predictor.last_block import inference_copy

_SMOOTH = 0.7
"""How much of the input's range moves into the weights (SmoothQuant's alpha)."""
_PEAK = 40.0
"""A layer is not quantized if its input's peak is more than this many times its root mean square.
In ViT-Ti/16 two inputs of `mlp.output` have 64 and 222, no other above 33; quantized too, they
change 6 % of the predictions instead of 1 %."""
_ROWS = 1024  # number of tokens that the weights are laid out for
_TINY = 1e-5  # the least range of a channel


@dataclass
class InputRange:
    """The range of a layer's input, per channel."""

    low: Tensor
    high: Tensor
    squares: Tensor
    """Their mean over the rows."""
    rows: int

    @classmethod
    def of(cls, rows: Tensor) -> InputRange:
        """Measure rows (n, channels)."""
        squares = rows.double().square().mean(0)
        return cls(rows.amin(0), rows.amax(0), squares, len(rows))

    def join(self, other: InputRange) -> InputRange:
        """Give the range of both."""
        rows = self.rows + other.rows
        squares = (self.squares * self.rows + other.squares * other.rows) / rows
        low, high = torch.minimum(self.low, other.low), torch.maximum(self.high, other.high)
        return InputRange(low, high, squares, rows)

    def smoothed(self, weight: Tensor | None) -> SmoothRange:
        """Divide the range per channel as suits a weight (outputs, channels), if one is given."""
        largest = torch.maximum(-self.low, self.high).clamp_min(_TINY)
        if weight is None:
            factors = torch.ones_like(largest)
        else:
            heaviest = weight.detach().abs().amax(0).clamp_min(_TINY)
            factors = largest**_SMOOTH / heaviest ** (1 - _SMOOTH)
        root = (self.squares / factors**2).mean().sqrt()
        return SmoothRange(
            factors,
            low=min(float((self.low / factors).min()), 0.0),
            high=max(float((self.high / factors).max()), _TINY),
            peaked=bool((largest / factors).max() > _PEAK * root),
        )


@dataclass(frozen=True)
class SmoothRange:
    """The range of a layer's input, divided by factors per channel."""

    factors: Tensor
    low: float
    high: float
    peaked: bool
    """Whether a few values would take most of the levels."""


class Int8Dense(nn.Module):
    """A linear layer of 8-bit levels, optionally followed by GELU; its output is `dtype`."""

    def __init__(
        self, layer: nn.Linear, seen: SmoothRange, gelu: str | None, dtype: torch.dtype
    ) -> None:
        super().__init__()
        operators: Any = torch.ops.onednn
        weight = layer.weight.detach() * seen.factors
        self.step = (seen.high - seen.low) / 255
        self.zero = round(-seen.low / self.step)
        self.scale = 1 / (seen.factors * self.step)
        self.shift = torch.full_like(self.scale, self.zero - 128)
        tiny = torch.finfo(torch.float32).tiny
        self.steps = (weight.abs().amax(1) / 127).clamp_min(tiny)
        levels = (weight / self.steps[:, None]).round().to(torch.int8)
        self.packed = operators.qlinear_prepack(levels, [_ROWS, layer.in_features])
        self.zeros = torch.zeros(len(weight), dtype=torch.int32)
        self.bias = None if layer.bias is None else layer.bias.detach()
        self.run = operators.qlinear_pointwise
        self.output: tuple[float, int, torch.dtype] = (1.0, 0, dtype)
        self.after = ("none", [], "") if gelu is None else ("gelu", [], gelu)

    def give_levels_of(self, following: Int8Dense) -> None:
        """Make its output the levels that another layer takes."""
        self.output = following.step, following.zero, torch.uint8

    def forward(self, x: Tensor) -> Tensor:
        """Map the last axis of floats, or of the levels of `give_levels_of`."""
        levels = x if x.dtype == torch.uint8 else self._to_levels(x)
        return self.run(
            levels, self.step, self.zero, self.packed, self.steps, self.zeros, self.bias,
            *self.output, *self.after,
        )  # fmt: skip

    def _to_levels(self, x: Tensor) -> Tensor:
        # Signed and then shifted by the sign bit: torch is 4 times as fast to make int8 as uint8.
        levels = torch.addcmul(self.shift, x, self.scale).round_().clamp_(-128, 127)
        return levels.to(torch.int8).view(torch.uint8).bitwise_xor_(128)


@torch.inference_mode()
def measure_ranges(model: ViT | BiT, batches: Iterable[Tensor]) -> dict[str, InputRange]:
    """Run a model on normalized images, and measure the inputs of its blocks' linear layers."""
    copy, seen = inference_copy(model), dict[str, InputRange]()

    def hear(name: str, layer: nn.Module, given: tuple[Tensor]) -> None:
        found = InputRange.of(given[0].flatten(0, -2))
        seen[name] = seen[name].join(found) if name in seen else found

    for name, layer in copy.named_modules():
        if isinstance(layer, nn.Linear) and name.startswith("blocks."):
            layer.register_forward_pre_hook(partial(hear, name))
    for batch in batches:
        copy(batch)
    return seen
