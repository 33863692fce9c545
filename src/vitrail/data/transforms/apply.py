"""Apply preprocessing and augmentation to an image, or to a batch of small ones.

Images stay uint8 until they are on the device: a quarter of the bytes to copy, and normalizing
there costs next to nothing.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from vitrail.config import InputError
from vitrail.data.dataset import Content
from vitrail.data.decoding.decode import Header, decode, read_header
from vitrail.data.rng import CounterRNG
from vitrail.data.transforms.augment import Augment
from vitrail.data.transforms.geometry import (
    Box,
    Size,
    fit_to_patches,
    fit_to_size,
    middle,
    random_box,
    random_boxes,
    small_size,
)
from vitrail.data.transforms.operations import erase, jitter, randaugment
from vitrail.data.transforms.patch_layout import (
    blank_patches,
    lay_out_patches,
    normalize_patches,
)
from vitrail.data.transforms.preprocess import Preprocess
from vitrail.data.transforms.resizing import has_kernel, resize, resize_boxes, resize_quickly
from vitrail.distributed import send

_WINDOW, _LARGE_WINDOW = 224 / 256, 384 / 448
"""How much of the resized side a random window takes, and from 384 pixels on (big_vision)."""
_BATCHED = 64
"""The longest side, before and after, of images that are resized as a batch."""


def eval_image(content: Content, preprocess: Preprocess) -> np.ndarray:
    """Preprocess an image for evaluation: uint8 (height, width, channels).

    A JPEG is decoded in full, so that inputs equal timm's and Hugging Face's to the bit.
    """
    if isinstance(content, bytes):
        image = decode(content, channels=preprocess.channels, reading=preprocess.reading)
    else:
        image = with_channels(content, preprocess.channels)
    height, width = image.shape[:2]
    before, size, after = fit_to_size(height, width, preprocess)
    return np.ascontiguousarray(after.cut(resize(before.cut(image), size, preprocess)))


def patches_image(content: Content, preprocess: Preprocess) -> np.ndarray:
    """Preprocess an image within the patch budget, whole and at about its own aspect ratio."""
    if isinstance(content, bytes):
        image = decode(content, channels=preprocess.channels, reading=preprocess.reading)
    else:
        image = with_channels(content, preprocess.channels)
    height, width = image.shape[:2]
    size = fit_to_patches(height, width, preprocess.patch_size, preprocess.patches)
    return np.ascontiguousarray(resize(image, size, preprocess))


def blank_inputs(count: int, preprocess: Preprocess) -> np.ndarray:
    """Make black inputs: (count, height, width, channels), or within the budget a patch each."""
    if preprocess.patches:
        return blank_patches(count, preprocess)
    return np.zeros((count, *preprocess.size, preprocess.channels), np.uint8)


def eval_input(content: Content, preprocess: Preprocess) -> np.ndarray:
    """Preprocess an image for evaluation to what a batch holds of it."""
    if preprocess.patches:
        return lay_out_patches(patches_image(content, preprocess), preprocess)
    return eval_image(content, preprocess)


def eval_pixels(pixels: np.ndarray, preprocess: Preprocess) -> np.ndarray:
    """Preprocess images of one size for evaluation, each as `eval_image` does."""
    height, width = pixels.shape[1:3]
    fits = (height, width) == fit_to_size(height, width, preprocess).size == preprocess.size
    if fits and not preprocess.patches:
        return with_channels(pixels, preprocess.channels)
    inputs = blank_inputs(len(pixels), preprocess)
    for row, image in enumerate(pixels):
        inputs[row] = eval_input(image, preprocess)
    return inputs


def train_image(
    content: Content, augment: Augment, preprocess: Preprocess, rng: CounterRNG
) -> np.ndarray:
    """Crop and augment an image for training: uint8 (height, width, channels).

    A JPEG much larger than the input is decoded at a fraction of its size.
    """
    flip = rng.uniform() < augment.flip  # first, because a crop takes any number of draws
    if preprocess.patches:
        image = _crop_to_patches(content, augment, preprocess, rng)
        image = _operate(_turn(image) if flip[0] else image, augment, preprocess, rng)
        return lay_out_patches(image, preprocess)
    image = _crop(content, augment, preprocess, rng)
    return _operate(_turn(image) if flip[0] else image, augment, preprocess, rng)


def train_pixels(
    pixels: np.ndarray, augment: Augment, preprocess: Preprocess, rng: CounterRNG
) -> np.ndarray:
    """Crop and augment images of one size: uint8 (images, height, width, channels).

    Each equals what `train_image` makes with the same random numbers, up to 1/255.
    """
    if preprocess.patches or not _goes_by_batch(pixels, augment, preprocess):
        inputs = blank_inputs(len(pixels), preprocess)
        for row, own in enumerate(rng.rows()):
            inputs[row] = train_image(pixels[row], augment, preprocess, own)
        return inputs
    flips = rng.uniform() < augment.flip
    if augment.crop in ("inception", "area"):
        _, height, width, _ = pixels.shape
        boxes, rows = random_boxes(rng, height, width, augment)
        pixels = with_channels(pixels, preprocess.channels)
        inputs = resize_boxes(pixels, boxes, flips, preprocess)
    else:
        fitted = eval_pixels(pixels, preprocess)
        inputs = _shift(fitted, augment, rng) if augment.crop == "pad" else fitted.copy()
        inputs[flips] = _turn(inputs[flips])
        rows = rng.rows()
    if _operates(augment):
        for row, own in enumerate(rows):
            inputs[row] = _operate(inputs[row], augment, preprocess, own)
    return inputs


def normalize(
    batch: Tensor,
    preprocess: Preprocess,
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Normalize uint8 images (B, H, W, C) for the model, on the device: (B, C, H, W).

    Images of different sizes come as patches (B, budget, …), as patch_layout.py says.
    """
    batch = send(batch, device)
    exact = torch.promote_types(dtype, torch.float32)
    # What is made while a graph is traced belongs to that, and must not be kept for others.
    make = _constants.__wrapped__ if torch.compiler.is_compiling() else _constants
    scale, shift = make(preprocess.mean, preprocess.std, batch.device, exact)
    if batch.ndim == 3:
        return normalize_patches(batch, scale, shift)
    planes = batch.permute(0, 3, 1, 2).to(exact, memory_format=torch.contiguous_format)
    return planes.mul_(scale).add_(shift).to(dtype)


@lru_cache
def _constants(
    mean: tuple[float, ...], std: tuple[float, ...], device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Keep scale and shift on the device, so that a step need not bring them there."""
    with torch.inference_mode(mode=False):
        means, stds = torch.tensor([mean, std], dtype=torch.float64)
        scale, shift = 1 / (255 * stds), -means / stds
        return tuple(each.to(device, dtype).view(-1, 1, 1) for each in (scale, shift))  # type: ignore[return-value]


def with_channels(images: np.ndarray, channels: int) -> np.ndarray:
    """Convert images (…, channels) to the model's channels: repeat gray, or convert to gray."""
    given = images.shape[-1]
    if given == channels:
        return images
    if (given, channels) == (1, 3):
        return np.repeat(images, 3, axis=-1)
    if (given, channels) == (3, 1):
        luma = images @ np.array([[19595], [38470], [7471]], np.uint32)  # of 2^16; Pillow's L
        return (luma + 2**15 >> 16).astype(np.uint8)
    raise InputError(
        f"the images have {given} channels, the model takes {channels}; "
        f"build one that takes {given}, or convert the images"
    )


def _goes_by_batch(pixels: np.ndarray, augment: Augment, preprocess: Preprocess) -> bool:
    """Tell whether the whole batch can be transformed at once, and faster."""
    if augment.crop not in ("inception", "area"):
        return augment.crop not in ("small", "square")
    small = max(*pixels.shape[1:3], *preprocess.size) <= _BATCHED
    return small and has_kernel(preprocess)


def _crop(
    content: Content, augment: Augment, preprocess: Preprocess, rng: CounterRNG
) -> np.ndarray:
    """Crop an image for training, resized to the input's size, as a new array."""
    if augment.crop == "whole":
        return eval_image(content, preprocess)
    if augment.crop == "pad":
        return _shift(eval_image(content, preprocess)[None], augment, rng)[0]
    header, height, width = _measure(content)
    rows, columns = preprocess.size
    if augment.crop in ("small", "square"):
        box = middle(height, width, preprocess.size)
        window = augment.window or (_LARGE_WINDOW if min(rows, columns) >= 384 else _WINDOW)
        tall, wide = round(rows / window), round(columns / window)
        if augment.crop == "small":
            tall, wide = small_size(box.height, box.width, (tall, wide))
        image = _resized_part(content, header, box, (tall, wide), preprocess)
        top, left = int(rng.below(tall - rows + 1)[0]), int(rng.below(wide - columns + 1)[0])
        return Box(top, left, rows, columns).cut(image).copy()
    box = random_box(rng, height, width, augment)
    return _resized_part(content, header, box, preprocess.size, preprocess)


def _crop_to_patches(
    content: Content, augment: Augment, preprocess: Preprocess, rng: CounterRNG
) -> np.ndarray:
    """Crop an image for training, or take it whole, at its aspect ratio within the patch budget."""
    if augment.crop not in ("inception", "area"):
        return patches_image(content, preprocess)
    header, height, width = _measure(content)
    box = random_box(rng, height, width, augment)
    size = fit_to_patches(box.height, box.width, preprocess.patch_size, preprocess.patches)
    return _resized_part(content, header, box, size, preprocess)


def _measure(content: Content) -> tuple[Header | None, int, int]:
    """Return an image's header, if it is encoded, its height and its width."""
    if isinstance(content, bytes):
        header = read_header(content)
        return header, header.height, header.width
    return None, *content.shape[:2]


def _resized_part(
    content: Content, header: Header | None, box: Box, size: Size, preprocess: Preprocess
) -> np.ndarray:
    """Decode, crop and resize a part of an image."""
    if isinstance(content, bytes):
        assert header is not None
        # Decoding at a fraction averages pixels, as antialiasing does anyway.
        averages = preprocess.antialias and preprocess.interpolation != "nearest"
        shrink = min(box.height / size[0], box.width / size[1]) if averages else 1.0
        image = decode(
            content,
            channels=preprocess.channels,
            header=header,
            shrink=max(1.0, shrink),
            reading=preprocess.reading,
        )
        part = _shrink(box, (header.height, header.width), image.shape[:2]).cut(image)
    else:
        part = with_channels(box.cut(content), preprocess.channels)
    return resize_quickly(part, size, preprocess)


def _shrink(box: Box, full: Size, decoded: Size) -> Box:
    """Scale a box to a JPEG that was decoded at 1/2, 1/4 or 1/8 of its size."""
    factor = round(max(full) / max(decoded))  # sizes are rounded up, so no exact ratio
    if factor == 1:
        return box
    top = min(round(box.top / factor), decoded[0] - 1)
    left = min(round(box.left / factor), decoded[1] - 1)
    bottom = min(round((box.top + box.height) / factor), decoded[0])
    right = min(round((box.left + box.width) / factor), decoded[1])
    return Box(top, left, max(1, bottom - top), max(1, right - left))


def _shift(images: np.ndarray, augment: Augment, rng: CounterRNG) -> np.ndarray:
    """Shift each image by a few pixels over a black border (the usual crop for CIFAR)."""
    _, height, width, _ = images.shape
    down, across = round(augment.pad * height), round(augment.pad * width)
    border = ((0, 0), (down, down), (across, across), (0, 0))
    padded, shifted = np.pad(images, border), np.empty_like(images)
    tops, lefts = rng.below(2 * down + 1), rng.below(2 * across + 1)
    for row, (top, left) in enumerate(zip(tops.tolist(), lefts.tolist(), strict=True)):
        shifted[row] = padded[row, top : top + height, left : left + width]
    return shifted


def _turn(images: np.ndarray) -> np.ndarray:
    """Flip horizontally; torch is ten times faster at this than NumPy."""
    return torch.from_numpy(images).flip(-2).numpy()


def _operates(augment: Augment) -> bool:
    return augment.randaugment is not None or _jitters(augment) or augment.erase > 0


def _jitters(augment: Augment) -> bool:
    return max(augment.brightness, augment.contrast, augment.saturation, augment.hue) > 0


def _operate(
    image: np.ndarray, augment: Augment, preprocess: Preprocess, rng: CounterRNG
) -> np.ndarray:
    """Apply RandAugment, color jitter and erasing to an image of the input's size."""
    if augment.randaugment is not None:
        image = randaugment(image, augment.randaugment, rng, preprocess)
    if _jitters(augment):
        image = jitter(image, augment, rng)
    return erase(image, augment, rng) if augment.erase > 0 else image
