"""Batches as pure functions of the step, so that resume, workers and processes are exact.

Training sees one endless sequence of images, epoch after epoch, each in its own order; batch `step`
is positions [step * batch, (step + 1) * batch) of it, and each process makes its slice. So the step
is all that is needed to resume. Evaluation sees each image once, including the last partial batch.

Repeated augmentation puts each image into the sequence several times in a row, each time augmented
anew; within a batch all first copies come first, so that neighbors differ.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from vitrail.config import InputError
from vitrail.data.class_balance import BalancedOrder
from vitrail.data.dataset import FixedSizeDataset, ImageDataset, UnreadableImage
from vitrail.data.decoding.decode import ImageError
from vitrail.data.rng import CounterRNG, Permutation
from vitrail.data.transforms.apply import (
    blank_inputs,
    eval_input,
    eval_pixels,
    train_image,
    train_pixels,
)
from vitrail.data.transforms.augment import Augment
from vitrail.data.transforms.mixing import Mix, draw_mix, mix_images, mix_targets, soft_targets
from vitrail.data.transforms.preprocess import Preprocess
from vitrail.distributed import ALONE, Shard

_COPY = 1 << 40  # between the keys of an image's copies; no dataset has so many images


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Some images as uint8, to be normalized on the model's device.

    With a `mix` still to be applied, row 0 is only the partner of row 1.
    """

    images: Tensor
    """(n, height, width, channels), uint8; of different sizes (n, budget, 5 + pixels), as in
    patch_layout.py."""
    labels: Tensor
    """(n) class indices, or (n, classes): 0 and 1, or class probabilities if mixed."""
    weights: Tensor
    """(n) 1, or 0 for an image that could not be read and must not count."""
    indices: Tensor
    """(n) each image's index in the dataset; in a stream, its position in the epoch."""
    copies: Tensor | None = None
    """(n) which copy of its image each is within the global batch, by repeated augmentation or
    because the batch spans epochs. None if all are first copies."""
    mix: Mix | None = None
    bad: tuple[UnreadableImage, ...] = ()

    @property
    def keys(self) -> Tensor:
        """Return a key per image for its own noise, unique within the step."""
        return self.indices if self.copies is None else self.indices + self.copies * _COPY


class TrainBatches:
    """Training batches by step, for one process of several.

    With mixup or CutMix, images come mixed and labels are class probabilities (n, classes). With
    `mixed=False` a batch only says how to mix it, so that this is done on the device; its first row
    is then only the partner of the second. `together` keeps an image's copies in one process;
    `balanced` draws each class equally often.
    """

    def __init__(
        self,
        dataset: ImageDataset,
        augment: Augment,
        preprocess: Preprocess,
        *,
        batch: int,
        seed: int,
        shard: Shard = ALONE,
        repeats: int = 1,
        mixed: bool = True,
        together: bool = False,
        balanced: bool = False,
    ) -> None:
        if not len(dataset):
            raise InputError(f"{dataset.name} has no images to train on")
        check_batch(batch, shard)
        self.dataset, self.augment = dataset, augment
        self.preprocess = preprocess.read_as(dataset)
        self.batch, self.seed, self.shard, self.repeats = batch, seed, shard, repeats
        self.mixed, self.together = mixed, together
        self._draws = (
            BalancedOrder(dataset.labels, len(dataset.classes), seed) if balanced else None
        )

    def __getitem__(self, step: int) -> Batch:
        """Make this process's share of a global batch."""
        mix = draw_mix(self.augment, self.preprocess.size, self.seed, step)
        places = places_of(self.batch, self.shard, partner=mix is not None)
        row = step * self.batch + np.arange(self.batch)
        order = sort_copies(row % self.repeats, self.shard.count if self.together else 1)
        positions, copies = np.divmod(row[order[places]], self.repeats)
        epochs, indices = self._images_at(positions)
        rng = CounterRNG(self.seed, "image", epochs * self.repeats + copies, indices)
        made = assemble(self.dataset, indices, self.preprocess, self.augment, rng, mix)
        first = 0 if self._draws else row[0] // self.repeats // len(self.dataset)
        made = replace(made, copies=number_copies(epochs - first, copies, self.repeats))
        return mix_batch(made, len(self.dataset.classes)) if self.mixed else made

    def _images_at(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Look up the images at positions of the endless sequence: epochs and indices.

        Where classes are drawn equally often, the epochs are an image's own: how often it was seen.
        """
        if self._draws:
            return self._draws.images_at(positions)
        epochs, within = np.divmod(positions, len(self.dataset))
        indices = np.empty_like(positions)
        for epoch in np.unique(epochs):
            here = epochs == epoch
            order = _order(len(self.dataset), self.seed, int(epoch))
            indices[here] = order[within[here]]
        return epochs, indices


def mix_batch(batch: Batch, classes: int) -> Batch:
    """Mix images and labels as the batch says, and drop the row that is only a partner."""
    mix = batch.mix
    if mix is None:
        return batch
    planes = mix_images(batch.images.permute(0, 3, 1, 2).to(torch.float32), mix)
    return replace(
        batch,
        images=planes.permute(0, 2, 3, 1).round().to(torch.uint8).contiguous(),
        labels=mix_targets(soft_targets(batch.labels, classes), mix),
        weights=batch.weights[1:] * batch.weights[:-1],  # a mixture needs both
        indices=batch.indices[1:],
        copies=None if batch.copies is None else batch.copies[1:],
        mix=None,
    )


def places_of(batch: int, shard: Shard, *, partner: bool) -> np.ndarray:
    """Return the positions of a global batch that a process makes.

    Mixing combines each image with the one before it, the first with the last; so that this does
    not depend on the number of processes, each also makes the image before its own.
    """
    start, stop = shard.slice_of(0, batch)
    return np.arange(start - partner, stop) % batch


@lru_cache(maxsize=2)
def _order(count: int, seed: int, epoch: int) -> Permutation:
    """Order an epoch's images."""
    return Permutation(count, seed, "order", epoch)


def sort_copies(copies: np.ndarray, parts: int = 1) -> np.ndarray:
    """Order a global batch: all first copies of its images, then all second ones, and so on.

    Adjacent copies would be mixed with each other. With several `parts`, each equal part of the
    batch is ordered on its own, so that an image's copies stay in one.
    """
    return np.lexsort((copies, np.arange(len(copies)) * parts // len(copies)))


def number_copies(epochs: np.ndarray, copies: np.ndarray, repeats: int) -> Tensor | None:
    """Count the copies of each image in a global batch, over its epochs (from 0)."""
    numbers = epochs * repeats + copies
    return torch.from_numpy(numbers) if numbers.any() or repeats > 1 else None


def check_batch(batch: int, shard: Shard) -> None:
    """Check that the processes can share a global batch evenly."""
    if batch < 1 or batch % shard.count:
        fits = ", ".join(str(n) for n in range(1, batch + 1) if batch % n == 0)
        hint = f"; it can be shared by {fits}" if fits else "; it must be at least 1"
        raise InputError(f"a global batch of {batch} on {shard.count} processes{hint}")


class EvalBatches:
    """Each image of a dataset once, in its order, for one process of several."""

    def __init__(
        self, dataset: ImageDataset, preprocess: Preprocess, *, batch: int, shard: Shard = ALONE
    ) -> None:
        if batch < 1:
            raise InputError(f"a batch has at least 1 image, got {batch}")
        self.dataset, self.preprocess = dataset, preprocess.read_as(dataset)
        self.batch, self.shard = batch, shard

    def __len__(self) -> int:
        return -(-len(self.dataset) // self.batch)

    def __getitem__(self, step: int) -> Batch:
        """Make this process's share of a batch; it may be empty at the end."""
        if not 0 <= step < len(self):
            raise IndexError(step)
        stop = min((step + 1) * self.batch, len(self.dataset))
        indices = np.arange(*self.shard.slice_of(step * self.batch, stop))
        return assemble(self.dataset, indices, self.preprocess)


def assemble(
    dataset: ImageDataset,
    indices: np.ndarray,
    preprocess: Preprocess,
    augment: Augment | None = None,
    rng: CounterRNG | None = None,
    mix: Mix | None = None,
) -> Batch:
    """Read, decode and transform images; without `augment`, as in evaluation."""
    bad: tuple[UnreadableImage, ...] = ()
    if isinstance(dataset, FixedSizeDataset):
        images = _transform_many(dataset.take(indices), preprocess, augment, rng)
        weights = np.ones(len(indices), np.float32)
    else:
        images, weights, bad = _transform_each(dataset, indices, preprocess, augment, rng)
    return Batch(
        images=torch.from_numpy(np.ascontiguousarray(images)),
        labels=torch.from_numpy(dataset.labels[indices]),
        weights=torch.from_numpy(weights),
        indices=torch.from_numpy(indices),
        mix=mix,
        bad=bad,
    )


def _transform_many(
    pixels: np.ndarray, preprocess: Preprocess, augment: Augment | None, rng: CounterRNG | None
) -> np.ndarray:
    if augment is None or rng is None:
        return eval_pixels(pixels, preprocess)
    return train_pixels(pixels, augment, preprocess, rng)


def _transform_each(
    dataset: ImageDataset,
    indices: np.ndarray,
    preprocess: Preprocess,
    augment: Augment | None,
    rng: CounterRNG | None,
) -> tuple[np.ndarray, np.ndarray, tuple[UnreadableImage, ...]]:
    """Fill a batch; an image that can't be used is black, has weight 0, and is reported."""
    images = blank_inputs(len(indices), preprocess)
    weights = np.ones(len(indices), np.float32)
    bad: list[UnreadableImage] = []
    rows = rng.rows() if rng is not None else [None] * len(indices)
    for place, (index, row) in enumerate(zip(indices.tolist(), rows, strict=True)):
        try:
            content = dataset.read(index)
            if augment is None or row is None:
                images[place] = eval_input(content, preprocess)
            else:
                images[place] = train_image(content, augment, preprocess, row)
        except ImageError as error:
            bad.append(dataset.unreadable(index, str(error), error.kind))
            weights[place] = 0
        except OSError as error:  # removed or made unreadable since the folder was listed
            reason = error.strerror or str(error)
            bad.append(dataset.unreadable(index, reason, "unreadable"))
            weights[place] = 0
    return images, weights, tuple(bad)
