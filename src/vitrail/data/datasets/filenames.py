"""Many file names in little memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


class Names:
    """File names in one buffer, which worker processes share without copying."""

    def __init__(self, names: Sequence[bytes]) -> None:
        self._text = b"".join(names)
        self._ends = np.cumsum(np.fromiter(map(len, names), np.int64, len(names)))

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: int) -> bytes:
        start = self._ends[index - 1] if index else 0
        return self._text[start : self._ends[index]]
