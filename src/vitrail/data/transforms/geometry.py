"""Crop boxes: random ones for training, centered ones for evaluation."""

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
"""Longest image, in inputs side by side; of a longer one only the middle is used."""


class Box(NamedTuple):
    """A crop box, in whole pixels."""

    top: int
    left: int
    height: int
    width: int

    def cut(self, image: np.ndarray) -> np.ndarray:
        """Crop an image, as a view."""
        bottom, right = self.top + self.height, self.left + self.width
        return image[self.top : bottom, self.left : right]


def random_box(rng: CounterRNG, height: int, width: int, augment: Augment) -> Box:
    """Sample the box of a crop, `inception` or `area`."""
    return _RULES[augment.crop].sample(rng, height, width, augment.area, augment.ratio)


def random_boxes(
    rng: CounterRNG, height: int, width: int, augment: Augment
) -> tuple[np.ndarray, list[CounterRNG]]:
    """Sample a box for each of many images of one size: int64 (images, 4).

    Each is what `random_box` samples for that image alone. Also returns each image's generator, for
    what follows the crop.
    """
    rule = _RULES[augment.crop]
    boxes, found = rule.attempt(rng, height, width, augment.area, augment.ratio)
    rows = rng.rows()
    for row in np.flatnonzero(~found):
        boxes[row] = rule.sample(rows[row], height, width, augment.area, augment.ratio, tried=1)
    return boxes, rows


class _Rule(NamedTuple):
    """How boxes are sampled: in attempts, each with boxes and which of them are valid."""

    attempt: Callable[[CounterRNG, int, int, Range, Range], tuple[np.ndarray, np.ndarray]]
    tries: int
    otherwise: Callable[[int, int, Range], Box]

    def sample(
        self, rng: CounterRNG, height: int, width: int, area: Range, ratio: Range, tried: int = 0
    ) -> Box:
        for _ in range(tried, self.tries):
            boxes, found = self.attempt(rng, height, width, area, ratio)
            if found[0]:
                return Box(*boxes[0].tolist())
        return self.otherwise(height, width, ratio)


def _try_inception(
    rng: CounterRNG, height: int, width: int, area: Range, ratio: Range
) -> tuple[np.ndarray, np.ndarray]:
    """Sample as TensorFlow's sample_distorted_bounding_box: uniform aspect ratio and height.

    Small boxes are more frequent than with a uniform area.
    """
    least, most = area[0] * height * width, area[1] * height * width
    aspect = rng.uniform(*ratio)
    high = np.rint(np.sqrt(most / aspect))
    fits = np.floor((width + 0.5 - 1e-7) / aspect)  # the tallest that is not too wide
    fits -= np.rint(fits * aspect) > width
    high = np.minimum(np.where(np.rint(high * aspect) > width, fits, high), height)
    low = np.minimum(np.rint(np.sqrt(least / aspect)), high)
    tall = low + np.floor(rng.uniform() * (high - low + 1))
    wide = np.rint(tall * aspect)
    tall += tall * wide < least  # a box that rounding made too small, then one made too large
    wide = np.rint(tall * aspect)
    tall -= tall * wide > most
    wide = np.rint(tall * aspect)
    found = (least <= tall * wide) & (tall * wide <= most)
    found &= (tall > 0) & (tall <= height) & (wide > 0) & (wide <= width)
    # TensorFlow's bound is exclusive: a box that could be moved never touches the far edge.
    top, left = rng.uniform() * (height - tall), rng.uniform() * (width - wide)
    return np.stack([top, left, tall, wide], axis=1).astype(np.int64), found


def _try_area(
    rng: CounterRNG, height: int, width: int, area: Range, ratio: Range
) -> tuple[np.ndarray, np.ndarray]:
    """Sample as torchvision's and timm's RandomResizedCrop: uniform area and log aspect ratio."""
    part = rng.uniform(*area) * height * width
    aspect = np.exp(rng.uniform(math.log(ratio[0]), math.log(ratio[1])))
    tall, wide = np.rint(np.sqrt(part / aspect)), np.rint(np.sqrt(part * aspect))
    found = (tall > 0) & (tall <= height) & (wide > 0) & (wide <= width)
    top, left = rng.uniform() * (height - tall + 1), rng.uniform() * (width - wide + 1)
    return np.stack([top, left, tall, wide], axis=1).astype(np.int64), found


def _center(height: int, width: int, ratio: Range) -> Box:
    """Return the largest centered box with an aspect ratio within the range."""
    tall = min(height, max(1, round(width / ratio[0])))
    wide = min(width, max(1, round(height * ratio[1])))
    return Box((height - tall) // 2, (width - wide) // 2, tall, wide)


_RULES = {
    "inception": _Rule(_try_inception, 100, lambda height, width, _: Box(0, 0, height, width)),
    "area": _Rule(_try_area, 10, _center),
}


class Fitting(NamedTuple):
    """How an image gets the model's size: crop, resize, crop."""

    before: Box
    size: Size
    after: Box


def fit_to_size(height: int, width: int, preprocess: Preprocess) -> Fitting:
    """Work out how evaluation fits an image to the model's size."""
    rows, columns = preprocess.size
    tall, wide = large = size_before_crop(preprocess)
    if preprocess.fit == "stretch":
        after = Box((tall - rows) // 2, (wide - columns) // 2, rows, columns)
        return Fitting(Box(0, 0, height, width), (tall, wide), after)
    before = middle(height, width, preprocess.size)
    if preprocess.fit == "small":
        tall, wide = small_size(before.height, before.width, large)
        after = Box((tall - rows) // 2, (wide - columns) // 2, rows, columns)
        return Fitting(before, (tall, wide), after)
    tall, wide = _cover(before.height, before.width, large)
    half = math.floor if preprocess.center == "floor" else round
    after = Box(half((tall - rows) / 2), half((wide - columns) / 2), rows, columns)
    return Fitting(before, (tall, wide), after)


def size_before_crop(preprocess: Preprocess) -> Size:
    """Return the size that the model's own is cut from, if the image has its shape."""
    # The nudge is for a crop that was computed as 224 / 232 and must give 232 again.
    height, width = (side / preprocess.crop + 1e-6 for side in preprocess.size)
    half = math.floor if preprocess.fit == "crop" else round
    return half(height), half(width)


def fit_to_patches(height: int, width: int, patch: int, budget: int) -> Size:
    """Return the largest size of whole patches within a budget, at about the same aspect ratio.

    The search is that of transformers (SigLIP 2) and timm (NaFlex), whose rounding it has.
    """

    def scaled(scale: float) -> Size:
        rows, columns = (math.ceil(side * scale / patch) for side in (height, width))
        return max(1, rows) * patch, max(1, columns) * patch

    low, high = 1e-6, 100.0
    while high - low >= 1e-5:
        scale = (low + high) / 2
        tall, wide = scaled(scale)
        if tall // patch * (wide // patch) <= budget:
            low = scale
        else:
            high = scale
    return scaled(low)


def middle(height: int, width: int, size: Size) -> Box:
    """Return the whole image, or the middle of a strip that would take gigabytes once resized."""
    most = math.ceil(_STRIP * min(height, width) * max(size) / min(size))
    tall, wide = min(height, most), min(width, most)
    return Box((height - tall) // 2, (width - wide) // 2, tall, wide)


def _cover(height: int, width: int, size: Size) -> Size:
    """Return the size that covers another at the same aspect ratio, as torchvision or timm do."""
    if size[0] == size[1]:
        short, long = size[0], int(size[0] * max(height, width) / min(height, width))
        return (long, short) if width <= height else (short, long)
    ratio = min(height / size[0], width / size[1])
    return round(height / ratio), round(width / ratio)


def small_size(height: int, width: int, size: Size) -> Size:
    """Return the size that covers another at the same aspect ratio, as big_vision does."""
    tall, wide = np.float32(height), np.float32(width)  # TensorFlow's type, which decides ties
    factor = max(np.float32(size[0]) / tall, np.float32(size[1]) / wide)
    return int(np.rint(tall * factor)), int(np.rint(wide * factor))
