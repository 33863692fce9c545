"""Counter-based random numbers, pure functions of (seed, purpose, epoch, index): Philox 4x32-10.

An image gets the same numbers whichever worker makes it, in any order, on any machine, and a
restart needs no generator state. Philox is implemented here because the generators of NumPy and
torch can't be evaluated for many counters at once, nor promise the same stream in each version.
"""

from __future__ import annotations

from math import isqrt
from typing import Literal

import numpy as np

Purpose = Literal[
    "order", "image", "batch", "split", "subset", "shapes", "noise", "transform", "balance",
    "characters", "buffer", "globals",
]  # fmt: skip
_PURPOSES: dict[Purpose, int] = {
    "order": 0, "image": 1, "batch": 2, "split": 3, "subset": 4, "shapes": 5, "noise": 6,
    "transform": 7, "balance": 8, "characters": 9, "buffer": 10,
    "globals": 11,
}  # fmt: skip
_MULTIPLY = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_BUMP = (np.uint32(0x9E3779B9), np.uint32(0xBB67AE85))
_ROUNDS = 10
_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
_SHIFTS = 8  # rounds of a permutation; 4 suffice for large ones
_AT_ONCE = 1 << 18  # keys of a permutation that are drawn at a time
_AHEAD = 32  # numbers drawn at a time per image; a crop with many tries needs more


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
    """Draw 4 words of 32 bits per block for each index: (len(index), 4 * len(blocks))."""
    index = np.asarray(index, np.uint64)
    counter = np.empty((len(index), len(blocks), 4), np.uint64)
    counter[..., 0] = (index & _LOW)[:, None]
    counter[..., 1] = (index >> _HALF)[:, None]
    counter[..., 2] = np.broadcast_to(np.asarray(epoch, np.uint64), index.shape)[:, None]
    counter[..., 3] = np.asarray(blocks, np.uint64) | np.uint64(_PURPOSES[purpose] << 24)
    key = (seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF)
    return philox(counter, key).reshape(len(index), 4 * len(blocks))


def keys(seed: int, purpose: Purpose, epoch: int, index: np.ndarray) -> np.ndarray:
    """Draw one int64 per index, as a key for further random numbers."""
    return words(seed, purpose, epoch, index, range(1))[:, :2].copy().view(np.int64)[:, 0]


class CounterRNG:
    """Random numbers for many images at once, one column after the other."""

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
        """Draw a number in [low, high) for each image."""
        self._draw_ahead()
        self._used += 1
        return low + (high - low) * self._table[:, self._used - 1]

    def below(self, count: int | np.ndarray) -> np.ndarray:
        """Draw an integer in [0, count) for each image."""
        return (self.uniform() * count).astype(np.int64)

    def rows(self) -> list[CounterRNG]:
        """Split into one generator per image, each continuing where this one is."""
        self._draw_ahead()  # for all at once, which costs as much as for one
        return [self._row(slice(row, row + 1)) for row in range(len(self))]

    def _draw_ahead(self) -> None:
        if self._used == self._table.shape[1]:
            blocks = range(self._used // 4, self._used // 4 + _AHEAD // 4)
            more = words(*self._stream, self._epoch, self._index, blocks) / 2.0**32
            self._table = np.concatenate([self._table, more], axis=1)

    def _row(self, row: slice) -> CounterRNG:
        part = CounterRNG.__new__(CounterRNG)  # __init__ would cost more than the numbers
        part._stream, part._used = self._stream, self._used
        part._epoch, part._index = self._epoch[row], self._index[row]
        part._table = self._table[row]
        return part


def shuffled(count: int, seed: int, purpose: Purpose, epoch: int = 0) -> np.ndarray:
    """Return a random permutation of range(count), a pure function of the arguments."""
    return np.argsort(shuffle_keys(0, count, seed, purpose, epoch), kind="stable")


def shuffle_keys(start: int, stop: int, seed: int, purpose: Purpose, epoch: int = 0) -> np.ndarray:
    """Draw the keys by which some numbers of a permutation are sorted (uint64)."""
    keys = np.empty(stop - start, np.uint64)
    for place in range(start, stop, _AT_ONCE):
        some = np.arange(place, min(place + _AT_ONCE, stop))
        drawn = words(seed, purpose, epoch, some, range(1))
        here = slice(place - start, place - start + len(some))
        keys[here] = drawn[:, 0].astype(np.uint64) << _HALF | drawn[:, 1]
    return keys


class Permutation:
    """A random permutation of range(count), computed only where it is asked for.

    Positions are points of a grid of about sqrt(count) rows and columns. Each round moves a point
    along its row or its column, by a random distance per row or column: a Feistel network. A point
    that ends outside the range goes through again. So 14 million images need tables of 0.2 MB.
    """

    def __init__(self, count: int, seed: int, purpose: Purpose, epoch: int = 0) -> None:
        self._count, self._columns = count, isqrt(max(count, 1) - 1) + 1
        self._rows = -(-count // self._columns)
        self._tables = [self._distances(round, seed, purpose, epoch) for round in range(_SHIFTS)]

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, positions: np.ndarray) -> np.ndarray:
        """Return the values at some positions."""
        found = self._move(np.asarray(positions, np.int64))
        while (outside := found >= self._count).any():
            found[outside] = self._move(found[outside])
        return found

    def _distances(self, round: int, seed: int, purpose: Purpose, epoch: int) -> np.ndarray:
        """Draw how far a round moves the points of each row, or of each column."""
        lines, length = self._rows, self._columns
        if round % 2:
            lines, length = length, lines
        drawn = words(seed, purpose, epoch, np.arange(lines) + (round << 32), range(1))
        return (drawn[:, :2].copy().view(np.uint64)[:, 0] % max(length, 1)).astype(np.int64)

    def _move(self, positions: np.ndarray) -> np.ndarray:
        row, column = np.divmod(positions, self._columns)
        for along_row, along_column in zip(self._tables[::2], self._tables[1::2], strict=True):
            column = (column + along_row[row]) % self._columns
            row = (row + along_column[column]) % self._rows
        return row * self._columns + column
