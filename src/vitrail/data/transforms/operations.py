"""What training does to one image after its crop: RandAugment, color jitter, random erasing.

All are pure functions of the image and its draws. RGB is what they are made for; of images
with other channels, color and hue stay as they are, and the rest is done to each channel.
"""

from __future__ import annotations

import math

import numpy as np

from vitrail.data.rng import CounterRNG, words
from vitrail.data.transforms.augment import Augment, RandAugment
from vitrail.data.transforms.filters import (
    TENSORFLOW_GRAY,
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

_BIG_VISION = (
    "AutoContrast", "Equalize", "Invert", "Rotate", "Posterize", "Solarize", "Color", "Contrast",
    "Brightness", "Sharpness", "ShearX", "ShearY", "TranslateX", "TranslateY", "Cutout",
    "SolarizeAdd",
)  # fmt: skip
_TORCHVISION = (
    "Identity", "ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate", "Brightness", "Color",
    "Contrast", "Sharpness", "Posterize", "Solarize", "AutoContrast", "Equalize",
)  # fmt: skip
_SIDE = 224  # pixels of the images that big_vision's lengths are meant for
_TIE = 1 / 256  # a pixel: sends what lies between two pixels to the right one, as TensorFlow does


def randaugment(image: np.ndarray, spec: RandAugment, draws: CounterRNG) -> np.ndarray:
    """Apply some operations in a row, each drawn from all of them alike, with one magnitude."""
    apply = _apply_big_vision if spec.operations == "big_vision" else _apply_torchvision
    for _ in range(spec.layers):
        image = apply(image, spec.magnitude, draws)
    return image


def _apply_big_vision(image: np.ndarray, magnitude: float, draws: CounterRNG) -> np.ndarray:
    """Do what big_vision's pp/autoaugment.py does at 224 pixels, and the like at other sizes.

    Its lengths are pixels whatever the size; here they grow with the image. What AugReg was
    trained with is kept, flaws and all. Contrast moves from 196, which is 224 * 224 / 256 and no
    mean (its issue 109). Solarize's threshold wraps at 256, so that it inverts all at 10 and 20
    (its issue 110). Posterize keeps more bits at higher magnitudes, and one at 0. So magnitude 0
    is not nothing: only 7 of the 16 leave the image as it is.
    """
    part = magnitude / 10
    name = _BIG_VISION[draws.below(len(_BIG_VISION))[0]]
    signed = part if draws.uniform()[0] < 0.5 else -part
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
            return rotate(image, signed * 30, fill=128)
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
            return transform(image, (1, shear, _TIE - shear / 2, 0, 1, 0), fill=128)
        case "ShearY":
            return transform(image, (1, 0, 0, shear, 1, _TIE - shear / 2), fill=128)
        case "TranslateX":
            return transform(image, (1, 0, signed * 100 * width, 0, 1, 0), fill=128)
        case "TranslateY":
            return transform(image, (1, 0, 0, 0, 1, signed * 100 * height), fill=128)
        case "Cutout":
            return _cut_out(image, int(part * 40 * height), int(part * 40 * width), draws)
        case _:
            return solarize_add(image, int(part * 110))


def _cut_out(image: np.ndarray, half_height: int, half_width: int, draws: CounterRNG) -> np.ndarray:
    """Fill a rectangle around a random pixel with gray, as far as it lies in the image."""
    row, column = draws.below(image.shape[0])[0], draws.below(image.shape[1])[0]
    cut = image.copy()
    cut[max(row - half_height, 0) : row + half_height,
        max(column - half_width, 0) : column + half_width] = 128  # fmt: skip
    return cut


def _apply_torchvision(image: np.ndarray, magnitude: float, draws: CounterRNG) -> np.ndarray:
    """Do what torchvision's RandAugment does to Pillow's images, with its 31 magnitudes."""
    part = magnitude / 30
    name = _TORCHVISION[draws.below(len(_TORCHVISION))[0]]
    signed = part if draws.uniform()[0] < 0.5 else -part
    factor, shear = 1 + signed * 0.9, signed * 0.3
    match name:
        case "Identity":
            return image
        case "ShearX":
            return transform(image, (1, shear, 0, 0, 1, 0), fill=0)
        case "ShearY":
            return transform(image, (1, 0, 0, shear, 1, 0), fill=0)
        case "TranslateX":
            pixels = int(signed * 150 / 331 * image.shape[1])
            return transform(image, (1, 0, -pixels, 0, 1, 0), fill=0)
        case "TranslateY":
            pixels = int(signed * 150 / 331 * image.shape[0])
            return transform(image, (1, 0, 0, 0, 1, -pixels), fill=0)
        case "Rotate":
            return rotate(image, signed * 30, fill=0)
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


def jitter(image: np.ndarray, augment: Augment, draws: CounterRNG) -> np.ndarray:
    """Change brightness, contrast, saturation and hue in a random order, as ColorJitter does."""
    order = np.argsort([draws.uniform()[0] for _ in range(4)])
    for what in order:
        if what == 0 and augment.brightness > 0:
            image = blend(0, image, _draw_factor(augment.brightness, draws))
        elif what == 1 and augment.contrast > 0:
            image = blend(mean_gray(image), image, _draw_factor(augment.contrast, draws))
        elif what == 2 and augment.saturation > 0:
            image = blend(gray(image), image, _draw_factor(augment.saturation, draws))
        elif what == 3 and augment.hue > 0:
            image = turn_hue(image, draws.uniform(-augment.hue, augment.hue)[0])
    return image


def _draw_factor(amount: float, draws: CounterRNG) -> float:
    return float(draws.uniform(max(0.0, 1 - amount), 1 + amount)[0])


def erase(image: np.ndarray, augment: Augment, draws: CounterRNG) -> np.ndarray:
    """Fill, with a chance, one rectangle of 2 to 33 % of the image with noise.

    Values are drawn from 0 .. 255 alike, as the paper's (RE-R of arXiv 1708.04896). timm's `pixel`
    draws normal ones after normalizing, which go beyond any image's: they deviate by 1, where
    these deviate by 0.58 if the mean and std taken out are 0.5.
    """
    if draws.uniform()[0] >= augment.erase:
        return image
    height, width, channels = image.shape
    for _ in range(10):
        area = draws.uniform(0.02, 1 / 3)[0] * height * width
        aspect = math.exp(draws.uniform(math.log(0.3), math.log(1 / 0.3))[0])
        rows, columns = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if rows < height and columns < width:
            top, left = draws.below(height - rows + 1)[0], draws.below(width - columns + 1)[0]
            noise = _draw_bytes(rows * columns * channels, draws)
            erased = image.copy()
            erased[top : top + rows, left : left + columns] = noise.reshape(rows, columns, channels)
            return erased
    return image


def _draw_bytes(count: int, draws: CounterRNG) -> np.ndarray:
    """Draw many bytes at once: two of the image's numbers are the key of a stream of its own."""
    low, high = (int(draws.uniform()[0] * 2**32) for _ in range(2))
    drawn = words(low | high << 32, "image", 0, np.zeros(1), range(-(-count // 16)))
    return drawn.astype("<u4").view(np.uint8)[0, :count]
