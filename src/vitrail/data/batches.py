"""Batches as pure functions of their number: what makes resume, workers and processes exact.

Training sees one endless row of images, epoch after epoch, each in its own order; batch `step`
is positions [step * batch, (step + 1) * batch) of it, and a process makes its slice of that. So
nothing but the step is needed to go on after a restart. Evaluation sees each image once, the
last partial batch too.

Repeated augmentation has each image stand in the row several times, side by side, each time
augmented anew; within its batch the first copies then come first, so that neighbors differ.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from vitrail.config import InputError
from vitrail.data.dataset import FixedSizeDataset, ImageDataset, UnreadableImage
from vitrail.data.decoding.decode import ImageError
from vitrail.data.rng import CounterRNG, shuffled
from vitrail.data.transforms.apply import eval_image, eval_pixels, train_image, train_pixels
from vitrail.data.transforms.augment import Augment
from vitrail.data.transforms.mixing import Mix, draw_mix, mix_images, mix_targets, soft_targets
from vitrail.data.transforms.preprocess import Preprocess
from vitrail.distributed import ALONE, Shard

_COPY = 1 << 40  # between the keys of an image's copies; no set has so many images


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Some images as uint8, to be normalized where the model is.

    With a `mix` that is still to be made, row 0 is only the partner of row 1.
    """

    images: Tensor
    """(n, height, width, channels), uint8."""
    labels: Tensor
    """(n) class numbers, or (n, classes): 0 and 1, or class probabilities if mixed."""
    weights: Tensor
    """(n) 1, or 0 for an image that could not be read, which must not count."""
    indices: Tensor
    """(n) each image's number in the source; in a stream, its place in the epoch."""
    copies: Tensor | None = None
    """(n) which copy of its image each is within the global batch: by repeated augmentation, or
    because the batch reaches into another epoch. None where all are first ones."""
    mix: Mix | None = None
    bad: tuple[UnreadableImage, ...] = ()

    @property
    def keys(self) -> Tensor:
        """Give each image a number for its own noise, which no other of the step has."""
        return self.indices if self.copies is None else self.indices + self.copies * _COPY


class TrainBatches:
    """Training batches by their number, for one process of several.

    Where the augmentation has mixup or CutMix, images come mixed and labels as class probabilities
    (n, classes). With `mixed=False` a batch says how it is to be mixed instead, so that this is
    done on the device; its first row is then only the partner of the second.
    """

    def __init__(
        self,
        source: ImageDataset,
        augment: Augment,
        preprocess: Preprocess,
        *,
        batch: int,
        seed: int,
        shard: Shard = ALONE,
        repeats: int = 1,
        mixed: bool = True,
    ) -> None:
        if not len(source):
            raise InputError(f"{source.name} has no images to train on")
        check_batch(batch, shard)
        self.source, self.augment, self.preprocess = source, augment, preprocess
        self.batch, self.seed, self.shard, self.repeats = batch, seed, shard, repeats
        self.mixed = mixed

    def __getitem__(self, step: int) -> Batch:
        """Make this process's part of a global batch."""
        mix = draw_mix(self.augment, self.preprocess.size, self.seed, step)
        places = places_of(self.batch, self.shard, partner=mix is not None)
        row = step * self.batch + np.arange(self.batch)
        positions, copies = np.divmod(row[sort_copies(row % self.repeats)[places]], self.repeats)
        epochs, indices = self._images_at(positions)
        draws = CounterRNG(self.seed, "image", epochs * self.repeats + copies, indices)
        made = assemble(self.source, indices, self.preprocess, self.augment, draws, mix)
        first = row[0] // self.repeats // len(self.source)
        made = replace(made, copies=number_copies(epochs - first, copies, self.repeats))
        return mix_batch(made, len(self.source.classes)) if self.mixed else made

    def _images_at(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Look up which images stand at positions of the endless row: epochs and indices."""
        epochs, within = np.divmod(positions, len(self.source))
        indices = np.empty_like(positions)
        for epoch in np.unique(epochs):
            here = epochs == epoch
            indices[here] = _order(len(self.source), self.seed, int(epoch))[within[here]]
        return epochs, indices


def mix_batch(batch: Batch, classes: int) -> Batch:
    """Mix images and labels as a batch says, and drop the row that is only a partner."""
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
    """Say which places of a global batch a process makes.

    Mixing joins each image with the one before it, the first with the last; so that this does
    not depend on the number of processes, each also makes the image before its own.
    """
    start, stop = shard.slice_of(0, batch)
    return np.arange(start - partner, stop) % batch


@lru_cache(maxsize=3)
def _order(count: int, seed: int, epoch: int) -> np.ndarray:
    return shuffled(count, seed, "order", epoch)


def sort_copies(copies: np.ndarray) -> np.ndarray:
    """Order a global batch: all first copies of its images, then all second ones, and so on.

    Copies side by side would be mixed with each other.
    """
    return np.argsort(copies, kind="stable")


def number_copies(epochs: np.ndarray, copies: np.ndarray, repeats: int) -> Tensor | None:
    """Give each copy of an image in a global batch another number, over its epochs (from 0)."""
    numbers = epochs * repeats + copies
    return torch.from_numpy(numbers) if numbers.any() or repeats > 1 else None


def check_batch(batch: int, shard: Shard) -> None:
    """Refuse a global batch that the processes can't share evenly."""
    if batch < 1 or batch % shard.count:
        fits = ", ".join(str(n) for n in range(1, batch + 1) if batch % n == 0)
        hint = f"; it can be shared by {fits}" if fits else "; it is at least 1"
        raise InputError(f"a global batch of {batch} on {shard.count} processes{hint}")


class EvalBatches:
    """Each image of a source once, in its order, for one process of several."""

    def __init__(
        self, source: ImageDataset, preprocess: Preprocess, *, batch: int, shard: Shard = ALONE
    ) -> None:
        if batch < 1:
            raise InputError(f"a batch has at least 1 image, not {batch}")
        self.source, self.preprocess, self.batch, self.shard = source, preprocess, batch, shard

    def __len__(self) -> int:
        return -(-len(self.source) // self.batch)

    def __getitem__(self, step: int) -> Batch:
        """Make this process's part of a batch; it may be empty at the end."""
        if not 0 <= step < len(self):
            raise IndexError(step)
        stop = min((step + 1) * self.batch, len(self.source))
        indices = np.arange(*self.shard.slice_of(step * self.batch, stop))
        return assemble(self.source, indices, self.preprocess)


def assemble(
    source: ImageDataset,
    indices: np.ndarray,
    preprocess: Preprocess,
    augment: Augment | None = None,
    draws: CounterRNG | None = None,
    mix: Mix | None = None,
) -> Batch:
    """Read, decode and transform images; without an augmentation, as evaluation does."""
    bad: tuple[UnreadableImage, ...] = ()
    if isinstance(source, FixedSizeDataset):
        images = _transform_many(source.take(indices), preprocess, augment, draws)
        weights = np.ones(len(indices), np.float32)
    else:
        images, weights, bad = _transform_each(source, indices, preprocess, augment, draws)
    return Batch(
        images=torch.from_numpy(np.ascontiguousarray(images)),
        labels=torch.from_numpy(source.labels[indices]),
        weights=torch.from_numpy(weights),
        indices=torch.from_numpy(indices),
        mix=mix,
        bad=bad,
    )


def _transform_many(
    pixels: np.ndarray, preprocess: Preprocess, augment: Augment | None, draws: CounterRNG | None
) -> np.ndarray:
    if augment is None or draws is None:
        return eval_pixels(pixels, preprocess)
    return train_pixels(pixels, augment, preprocess, draws)


def _transform_each(
    source: ImageDataset,
    indices: np.ndarray,
    preprocess: Preprocess,
    augment: Augment | None,
    draws: CounterRNG | None,
) -> tuple[np.ndarray, np.ndarray, tuple[UnreadableImage, ...]]:
    """Fill a batch; an image that can't be used leaves a black one with weight 0, and its name."""
    images = np.zeros((len(indices), *preprocess.size, preprocess.channels), np.uint8)
    weights = np.ones(len(indices), np.float32)
    bad: list[UnreadableImage] = []
    rows = draws.rows() if draws is not None else [None] * len(indices)
    for place, (index, row) in enumerate(zip(indices.tolist(), rows, strict=True)):
        try:
            content = source.read(index)
            if augment is None or row is None:
                images[place] = eval_image(content, preprocess)
            else:
                images[place] = train_image(content, augment, preprocess, row)
        except ImageError as error:
            bad.append(source.unreadable(index, str(error), error.kind))
            weights[place] = 0
        except OSError as error:  # vanished, or lost its permission, since the folder was read
            reason = error.strerror or str(error)
            bad.append(source.unreadable(index, reason, "unreadable"))
            weights[place] = 0
    return images, weights, tuple(bad)
