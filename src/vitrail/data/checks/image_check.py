"""Check images one by one in worker processes.

One that crashes the decoder is named and does not end the check.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from math import sqrt
from typing import NamedTuple

import numpy as np

from vitrail.data.checks.near_duplicates import SMALLEST, perceptual_hash
from vitrail.data.checks.quick_check import Range, is_constant, range_outside
from vitrail.data.dataset import ImageDataset, UnreadableImage
from vitrail.data.decoding.decode import ImageError, Limits, decode, read_header
from vitrail.data.loader import Loader, LoaderConfig, WorkerError

ENOUGH = 1_000_000  # pixels of each that are measured; larger images are shrunk
_ALONE = LoaderConfig(workers=1, kind="processes")


class ImageInfo(NamedTuple):
    """What was found out about one image."""

    digest: bytes
    """A hash of its file, to find copies."""
    appearance: bytes
    """A hash of what it looks like, to find images that are nearly the same."""
    shape: tuple[int, int]
    """Height and width, as displayed."""
    mode: str
    """File format and pixel mode, such as `JPEG RGB`."""
    moments: tuple[tuple[float, ...], tuple[float, ...]] | None
    """Mean of the pixels (0 to 1) and of their squares per channel, if measured."""
    bad: UnreadableImage | None = None
    constant: bool = False
    """Whether it has one color."""
    clipped: Range | None = None
    """The range of its values, if some are outside the levels of black and white."""


class ImageChecker:
    """Checks images of several datasets; sent once to each worker."""

    def __init__(
        self, splits: Mapping[str, ImageDataset], measured: set[tuple[str, int]], limits: Limits
    ) -> None:
        self._splits, self._measured, self._limits = splits, measured, limits

    def look(self, task: tuple[str, range]) -> list[ImageInfo]:
        """Check some images of a split."""
        _silence_decoders()
        split, indices = task
        return [self._look(self._splits[split], i, (split, i) in self._measured) for i in indices]

    def _look(self, dataset: ImageDataset, index: int, measure: bool) -> ImageInfo:
        clipped = None
        try:
            content = dataset.read(index)
            if isinstance(content, np.ndarray):
                digest = hashlib.blake2b(content.tobytes(), digest_size=16).digest()
                mode, pixels = f"{content.shape[2]} channels", content
                shape = content.shape[:2]
            else:
                digest = hashlib.blake2b(content, digest_size=16).digest()
                header = read_header(content, self._limits)
                # An eighth of a JPEG shows damage as well as all of it, and much sooner.
                shrink = max(min(header.height, header.width) / SMALLEST, 1.0)
                if measure:
                    shrink = sqrt(max(header.height * header.width / ENOUGH, 1))
                pixels = decode(
                    content,
                    channels=header.channels,
                    limits=self._limits,
                    header=header,
                    shrink=shrink,
                    reading=dataset.reading,
                )
                clipped = range_outside(dataset, content)
                mode, shape = f"{header.format} {header.mode}", (header.height, header.width)
        except ImageError as error:
            return _failed(UnreadableImage(dataset.where(index), str(error), error.kind))
        except OSError as error:
            reason = error.strerror or str(error)
            return _failed(UnreadableImage(dataset.where(index), reason, "unreadable"))
        moments = _moments(pixels) if measure else None
        look = perceptual_hash(pixels)
        return ImageInfo(digest, look, shape, mode, moments, None, is_constant(pixels), clipped)

    def crashed(self, split: str, index: int) -> ImageInfo:
        """Say of an image that it ended its worker."""
        where = self._splits[split].where(index)
        return _failed(UnreadableImage(where, "crashes the decoder", "crashes the decoder"))


@cache
def _silence_decoders() -> None:
    """Hide what C libraries print to stderr about broken files in a worker."""
    if multiprocessing.parent_process() is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def _failed(bad: UnreadableImage) -> ImageInfo:
    return ImageInfo(b"", b"", (0, 0), "", None, bad)


def _moments(pixels: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    step = int(sqrt(max(pixels.shape[0] * pixels.shape[1] / ENOUGH, 1)))
    flat = pixels[::step, ::step].reshape(-1, pixels.shape[2])
    counts = [np.bincount(flat[:, channel], minlength=256) for channel in range(flat.shape[1])]
    levels = np.arange(256) / 255
    means = (np.stack(counts) / len(flat)) @ np.stack([levels, levels**2], axis=1)
    return tuple(means[:, 0].tolist()), tuple(means[:, 1].tolist())


def check_each_image(
    checker: ImageChecker, tasks: Sequence[tuple[str, range]], config: LoaderConfig
) -> Iterator[list[ImageInfo]]:
    """Run the tasks in worker processes; images of a chunk that kills workers are tried alone."""
    waiting = deque(tasks)
    while waiting:
        try:
            for found in Loader(checker.look, list(waiting), config):
                waiting.popleft()
                yield found
        except WorkerError:
            split, indices = waiting.popleft()
            yield [_look_alone(checker, split, index) for index in indices]


def _look_alone(checker: ImageChecker, split: str, index: int) -> ImageInfo:
    try:
        ((look,),) = Loader(checker.look, [(split, range(index, index + 1))], _ALONE)
    except WorkerError:
        return checker.crashed(split, index)
    return look
