"""Dropout and stochastic depth, optionally with counter-based random numbers.

With one key per sample, a mask is a pure function of the sample's key and the module's place in the
model: the same in any batch, process, recomputation and device, without generator state to save.
The generator is SplitMix64 (Steele, Lea and Flood 2014), for all samples at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from vitrail.distributed import send

_LEVELS = 2**16  # of a random number; a word of 64 bits has four


class Dropout(nn.Dropout):
    """torch's dropout or, with keys, one mask per sample's key."""

    keys: Tensor | None = None
    """This module's key for each sample (batch,), set by `keyed_noise`."""

    @property
    def keyed(self) -> bool:
        """Whether masks come from the samples' keys."""
        return self.keys is not None and self.training and self.p > 0

    def forward(self, input: Tensor) -> Tensor:
        """Zero random elements of the input (batch, …) in training."""
        if self.keys is None or not self.keyed:
            return super().forward(input)
        kept, keep_rate = draw_kept(self.keys, input.shape[1:].numel(), self.p)
        return input * kept.view(input.shape) / keep_rate


class StochasticDepth(nn.Module):
    """Drop a residual branch for random samples, and scale it up for the others."""

    keys: Tensor | None = None
    """This module's key for each sample (batch,), set by `keyed_noise`."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        """Zero random samples of x (batch, …) in training."""
        if not self.training or self.rate == 0:
            return x
        shape = (len(x),) + (1,) * (x.ndim - 1)
        if self.keys is None:
            return x * x.new_full(shape, 1 - self.rate).bernoulli() / (1 - self.rate)
        kept, keep_rate = draw_kept(self.keys, 1, self.rate)
        return x * kept.view(shape) / keep_rate


class UniformNoise(nn.Module):
    """A few random numbers from 0 to 1 for each sample."""

    keys: Tensor | None = None
    """This module's key for each sample (batch,), set by `keyed_noise`."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def forward(self, x: Tensor) -> Tensor:
        """Draw numbers (batch, count) for the samples of x (batch, …)."""
        if self.keys is None:
            return torch.rand(len(x), self.count, device=x.device)
        words = draw_words(self.keys, -(-self.count // 4)).view(torch.int16)[:, : self.count]
        return (words.float() + _LEVELS / 2 + 0.5) / _LEVELS


@contextmanager
def keyed_noise(model: nn.Module, keys: Tensor) -> Iterator[None]:
    """Draw the model's noise from one int64 key per sample (batch,) inside the context.

    With activation checkpointing the backward pass, which draws again, must be inside too.
    """
    noisy = [m for m in model.modules() if isinstance(m, Dropout | StochasticDepth | UniformNoise)]
    words = draw_words(send(keys, next(model.parameters()).device), len(noisy))
    try:
        for module, own in zip(noisy, words.unbind(1), strict=True):
            module.keys = own
        yield
    finally:
        for module in noisy:
            module.keys = None


def draw_kept(keys: Tensor, count: int, rate: float) -> tuple[Tensor, float]:
    """Return which of `count` elements per sample are kept (batch, count), and the keep rate.

    The keep rate is 1 - rate, rounded to 1 / 65536.
    """
    random = draw_words(keys, -(-count // 4)).view(torch.int16)[:, :count]
    dropped = min(round(rate * _LEVELS), _LEVELS - 1)
    return random >= dropped - _LEVELS // 2, 1 - dropped / _LEVELS


def draw_words(keys: Tensor, count: int) -> Tensor:
    """Draw words of 64 bits for each key (batch, count)."""
    starts = _scramble(keys.clone())  # far apart, so that neighboring keys share no words
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
