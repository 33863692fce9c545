"""A model that is a table of logits, and batches for it."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.data.batches import Batch, UnreadableImage
from vitrail.data.transforms.preprocess import Preprocess

CPU = torch.device("cpu")
TINY = Preprocess(size=(2, 2), mean=(0.0,), std=(1.0,), interpolation="bilinear", fit="stretch")


class Table(nn.Module):
    """A model that looks its logits up by the first pixel."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = nn.Parameter(logits)
        self.seen: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        assert not self.training
        assert not torch.is_grad_enabled()
        self.seen.append(len(x))
        return self.logits[(x[:, 0, 0, 0] * 255).round().long()]


def batches_of(labels: np.ndarray, size: int, bad: frozenset[int] = frozenset()) -> Iterator[Batch]:
    """Write images' numbers in their pixels; a bad one is black and has weight 0."""
    for start in range(0, len(labels), size):
        rows = np.arange(start, min(start + size, len(labels)))
        good = np.array([row not in bad for row in rows])
        pixels = np.broadcast_to((rows * good)[:, None, None, None], (len(rows), 2, 2, 1))
        yield Batch(
            images=torch.from_numpy(pixels.astype(np.uint8)),
            labels=torch.from_numpy(labels[rows]),
            weights=torch.from_numpy(good.astype(np.float32)),
            indices=torch.from_numpy(rows),
            bad=tuple(
                UnreadableImage(f"p{row}", "gone", "unreadable") for row in rows if row in bad
            ),
        )
