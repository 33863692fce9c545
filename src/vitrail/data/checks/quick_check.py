"""A look at all images before a run: files that can't be read, and leaks between the splits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from vitrail.config import InputError
from vitrail.data.checks.near_duplicates import SMALLEST, near_duplicates, perceptual_hash
from vitrail.data.dataset import ImageDataset, select
from vitrail.data.datasets.look import ADVICE
from vitrail.data.decoding.decode import ImageError, decode, read_header, read_values
from vitrail.data.decoding.reading import show_level, value_range

MOST = 10_000
"""Images that are looked at; `vitrail data check` takes any number."""
_SIDE = 4 * SMALLEST  # of the reduced image that a JPEG is decoded to
_FEW = 64  # images of a larger dataset that are looked at
Range = tuple[float, float]
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
    constant: tuple[str, ...] = ()
    """Images of one color."""
    images: int = 0
    """Images that were looked at."""
    first: str = ""
    """Why the first unreadable file can't be read."""
    clipped: dict[str, Range] = field(default_factory=dict)
    """Images with values outside the levels of black and white, each with its range."""
    levels: Range | None = None

    def refuse(self, allowed: float) -> None:
        """Raise InputError if more of the images can't be read than a run allows."""
        if self.unreadable and len(self.unreadable) > allowed * self.images:
            raise InputError(
                f"{len(self.unreadable):,} of {self.images:,} images can't be read, more than the "
                f"{allowed:.0%} that are allowed (max_unreadable), such as {self.unreadable[0]}: "
                f"{self.first}; {self.lacking or ADVICE}"
            )

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
        if self.constant:
            some = ", ".join(self.constant[:3])
            one = len(self.constant) == 1
            images = "1 image is" if one else f"{len(self.constant):,} images are"
            found.append(f"{images} of one color, and nothing can be learned from it: {some}")
        if self.clipped and self.levels is not None:
            found.append(say_clipped(self.clipped, self.levels))
        if self.leaks:
            found.append(
                f"{len(self.leaks):,} of {self.val_images:,} validation images look like training "
                f"images, which makes the accuracy too high: {self.leaks[0][0]} looks like "
                f"{self.leaks[0][1]}; 'vitrail data check DATA --out FILE' lists all"
            )
        return tuple(found)


def quick_check(train: ImageDataset, val: ImageDataset, most: int = MOST) -> QuickCheck | None:
    """Look at all images of a run, decoded small; at a few where there are more than `most`.

    None if there are too many and a few show nothing.
    """
    if len(train) + len(val) > most:
        few = np.linspace(0, len(train) - 1, min(len(train), _FEW)).round().astype(int)
        found = quick_check(select(train, few), select(val, few[:0]), _FEW)
        return found if found is not None and len(found.unreadable) == len(few) else None
    hashes: list[bytes] = []
    unreadable: list[str] = []
    constant: list[str] = []
    clipped = dict[str, Range]()
    lacking = first = ""
    for dataset in (train, val):
        for index in range(len(dataset)):
            hashes.append(b"")
            try:
                content = dataset.read(index)
                pixels = None if isinstance(content, np.ndarray) else _pixels(dataset, content)
                if isinstance(content, bytes) and (ends := range_outside(dataset, content)):
                    clipped[dataset.where(index)] = ends
            except (ImageError, OSError) as error:
                unreadable.append(dataset.where(index))
                first = first or getattr(error, "strerror", None) or str(error)
                if isinstance(error, ImageError) and error.kind == "missing package":
                    lacking = str(error)
                continue
            if pixels is not None:
                hashes[-1] = perceptual_hash(pixels)
                if is_constant(pixels):
                    constant.append(dataset.where(index))
    leaks: list[tuple[str, str]] = []
    for group in near_duplicates(hashes):
        seen = [index for index in group if index < len(train)]
        if seen:
            where = train.where(seen[0])
            leaks += [(val.where(i - len(train)), where) for i in group if i >= len(train)]
    return QuickCheck(
        tuple(unreadable),
        tuple(leaks),
        len(val),
        lacking,
        tuple(constant),
        len(train) + len(val),
        first,
        clipped,
        None if train.reading is None else train.reading.levels,
    )


def is_constant(pixels: np.ndarray) -> bool:
    """Tell whether all pixels (height, width, channels) have one color."""
    return bool((pixels == pixels[0, 0]).all())


def range_outside(dataset: ImageDataset, content: bytes) -> Range | None:
    """Return the smallest and largest value of an image of which some are clipped; else None."""
    reading = dataset.reading
    if reading is None or reading.levels is None or reading.page == "mean":
        return None
    header = read_header(content)
    pages = range(1, header.pages + 1)
    if reading.page != "max":
        pages = pages[reading.page - 1 : reading.page]
    ends = list[Range]()
    for page in pages:
        values = read_values(content, header, page=page)
        if values is not None and values.dtype != np.uint8 and (found := value_range(values)):
            ends.append(found)
    if not ends:
        return None
    low, high = min(each for each, _ in ends), max(each for _, each in ends)
    return None if reading.levels[0] <= low and high <= reading.levels[1] else (low, high)


def say_clipped(clipped: Mapping[str, Range], levels: Range) -> str:
    """Say which images have values outside the levels, and which levels would keep them."""
    low = min(levels[0], *(each for each, _ in clipped.values()))
    high = max(levels[1], *(each for _, each in clipped.values()))
    now, then = ("-".join(map(show_level, ends)) for ends in (levels, (low, high)))
    images = "1 image has" if len(clipped) == 1 else f"{len(clipped):,} images have"
    return (
        f"{images} values outside levels={now}, which are clipped: "
        f"{', '.join(list(clipped)[:3])}; DATA,levels={then} keeps them"
    )


def _pixels(dataset: ImageDataset, content: bytes) -> np.ndarray | None:
    """Decode an image small; None for one that is not compared."""
    header = read_header(content)
    if header.width * header.height > _LARGEST:
        return None
    shrink = max(min(header.height, header.width) / _SIDE, 1.0)
    return decode(
        content, channels=header.channels, header=header, shrink=shrink, reading=dataset.reading
    )
