"""Parts of one's own that can be imported: what a user would have in a module."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset

from vitrail.data.batches import Batch
from vitrail.data.dataset import ArrayDataset, ImageDataset
from vitrail.training.callbacks import Callback
from vitrail.training.loop import StepResult
from vitrail.training.task import DeviceBatch, Task

NUMBER = 3
SEEN: list[tuple[str, int]] = []
"""What the callback was told."""


class Pairs(Dataset[tuple[np.ndarray, int]]):
    """Gray squares, brighter in the second class."""

    def __init__(self, count: int = 24) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        return np.full((8, 8, 1), 100 * (index % 2) + index, np.uint8), index % 2


def squares(count: int = 24, name: str = "squares") -> ImageDataset:
    """Make the same images as an ImageDataset."""
    pairs = [Pairs(count)[index] for index in range(count)]
    labels = np.array([label for _, label in pairs], np.int64)
    return ArrayDataset(name, ["dark", "bright"], labels, np.stack([image for image, _ in pairs]))


def by_split(split: str) -> Dataset[Any] | None:
    """Give 24 images to learn from and 8 to test on; there is no validation split."""
    return {"train": Pairs(24), "test": Pairs(8)}.get(split)


class Contrastive(Task):
    """The two copies of an image attract each other, all others repel (NT-Xent)."""

    needs_labels = False
    needs_whole_batch = True

    def prepare(self, batch: Batch) -> DeviceBatch:
        return super().prepare(batch)._replace(targets=batch.indices.to(self.device))

    def losses(self, model: nn.Module, batch: DeviceBatch) -> Tensor:
        features = F.normalize(model(batch.inputs), dim=-1)
        count = len(features)
        logits = (features @ features.T / 0.5).masked_fill(torch.eye(count, dtype=torch.bool), -1e9)
        return F.cross_entropy(logits, torch.arange(count).roll(count // 2), reduction="none")


class Scalar(Task):
    """A task that returns the mean loss."""

    def losses(self, model: nn.Module, batch: DeviceBatch) -> Tensor:
        return F.cross_entropy(model(batch.inputs), batch.targets)


def half(step: int, total: int) -> float:
    return 0.5 if step < total // 2 else 0.25


def speckle(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return np.where(rng.random(image.shape) < 0.1, rng.integers(0, 256, image.shape), image).astype(
        np.uint8
    )


def shrink(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return image[1:]


def label_sum(outputs: Tensor, labels: Tensor) -> float:
    """Weigh labels by their places, so that another order gives another number."""
    assert len(outputs) == len(labels)
    return float((labels.double() * torch.arange(1, len(labels) + 1)).sum())


def last_output(outputs: Tensor, labels: Tensor) -> float:
    return float(outputs[-1, 0])


class Lines:
    """A logger that writes what it is told."""

    def __init__(self, folder: Path, step: int) -> None:
        self.file = (folder / "lines.txt").open("a")
        self.write(["open", step])

    def write(self, values: Any) -> None:
        self.file.write(json.dumps(values) + "\n")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.write([step, sorted(values)])

    def image(self, step: int, name: str, array: np.ndarray) -> None:
        self.write([step, name])

    def close(self, *, failed: bool = False) -> None:
        self.write(["close", failed])
        self.file.close()


class Told(Callback):
    def on_start(self, run: Any, step: int) -> None:
        SEEN.append(("start", step))

    def on_step(self, run: Any, result: StepResult) -> None:
        SEEN.append(("step", result.step))

    def on_evaluation(self, run: Any, step: int, values: Mapping[str, float]) -> None:
        assert "top1" in values
        SEEN.append(("evaluation", step))

    def on_save(self, run: Any, step: int) -> None:
        SEEN.append(("save", step))

    def on_end(self, run: Any, step: int) -> None:
        SEEN.append(("end", step))


class NeedsAName(Callback):
    def __init__(self, name: str) -> None:
        self.name = name


class Gate(nn.Module):
    """Scale an MLP's output by a learned number."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.gain = inner, nn.Parameter(torch.full((), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        return self.gain * self.inner(x)


def gate_first_block(model: Any) -> Any:
    model.blocks[0].mlp = Gate(model.blocks[0].mlp)
    return model


def forget(model: Any) -> Any:
    gate_first_block(model)
