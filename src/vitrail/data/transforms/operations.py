"""Augmentation of one image after its crop: RandAugment, color jitter, random erasing.

All are pure functions of the image and its random numbers. They are made for RGB; with other
channels, color and hue are left alone, and the rest is done to each channel.
"""

from __future__ import annotations

import math

import numpy as np
from PIL import Image

from vitrail.data.rng import CounterRNG, words
from vitrail.data.transforms.augment import Augment, RandAugment
from vitrail.data.transforms.filters import (
    TENSORFLOW_GRAY,
    Outside,
    autocontrast,
    blend,
    equalize,
    gray,
    mean_gray,
    posterize,
    rotate,
    smooth,
    solarize,
    solarize_add,
    transform,
    turn_hue,
)
from vitrail.data.transforms.preprocess import Preprocess

BIG_VISION = (
    "AutoContrast", "Equalize", "Invert", "Rotate", "Posterize", "Solarize", "Color", "Contrast",
    "Brightness", "Sharpness", "ShearX", "ShearY", "TranslateX", "TranslateY", "Cutout",
    "SolarizeAdd",
)  # fmt: skip
"""The operations of big_vision's RandAugment."""
TORCHVISION = (
    "Identity", "ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate", "Brightness", "Color",
    "Contrast", "Sharpness", "Posterize", "Solarize", "AutoContrast", "Equalize",
)  # fmt: skip
"""The operations of torchvision's RandAugment."""
TIMM = (
    "AutoContrast", "Equalize", "Invert", "Rotate", "PosterizeIncreasing", "SolarizeIncreasing",
    "SolarizeAdd", "ColorIncreasing", "ContrastIncreasing", "BrightnessIncreasing",
    "SharpnessIncreasing", "ShearX", "ShearY", "TranslateXRel", "TranslateYRel",
)  # fmt: skip
"""The operations of timm's RandAugment where its policy has `inc1`."""
_SIDE = 224  # pixels of the images that big_vision's lengths are meant for
_TIE = 1 / 256  # of a pixel: rounds halves to the right, as TensorFlow does


def randaugment(
    image: np.ndarray, spec: RandAugment, rng: CounterRNG, preprocess: Preprocess | None = None
) -> np.ndarray:
    """Apply random operations one after the other, with the same magnitude or one for each.

    timm's take the gray beside a moved image, and what is between its pixels, from `preprocess`.
    """
    apply, largest = {
        "big_vision": (_apply_big_vision, 30),
        "torchvision": (_apply_torchvision, 30),
        "timm": (_apply_timm, 10),
    }[spec.operations]
    outside = _outside(spec, preprocess)
    for _ in range(spec.layers):
        if spec.probability < 1 and rng.uniform()[0] >= spec.probability:
            continue
        magnitude = spec.magnitude
        if spec.magnitude_std > 0:
            magnitude = min(max(magnitude + spec.magnitude_std * _draw_normal(rng), 0), largest)
        image = apply(image, magnitude, outside, rng)
    return image


def _outside(spec: RandAugment, preprocess: Preprocess | None) -> Outside:
    """Choose the color beside a moved image; timm resamples, the others take the nearest pixel."""
    usual = 128 if spec.operations == "big_vision" else 0
    if spec.operations != "timm":
        return Outside(usual if spec.fill is None else spec.fill)
    cubic, linear = Image.Resampling.BICUBIC, Image.Resampling.BILINEAR
    if preprocess is None:
        return Outside(128 if spec.fill is None else spec.fill, cubic)
    mean = tuple(min(255, max(0, round(255 * each))) for each in preprocess.mean)
    resample = linear if preprocess.interpolation == "bilinear" else cubic
    return Outside(mean if spec.fill is None else spec.fill, resample)


def _draw_normal(rng: CounterRNG) -> float:
    """Sample from a standard normal (Box and Muller)."""
    length = math.sqrt(-2 * math.log(1 - float(rng.uniform()[0])))
    return length * math.cos(2 * math.pi * float(rng.uniform()[0]))


def _apply_big_vision(
    image: np.ndarray, magnitude: float, outside: Outside, rng: CounterRNG
) -> np.ndarray:
    """Do what big_vision's pp/autoaugment.py does at 224 pixels, scaled to other sizes.

    Its lengths are pixels at any size; here they grow with the image. The flaws that AugReg was
    trained with are kept: Contrast blends with 196, which is 224 * 224 / 256 and not a mean (its
    issue 109); Solarize's threshold wraps at 256, so that it inverts everything at 10 and 20 (its
    issue 110); Posterize keeps more bits at higher magnitudes, and one bit at 0. So magnitude 0
    still changes images: only 7 of the 16 operations leave one unchanged.
    """
    part = magnitude / 10
    name = BIG_VISION[rng.below(len(BIG_VISION))[0]]
    signed = part if rng.uniform()[0] < 0.5 else -part
    factor, shear = part * 1.8 + 0.1, signed * 0.3
    height, width = image.shape[0] / _SIDE, image.shape[1] / _SIDE
    match name:
        case "AutoContrast":
            return autocontrast(image, np.float32)
        case "Equalize":
            return equalize(image)
        case "Invert":
            return 255 - image
        case "Rotate":
            return rotate(image, signed * 30, outside)
        case "Posterize":
            return posterize(image, min(max(int(part * 4), 1), 8))
        case "Solarize":
            return solarize(image, int(part * 256) % 256)
        case "Color":
            return blend(gray(image, TENSORFLOW_GRAY), image, factor)
        case "Contrast":
            return blend(_SIDE * _SIDE // 256, image, factor)
        case "Brightness":
            return blend(0, image, factor)
        case "Sharpness":
            return blend(smooth(image, add=0), image, factor)
        case "ShearX":  # by the index of a row, so about the first one's middle
            return transform(image, (1, shear, _TIE - shear / 2, 0, 1, 0), outside)
        case "ShearY":
            return transform(image, (1, 0, 0, shear, 1, _TIE - shear / 2), outside)
        case "TranslateX":
            return transform(image, (1, 0, signed * 100 * width, 0, 1, 0), outside)
        case "TranslateY":
            return transform(image, (1, 0, 0, 0, 1, signed * 100 * height), outside)
        case "Cutout":
            return _cut_out(image, int(part * 40 * height), int(part * 40 * width), rng)
        case _:
            return solarize_add(image, int(part * 110))


def _cut_out(image: np.ndarray, half_height: int, half_width: int, rng: CounterRNG) -> np.ndarray:
    """Fill a rectangle around a random pixel with gray, clipped to the image."""
    row, column = rng.below(image.shape[0])[0], rng.below(image.shape[1])[0]
    cut = image.copy()
    cut[max(row - half_height, 0) : row + half_height,
        max(column - half_width, 0) : column + half_width] = 128  # fmt: skip
    return cut


def _apply_torchvision(
    image: np.ndarray, magnitude: float, outside: Outside, rng: CounterRNG
) -> np.ndarray:
    """Do what torchvision's RandAugment does to PIL images, with its 31 magnitudes."""
    part = magnitude / 30
    name = TORCHVISION[rng.below(len(TORCHVISION))[0]]
    signed = part if rng.uniform()[0] < 0.5 else -part
    factor, shear = 1 + signed * 0.9, signed * 0.3
    match name:
        case "Identity":
            return image
        case "ShearX":
            return transform(image, (1, shear, 0, 0, 1, 0), outside)
        case "ShearY":
            return transform(image, (1, 0, 0, shear, 1, 0), outside)
        case "TranslateX":
            pixels = int(signed * 150 / 331 * image.shape[1])
            return transform(image, (1, 0, -pixels, 0, 1, 0), outside)
        case "TranslateY":
            pixels = int(signed * 150 / 331 * image.shape[0])
            return transform(image, (1, 0, 0, 0, 1, -pixels), outside)
        case "Rotate":
            return rotate(image, signed * 30, outside)
        case "Brightness":
            return blend(0, image, factor)
        case "Color":
            return blend(gray(image), image, factor)
        case "Contrast":
            return blend(mean_gray(image), image, factor)
        case "Sharpness":
            return blend(smooth(image), image, factor)
        case "Posterize":
            return posterize(image, 8 - round(part * 4))
        case "Solarize":
            return solarize(image, 255 - part * 255)
        case "AutoContrast":
            return autocontrast(image)
        case _:
            return equalize(image)


def _apply_timm(
    image: np.ndarray, magnitude: float, outside: Outside, rng: CounterRNG
) -> np.ndarray:
    """Do what timm's auto_augment.py does where its policy has `inc1`; magnitude 10 is full."""
    part = magnitude / 10
    name = TIMM[rng.below(len(TIMM))[0]]
    signed = part if rng.uniform()[0] < 0.5 else -part
    factor, shear = max(0.1, 1 + signed * 0.9), signed * 0.3
    height, width = image.shape[:2]
    match name:
        case "AutoContrast":
            return autocontrast(image)
        case "Equalize":
            return equalize(image)
        case "Invert":
            return 255 - image
        case "Rotate":
            return rotate(image, signed * 30, outside)
        case "PosterizeIncreasing":
            return posterize(image, 4 - int(part * 4))
        case "SolarizeIncreasing":
            return solarize(image, 256 - int(part * 256))
        case "SolarizeAdd":
            return solarize_add(image, int(part * 110))
        case "ColorIncreasing":
            return blend(gray(image), image, factor)
        case "ContrastIncreasing":
            return blend(mean_gray(image), image, factor)
        case "BrightnessIncreasing":
            return blend(0, image, factor)
        case "SharpnessIncreasing":
            return blend(smooth(image), image, factor)
        case "ShearX":
            return transform(image, (1, shear, 0, 0, 1, 0), outside)
        case "ShearY":
            return transform(image, (1, 0, 0, shear, 1, 0), outside)
        case "TranslateXRel":
            return transform(image, (1, 0, signed * 0.45 * width, 0, 1, 0), outside)
        case _:
            return transform(image, (1, 0, 0, 0, 1, signed * 0.45 * height), outside)


def jitter(image: np.ndarray, augment: Augment, rng: CounterRNG) -> np.ndarray:
    """Change brightness, contrast, saturation and hue in random order, as ColorJitter does."""
    order = np.argsort([rng.uniform()[0] for _ in range(4)])
    for what in order:
        if what == 0 and augment.brightness > 0:
            image = blend(0, image, _draw_factor(augment.brightness, rng))
        elif what == 1 and augment.contrast > 0:
            image = blend(mean_gray(image), image, _draw_factor(augment.contrast, rng))
        elif what == 2 and augment.saturation > 0:
            image = blend(gray(image), image, _draw_factor(augment.saturation, rng))
        elif what == 3 and augment.hue > 0:
            image = turn_hue(image, rng.uniform(-augment.hue, augment.hue)[0])
    return image


def _draw_factor(amount: float, rng: CounterRNG) -> float:
    return float(rng.uniform(max(0.0, 1 - amount), 1 + amount)[0])


def erase(image: np.ndarray, augment: Augment, rng: CounterRNG) -> np.ndarray:
    """Fill, with probability `augment.erase`, a rectangle of 2 to 33 % of the image with noise.

    Values are uniform in 0 .. 255, as in the paper (RE-R of arXiv 1708.04896). timm's `pixel`
    samples normal values after normalizing, with a std of 1; these have 0.58 if mean and std
    are 0.5.
    """
    if rng.uniform()[0] >= augment.erase:
        return image
    height, width, channels = image.shape
    for _ in range(10):
        area = rng.uniform(0.02, 1 / 3)[0] * height * width
        aspect = math.exp(rng.uniform(math.log(0.3), math.log(1 / 0.3))[0])
        rows, columns = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if rows < height and columns < width:
            top, left = rng.below(height - rows + 1)[0], rng.below(width - columns + 1)[0]
            noise = _draw_bytes(rows * columns * channels, rng)
            erased = image.copy()
            erased[top : top + rows, left : left + columns] = noise.reshape(rows, columns, channels)
            return erased
    return image


def _draw_bytes(count: int, rng: CounterRNG) -> np.ndarray:
    """Draw many bytes at once: two of the image's numbers are the key of a stream."""
    low, high = (int(rng.uniform()[0] * 2**32) for _ in range(2))
    drawn = words(low | high << 32, "image", 0, np.zeros(1), range(-(-count // 16)))
    return drawn.astype("<u4").view(np.uint8)[0, :count]
