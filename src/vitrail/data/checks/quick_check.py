"""A look at all images before a run: files that can't be read, and leaks between the splits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vitrail.data.checks.near_duplicates import SMALLEST, near_duplicates, perceptual_hash
from vitrail.data.dataset import ImageDataset
from vitrail.data.decoding.decode import ImageError, decode, read_header

MOST = 10_000
"""Images that are looked at; `vitrail data check` takes any number."""
_SIDE = 4 * SMALLEST  # of the reduced image that a JPEG is decoded to
_LARGEST = 20_000_000  # pixels of an image that is compared


@dataclass(frozen=True)
class QuickCheck:
    """What is wrong with the images of a run."""

    unreadable: tuple[str, ...]
    leaks: tuple[tuple[str, str], ...]
    """Validation images that look like a training image, each with one of these."""
    val_images: int
    lacking: str = ""
    """What some of the unreadable files need, if it is not installed."""

    def notes(self) -> tuple[str, ...]:
        """Say it, one line each."""
        found = []
        if self.unreadable:
            some = ", ".join(self.unreadable[:3])
            one = len(self.unreadable) == 1
            files = (
                "1 file can't be read and is"
                if one
                else f"{len(self.unreadable):,} files can't be read and are"
            )
            found.append(f"{files} skipped: {some}" + (self.lacking and f"; {self.lacking}"))
        if self.leaks:
            found.append(
                f"{len(self.leaks):,} of {self.val_images:,} validation images look like training "
                f"images, which makes the accuracy too high: {self.leaks[0][0]} looks like "
                f"{self.leaks[0][1]}; 'vitrail data check DATA --out FILE' lists all"
            )
        return tuple(found)


def quick_check(train: ImageDataset, val: ImageDataset, most: int = MOST) -> QuickCheck | None:
    """Look at all images of a run, decoded small; None where there are more than `most`."""
    if len(train) + len(val) > most:
        return None
    hashes: list[bytes] = []
    unreadable: list[str] = []
    lacking = ""
    for dataset in (train, val):
        for index in range(len(dataset)):
            hashes.append(b"")
            try:
                hashes[-1] = _hash(dataset, index)
            except (ImageError, OSError) as error:
                unreadable.append(dataset.where(index))
                if isinstance(error, ImageError) and error.kind == "missing package":
                    lacking = str(error)
    leaks: list[tuple[str, str]] = []
    for group in near_duplicates(hashes):
        seen = [index for index in group if index < len(train)]
        if seen:
            where = train.where(seen[0])
            leaks += [(val.where(i - len(train)), where) for i in group if i >= len(train)]
    return QuickCheck(tuple(unreadable), tuple(leaks), len(val), lacking)


def _hash(dataset: ImageDataset, index: int) -> bytes:
    """Hash what an image looks like; empty for one that has no hash."""
    content = dataset.read(index)
    if isinstance(content, np.ndarray):
        return b""
    header = read_header(content)
    if header.width * header.height > _LARGEST:
        return b""
    shrink = max(min(header.height, header.width) / _SIDE, 1.0)
    pixels = decode(
        content, channels=header.channels, header=header, shrink=shrink, reading=dataset.reading
    )
    return perceptual_hash(pixels)
