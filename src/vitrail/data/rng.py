"""Random numbers that are pure functions of (seed, purpose, epoch, index): Philox 4x32-10.

Whoever makes an image, in whatever order, on whatever machine, draws the same numbers for it; a
restart needs no generator's state. The generator is written out because NumPy's and torch's can't
be drawn for many counters at once, and promise no stream over versions.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

Purpose = Literal["order", "image", "batch", "split", "subset", "shapes", "noise"]
_PURPOSES: dict[Purpose, int] = {
    "order": 0, "image": 1, "batch": 2, "split": 3, "subset": 4, "shapes": 5, "noise": 6
}  # fmt: skip
_MULTIPLY = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_BUMP = (np.uint32(0x9E3779B9), np.uint32(0xBB67AE85))
_ROUNDS = 10
_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
_AHEAD = 32  # numbers drawn at a time for each image; a crop that is tried often takes more


def philox(counter: np.ndarray, key: tuple[int, int]) -> np.ndarray:
    """Encrypt counters (…, 4) of 32 bits to as many random words, as Random123's philox4x32-10."""
    a, b, c, d = (counter[..., i].astype(np.uint64) for i in range(4))
    low, high = np.uint32(key[0]), np.uint32(key[1])
    with np.errstate(over="ignore"):  # keys are bumped modulo 2^32
        for _ in range(_ROUNDS):
            one, two = a * _MULTIPLY[0], c * _MULTIPLY[1]
            a, b, c, d = (
                (two >> _HALF) ^ b ^ np.uint64(low),
                two & _LOW,
                (one >> _HALF) ^ d ^ np.uint64(high),
                one & _LOW,
            )
            low, high = low + _BUMP[0], high + _BUMP[1]
    return np.stack([a, b, c, d], axis=-1).astype(np.uint32)


def words(
    seed: int, purpose: Purpose, epoch: int | np.ndarray, index: np.ndarray, blocks: range
) -> np.ndarray:
    """Draw 4 words of 32 bits a block for each index: (len(index), 4 * len(blocks))."""
    index = np.asarray(index, np.uint64)
    counter = np.empty((len(index), len(blocks), 4), np.uint64)
    counter[..., 0] = (index & _LOW)[:, None]
    counter[..., 1] = (index >> _HALF)[:, None]
    counter[..., 2] = np.broadcast_to(np.asarray(epoch, np.uint64), index.shape)[:, None]
    counter[..., 3] = np.asarray(blocks, np.uint64) | np.uint64(_PURPOSES[purpose] << 24)
    key = (seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF)
    return philox(counter, key).reshape(len(index), 4 * len(blocks))


def keys(seed: int, purpose: Purpose, epoch: int, index: np.ndarray) -> np.ndarray:
    """Draw one int64 for each index, for those who draw on from there."""
    return words(seed, purpose, epoch, index, range(1))[:, :2].copy().view(np.int64)[:, 0]


class CounterRNG:
    """The numbers of many images at once, drawn one column after the other."""

    def __init__(
        self, seed: int, purpose: Purpose, epoch: int | np.ndarray, index: int | np.ndarray
    ) -> None:
        self._index = np.atleast_1d(np.asarray(index, np.uint64))
        self._epoch = np.broadcast_to(np.asarray(epoch, np.uint64), self._index.shape)
        self._stream = (seed, purpose)
        self._table = np.empty((len(self._index), 0))
        self._used = 0

    def __len__(self) -> int:
        return len(self._index)

    def uniform(self, low: float = 0.0, high: float = 1.0) -> np.ndarray:
        """Draw a number of [low, high) for each image."""
        self._draw_ahead()
        self._used += 1
        return low + (high - low) * self._table[:, self._used - 1]

    def below(self, count: int | np.ndarray) -> np.ndarray:
        """Draw a whole number of [0, count) for each image."""
        return (self.uniform() * count).astype(np.int64)

    def rows(self) -> list[CounterRNG]:
        """Split into the draws of each image by itself; they go on where this one stands."""
        self._draw_ahead()  # for all at once, which costs as much as for one
        return [self._row(slice(row, row + 1)) for row in range(len(self))]

    def _draw_ahead(self) -> None:
        if self._used == self._table.shape[1]:
            blocks = range(self._used // 4, self._used // 4 + _AHEAD // 4)
            more = words(*self._stream, self._epoch, self._index, blocks) / 2.0**32
            self._table = np.concatenate([self._table, more], axis=1)

    def _row(self, row: slice) -> CounterRNG:
        part = CounterRNG.__new__(CounterRNG)  # what __init__ checks would cost more than the draws
        part._stream, part._used = self._stream, self._used
        part._epoch, part._index = self._epoch[row], self._index[row]
        part._table = self._table[row]
        return part


def shuffled(count: int, seed: int, purpose: Purpose, epoch: int = 0) -> np.ndarray:
    """Order the numbers below count at random, as a pure function of the rest."""
    drawn = words(seed, purpose, epoch, np.arange(count), range(1))
    keys = drawn[:, 0].astype(np.uint64) << _HALF | drawn[:, 1].astype(np.uint64)
    return np.argsort(keys, kind="stable")
