"""Dropout and stochastic depth, whose noise can belong to the sample instead of the process.

With keys, one a sample, a mask is a pure function of the sample's key and the module's place in
the model. So a sample meets the same noise in whatever batch, process or recomputation, on any
device, and a restart needs no generator's state. SplitMix64 (Steele, Lea and Flood 2014) draws the
numbers, for all samples at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

_LEVELS = 2**16  # of a random number; a word of 64 bits makes four


class Dropout(nn.Dropout):
    """torch's dropout or, with keys, each sample's own."""

    keys: Tensor | None = None
    """What `keyed_noise` gives this module for each sample (batch,)."""

    @property
    def keyed(self) -> bool:
        """Tell whether each sample has its own mask now."""
        return self.keys is not None and self.training and self.p > 0

    def forward(self, input: Tensor) -> Tensor:
        """Drop single numbers of the input (batch, …) while training."""
        if self.keys is None or not self.keyed:
            return super().forward(input)
        kept, chance = draw_kept(self.keys, input.shape[1:].numel(), self.p)
        return input * kept.view(input.shape) / chance


class StochasticDepth(nn.Module):
    """Leave a residual branch out for some images, and scale it up for the others."""

    keys: Tensor | None = None
    """What `keyed_noise` gives this module for each sample (batch,)."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        """Drop whole images of x (batch, …) while training."""
        if not self.training or self.rate == 0:
            return x
        shape = (len(x),) + (1,) * (x.ndim - 1)
        if self.keys is None:
            return x * x.new_full(shape, 1 - self.rate).bernoulli() / (1 - self.rate)
        kept, chance = draw_kept(self.keys, 1, self.rate)
        return x * kept.view(shape) / chance


@contextmanager
def keyed_noise(model: nn.Module, keys: Tensor) -> Iterator[None]:
    """Draw the model's noise from one int64 key a sample (batch,), as long as the context lasts.

    With activation checkpointing it has to last over the backward pass, which draws again.
    """
    noisy = [m for m in model.modules() if isinstance(m, Dropout | StochasticDepth)]
    words = draw_words(keys.to(next(model.parameters()).device), len(noisy))
    try:
        for module, own in zip(noisy, words.unbind(1), strict=True):
            module.keys = own
        yield
    finally:
        for module in noisy:
            module.keys = None


def draw_kept(keys: Tensor, count: int, rate: float) -> tuple[Tensor, float]:
    """Say of `count` numbers a sample which are kept (batch, count), and how likely that was.

    The chance is the nearest to 1 - rate of 65536 levels.
    """
    random = draw_words(keys, -(-count // 4)).view(torch.int16)[:, :count]
    dropped = min(round(rate * _LEVELS), _LEVELS - 1)
    return random >= dropped - _LEVELS // 2, 1 - dropped / _LEVELS


def draw_words(keys: Tensor, count: int) -> Tensor:
    """Draw words of 64 bits for each key (batch, count)."""
    starts = _scramble(keys.clone())  # far apart, so that no key's words are a neighbor's
    steps = torch.arange(1, count + 1, device=keys.device)
    # The sum is multiplied, not the steps: those are indices to torch.compile and must not wrap.
    return _scramble((starts[:, None] + steps) * _signed(0x9E3779B97F4A7C15))


def _scramble(x: Tensor) -> Tensor:
    """Mix the bits of each number, in place."""
    x ^= (x >> 30) & (2**34 - 1)  # the mask makes the shift one of unsigned numbers
    x *= _signed(0xBF58476D1CE4E5B9)
    x ^= (x >> 27) & (2**37 - 1)
    x *= _signed(0x94D049BB133111EB)
    x ^= (x >> 31) & (2**33 - 1)
    return x


def _signed(word: int) -> int:
    return word - 2**64  # as torch's int64 holds it
