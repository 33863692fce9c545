"""Many file names in little memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import chain, pairwise

import numpy as np

from vitrail.data.datasets.mapped import Lookups, blocks, release_pages

_AT_ONCE = 1 << 20  # names that are copied at a time


class Names:
    """File names in one buffer, which processes share without copying."""

    def __init__(self, names: Sequence[bytes] = ()) -> None:
        self.text = np.frombuffer(b"".join(names), np.uint8)
        """The names, one after the other."""
        self.ends = np.cumsum(np.fromiter(map(len, names), np.int64, len(names)))
        """Where each name ends."""
        self._lookups = Lookups(self.text, self.ends)

    @classmethod
    def of(cls, text: np.ndarray, ends: np.ndarray, hashed: str | None = None) -> Names:
        """Take the names from arrays, such as a file's that are mapped into memory."""
        names = cls()
        names.text, names.ends = text, ends
        names._lookups = Lookups(text, ends)
        if hashed is not None:
            names.hashed = hashed  # so that the arrays need not be read for it
        return names

    @classmethod
    def join(cls, parts: Sequence[Names]) -> Names:
        """Put names one after the other."""
        shifts = np.cumsum([0, *(len(part.text) for part in parts)])
        ends = [part.ends + shift for part, shift in zip(parts, shifts, strict=False)]
        texts = [part.text for part in parts]
        empty = np.empty(0, np.uint8), np.empty(0, np.int64)
        return cls.of(np.concatenate([empty[0], *texts]), np.concatenate([empty[1], *ends]))

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, index: int) -> bytes:
        self._lookups.count()
        start = self.ends[index - 1] if index else 0
        return self.text[start : self.ends[index]].tobytes()

    def __iter__(self) -> Iterator[bytes]:
        """Yield all names, a part of the buffer at a time."""
        start = 0
        for ends in blocks(self.ends):
            text = self.text[start : ends[-1]].tobytes()
            places = (ends - start).tolist()
            for first, last in pairwise((0, *places)):
                yield text[first:last]
            start = int(ends[-1])
            release_pages(self.text)

    def some(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Copy the text of some names, and where each of them ends in it."""
        before = int(self.ends[start - 1]) if start else 0
        ends = np.array(self.ends[start:stop]) - before
        text = np.array(self.text[before : before + int(ends[-1])]) if len(ends) else self.text[:0]
        release_pages(self.text, self.ends)
        return text, ends

    def take(self, indices: np.ndarray) -> Names:
        """Copy some of the names, in a given order."""
        starts = np.where(indices > 0, self.ends[indices - 1], 0)
        lengths = self.ends[indices] - starts
        parts = []
        for first in range(0, len(indices), _AT_ONCE):
            some = slice(first, first + _AT_ONCE)
            ends = np.cumsum(lengths[some])
            shifts = np.repeat(starts[some] - (ends - lengths[some]), lengths[some])
            parts.append(self.text[shifts + np.arange(len(shifts))])
        return Names.of(np.concatenate([np.empty(0, np.uint8), *parts]), np.cumsum(lengths))

    @cached_property
    def hashed(self) -> str:
        """A hash of all names in their order."""
        digest = hashlib.blake2b(digest_size=32)
        for block in chain(blocks(self.ends), blocks(self.text)):
            digest.update(block.data)
        return digest.hexdigest()
