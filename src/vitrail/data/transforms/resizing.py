"""Resize images.

Evaluation resizes exactly as Pillow does, so that inputs equal timm's and Hugging Face's, or,
without antialiasing, as TensorFlow does. Training may round differently, and is faster for it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from vitrail.data.transforms.geometry import Size
from vitrail.data.transforms.preprocess import Interpolation, Preprocess

_PILLOW: dict[Interpolation, Image.Resampling] = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
    "area": Image.Resampling.BOX,
}
_CHUNK = 64  # small images that are resized at once, so that they stay in the processor's cache


def resize(image: np.ndarray, size: Size, preprocess: Preprocess) -> np.ndarray:
    """Resize exactly as Pillow does; without antialiasing, as TensorFlow does, then rounded.

    The result is always a new array.
    """
    interpolation = preprocess.interpolation
    if image.shape[:2] == size:
        return image.copy()
    if not preprocess.antialias and interpolation == "area":
        return _average(image, size)
    if not preprocess.antialias and interpolation in _KERNELS:
        return _sample(image, size, interpolation)
    if image.shape[2] == 3:
        return _resize_pillow(image, size, interpolation)
    # One channel at a time: Pillow would take the fourth as alpha, and can't hold five.
    planes = [image[..., channel] for channel in range(image.shape[2])]
    return np.stack([_resize_pillow(plane, size, interpolation) for plane in planes], axis=-1)


def _resize_pillow(image: np.ndarray, size: Size, interpolation: Interpolation) -> np.ndarray:
    height, width = size
    return np.array(Image.fromarray(image).resize((width, height), _PILLOW[interpolation]))


def _triangle(x: Tensor) -> Tensor:
    return (1 - x.abs()).clamp_(min=0)


def _keys(x: Tensor) -> Tensor:
    """Keys' cubic kernel with a = -1/2, as in Pillow and TensorFlow (torch has -3/4)."""
    x = x.abs()
    near, far = (1.5 * x - 2.5) * x * x + 1, ((2.5 - 0.5 * x) * x - 4) * x + 2
    return torch.where(x < 1, near, torch.where(x < 2, far, 0))


def _lanczos(x: Tensor) -> Tensor:
    return torch.where(x.abs() < 3, torch.sinc(x) * torch.sinc(x / 3), 0)


_KERNELS: dict[str, tuple[Callable[[Tensor], Tensor], int]] = {
    "bilinear": (_triangle, 1),
    "bicubic": (_keys, 2),
    "lanczos": (_lanczos, 3),
}
"""The weight of a pixel by its distance, and the kernel's reach in pixels."""


def _sample(image: np.ndarray, size: Size, interpolation: Interpolation) -> np.ndarray:
    """Weight only the nearest pixels inside the image, as tf.image.resize does."""
    kernel, reach = _KERNELS[interpolation]
    values = torch.from_numpy(image.astype(np.float32, order="C"))
    for axis, count in enumerate(size):
        length = values.shape[axis]
        place = (torch.arange(count, dtype=torch.float64) + 0.5) * (length / count) - 0.5
        taps = place.floor().long()[:, None] + torch.arange(1 - reach, reach + 1)
        weights = kernel(place[:, None] - taps).where((taps >= 0) & (taps < length), 0)
        weights = (weights / weights.sum(1, keepdim=True)).to(torch.float32)
        shape = (-1, 1, 1) if axis == 0 else (1, -1, 1)
        columns = zip(taps.clamp(0, length - 1).T, weights.T, strict=True)
        values = torch.stack(
            [values.index_select(axis, at) * weight.view(shape) for at, weight in columns]
        ).sum(0)
    return values.round_().clamp_(0, 255).to(torch.uint8).numpy()


def _average(image: np.ndarray, size: Size) -> np.ndarray:
    """Average the area that each pixel covers, as TensorFlow's area method does."""
    values = image
    for axis, count in enumerate(size):
        length = values.shape[axis]
        zero = np.zeros_like(values.take([0], axis), np.float64)
        sums = np.concatenate([zero, values.cumsum(axis, dtype=np.float64)], axis)
        edges = np.arange(count + 1) * (length / count)
        whole = np.minimum(edges.astype(np.int64), length - 1)
        rest = (edges - whole).reshape((-1, 1, 1) if axis == 0 else (1, -1, 1))
        upto = sums.take(whole, axis) * (1 - rest) + sums.take(whole + 1, axis) * rest
        values = np.diff(upto, axis=axis) * (count / length)
    return np.rint(values).clip(0, 255).astype(np.uint8)


def has_kernel(preprocess: Preprocess) -> bool:
    """Tell whether torch has the kernel, for `resize_quickly` and `resize_boxes`."""
    cubic = preprocess.interpolation == "bicubic" and preprocess.antialias  # else it isn't Keys'
    return preprocess.interpolation == "bilinear" or cubic


def resize_quickly(image: np.ndarray, size: Size, preprocess: Preprocess) -> np.ndarray:
    """Resize as `resize` does up to rounding, with torch's vectorized kernel where it has one."""
    if not has_kernel(preprocess):
        return resize(image, size, preprocess)
    image = np.require(image, requirements=["C", "W"])  # which torch takes without a warning
    planes = torch.from_numpy(image)[None].permute(0, 3, 1, 2)  # channels last, to torch too
    mode, antialias = preprocess.interpolation, preprocess.antialias
    resized = F.interpolate(planes, size, mode=mode, antialias=antialias)
    return resized.permute(0, 2, 3, 1)[0].numpy()


def resize_boxes(
    pixels: np.ndarray, boxes: np.ndarray, flips: np.ndarray, preprocess: Preprocess
) -> np.ndarray:
    """Crop a box of each image, resize it, and flip it where asked.

    For small images, products with matrices of weights are faster than a call per image.
    """
    resized = np.empty((len(pixels), *preprocess.size, pixels.shape[3]), np.uint8)
    for start in range(0, len(pixels), _CHUNK):
        rows = slice(start, start + _CHUNK)
        resized[rows] = _multiply(pixels[rows], boxes[rows], flips[rows], preprocess)
    return resized


def _multiply(
    pixels: np.ndarray, boxes: np.ndarray, flips: np.ndarray, preprocess: Preprocess
) -> np.ndarray:
    count, height, width, channels = pixels.shape
    tall, wide = preprocess.size
    top, left, heights, widths = torch.from_numpy(boxes).to(torch.float32).T
    down = _matrices(top, heights, height, tall, preprocess)
    across = _matrices(left, widths, width, wide, preprocess)
    across = torch.where(torch.from_numpy(flips)[:, None, None], across.flip(1), across)
    planes = pixels.transpose(0, 1, 3, 2).astype(np.float32, order="C")
    values = torch.from_numpy(planes).view(count, height * channels, width)
    # Across first, and rounded between: the order and the limits of torch's own kernel.
    values = (values @ across.mT).add_(0.5).floor_().clamp_(0, 255)
    values = (down @ values.view(count, height, channels * wide)).add_(0.5).clamp_(0, 255)
    return values.to(torch.uint8).view(count, tall, channels, wide).mT.numpy()


def _matrices(
    start: Tensor, extent: Tensor, length: int, count: int, preprocess: Preprocess
) -> Tensor:
    """Return the weights of `length` pixels for `count` new ones, within each image's extent."""
    kernel, _ = _KERNELS[preprocess.interpolation]
    scale = (extent / count)[:, None]
    places, wanted = torch.arange(length) + 0.5, torch.arange(count) + 0.5
    away = places - (start[:, None] + wanted * scale)[..., None]
    weights = kernel(away / scale.clamp(min=1)[..., None] if preprocess.antialias else away)
    inside = (places > start[:, None]) & (places < (start + extent)[:, None])
    weights *= inside[:, None]
    return weights / weights.sum(2, keepdim=True)
