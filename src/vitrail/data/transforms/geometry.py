"""Which part of an image is taken: at random to train on, in the middle to evaluate."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from vitrail.data.rng import CounterRNG
from vitrail.data.transforms.augment import Augment
from vitrail.data.transforms.preprocess import Preprocess

Size = tuple[int, int]
"""Height and width."""
Range = tuple[float, float]

_STRIP = 16
"""How many inputs side by side an image may hold; of a longer one, the middle is taken first."""


class Box(NamedTuple):
    """A part of an image, in whole pixels."""

    top: int
    left: int
    height: int
    width: int

    def cut(self, image: np.ndarray) -> np.ndarray:
        """Take the part of an image, as a view."""
        bottom, right = self.top + self.height, self.left + self.width
        return image[self.top : bottom, self.left : right]


def inception_box(draws: CounterRNG, height: int, width: int, area: Range, ratio: Range) -> Box:
    """Draw a box by the rule of TensorFlow's sample_distorted_bounding_box.

    The ratio is uniform, and so is the height, up to the largest that fits: small boxes come more
    often than they would with a uniform area.
    """
    return _INCEPTION.draw(draws, height, width, area, ratio)


def area_box(draws: CounterRNG, height: int, width: int, area: Range, ratio: Range) -> Box:
    """Draw a box by the rule of torchvision's and timm's RandomResizedCrop.

    The area is uniform, and so is the logarithm of the ratio.
    """
    return _AREA.draw(draws, height, width, area, ratio)


def random_boxes(
    draws: CounterRNG, height: int, width: int, augment: Augment
) -> tuple[np.ndarray, list[CounterRNG]]:
    """Draw a box for each of many images of one size: int64 (images, 4).

    Each is what `inception_box` or `area_box` draws for that image alone. Also gives each
    image's draws, which go on where its last try stands.
    """
    rule = _INCEPTION if augment.crop == "inception" else _AREA
    boxes, found = rule.attempt(draws, height, width, augment.area, augment.ratio)
    rows = draws.rows()
    for row in np.flatnonzero(~found):
        boxes[row] = rule.draw(rows[row], height, width, augment.area, augment.ratio, tried=1)
    return boxes, rows


class _Rule(NamedTuple):
    """How boxes are drawn: in tries, which give boxes and say which of them will do."""

    attempt: Callable[[CounterRNG, int, int, Range, Range], tuple[np.ndarray, np.ndarray]]
    tries: int
    otherwise: Callable[[int, int, Range], Box]

    def draw(
        self, draws: CounterRNG, height: int, width: int, area: Range, ratio: Range, tried: int = 0
    ) -> Box:
        for _ in range(tried, self.tries):
            boxes, found = self.attempt(draws, height, width, area, ratio)
            if found[0]:
                return Box(*boxes[0].tolist())
        return self.otherwise(height, width, ratio)


def _try_inception(
    draws: CounterRNG, height: int, width: int, area: Range, ratio: Range
) -> tuple[np.ndarray, np.ndarray]:
    least, most = area[0] * height * width, area[1] * height * width
    aspect = draws.uniform(*ratio)
    high = np.rint(np.sqrt(most / aspect))
    fits = np.floor((width + 0.5 - 1e-7) / aspect)  # the tallest that is not too wide
    fits -= np.rint(fits * aspect) > width
    high = np.minimum(np.where(np.rint(high * aspect) > width, fits, high), height)
    low = np.minimum(np.rint(np.sqrt(least / aspect)), high)
    tall = low + np.floor(draws.uniform() * (high - low + 1))
    wide = np.rint(tall * aspect)
    tall += tall * wide < least  # a box that rounding made too small, then one made too large
    wide = np.rint(tall * aspect)
    tall -= tall * wide > most
    wide = np.rint(tall * aspect)
    found = (least <= tall * wide) & (tall * wide <= most)
    found &= (tall > 0) & (tall <= height) & (wide > 0) & (wide <= width)
    # TensorFlow's bound is exclusive: a box that could be moved never touches the far edge.
    top, left = draws.uniform() * (height - tall), draws.uniform() * (width - wide)
    return np.stack([top, left, tall, wide], axis=1).astype(np.int64), found


def _try_area(
    draws: CounterRNG, height: int, width: int, area: Range, ratio: Range
) -> tuple[np.ndarray, np.ndarray]:
    part = draws.uniform(*area) * height * width
    aspect = np.exp(draws.uniform(math.log(ratio[0]), math.log(ratio[1])))
    tall, wide = np.rint(np.sqrt(part / aspect)), np.rint(np.sqrt(part * aspect))
    found = (tall > 0) & (tall <= height) & (wide > 0) & (wide <= width)
    top, left = draws.uniform() * (height - tall + 1), draws.uniform() * (width - wide + 1)
    return np.stack([top, left, tall, wide], axis=1).astype(np.int64), found


def _whole(height: int, width: int, _ratio: Range) -> Box:
    return Box(0, 0, height, width)


def _centre(height: int, width: int, ratio: Range) -> Box:
    """Give the largest box in the middle that has a ratio within the range."""
    tall = min(height, max(1, round(width / ratio[0])))
    wide = min(width, max(1, round(height * ratio[1])))
    return Box((height - tall) // 2, (width - wide) // 2, tall, wide)


_INCEPTION = _Rule(_try_inception, 100, _whole)
_AREA = _Rule(_try_area, 10, _centre)


class Fitting(NamedTuple):
    """How an image comes to the model's size: a part is resized, and a part of that is kept."""

    before: Box
    size: Size
    after: Box


def fit(height: int, width: int, preprocess: Preprocess) -> Fitting:
    """Say how evaluation fits an image of this size."""
    rows, columns = preprocess.size
    # Nudged, because a crop that was computed as 224 / 232 must give 232 again.
    large = [side / preprocess.crop + 1e-6 for side in preprocess.size]
    if preprocess.fit == "stretch":
        tall, wide = round(large[0]), round(large[1])
        after = Box((tall - rows) // 2, (wide - columns) // 2, rows, columns)
        return Fitting(Box(0, 0, height, width), (tall, wide), after)
    before = middle(height, width, preprocess.size)
    if preprocess.fit == "small":
        size = round(large[0]), round(large[1])
        tall, wide = small_size(before.height, before.width, size)
        after = Box((tall - rows) // 2, (wide - columns) // 2, rows, columns)
        return Fitting(before, (tall, wide), after)
    tall, wide = _cover(before.height, before.width, (math.floor(large[0]), math.floor(large[1])))
    after = Box(round((tall - rows) / 2), round((wide - columns) / 2), rows, columns)
    return Fitting(before, (tall, wide), after)


def middle(height: int, width: int, size: Size) -> Box:
    """Give the whole image, or the middle of a strip that would take gigabytes once resized."""
    most = math.ceil(_STRIP * min(height, width) * max(size) / min(size))
    tall, wide = min(height, most), min(width, most)
    return Box((height - tall) // 2, (width - wide) // 2, tall, wide)


def _cover(height: int, width: int, size: Size) -> Size:
    """Give the size that covers another and keeps the shape: torchvision's, or else timm's."""
    if size[0] == size[1]:
        short, long = size[0], int(size[0] * max(height, width) / min(height, width))
        return (long, short) if width <= height else (short, long)
    ratio = min(height / size[0], width / size[1])
    return round(height / ratio), round(width / ratio)


def small_size(height: int, width: int, size: Size) -> Size:
    """Give the size that covers another and keeps the shape, as big_vision's resize_small does."""
    tall, wide = np.float32(height), np.float32(width)  # TensorFlow's type, which decides ties
    factor = max(np.float32(size[0]) / tall, np.float32(size[1]) / wide)
    return int(np.rint(tall * factor)), int(np.rint(wide * factor))
