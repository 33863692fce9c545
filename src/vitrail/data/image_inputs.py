"""Images in every form: paths, encoded bytes, Pillow images, arrays and tensors."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from glob import glob
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitrail.config import InputError
from vitrail.data.dataset import Content
from vitrail.data.datasets.folder import find_files, read_image_file
from vitrail.data.decoding.decode import LIMITS, ImageError
from vitrail.data.decoding.modes import to_array
from vitrail.data.decoding.orientation import noted_orientation, turn
from vitrail.data.transforms.apply import eval_image, eval_input, normalize, patches_image
from vitrail.data.transforms.preprocess import Preprocess
from vitrail.text import neighbors, show

if TYPE_CHECKING:
    from typing_extensions import TypeIs  # Python 3.13's

Encoded = bytes | bytearray | memoryview | BinaryIO
ImageLike = str | Path | Encoded | Image.Image | np.ndarray | Tensor
"""A path; an encoded file, as bytes or opened for reading; a Pillow image; uint8 pixels as an array
(height, width[, channels]) or a tensor (channels, height, width); or the model's own input as a
float tensor."""


def is_one(images: ImageLike | Iterable[ImageLike]) -> TypeIs[ImageLike]:
    """Tell one image from many; arrays and tensors with four axes are many."""
    if isinstance(images, np.ndarray | Tensor):
        return images.ndim < 4
    return isinstance(images, str | Path | Image.Image) or _is_encoded(images)


def _is_encoded(image: object) -> TypeIs[Encoded]:
    """Tell an encoded file: bytes, or what can be read, as an open file and a BytesIO."""
    return isinstance(image, bytes | bytearray | memoryview) or hasattr(image, "read")


@dataclass(frozen=True)
class InputTransform:
    """Makes a model's input of an image, for a torch Dataset; small, so workers get it quickly."""

    preprocess: Preprocess

    def __call__(self, image: ImageLike) -> Tensor:
        """Preprocess an image as in evaluation: float (channels, height, width), normalized.

        Within a patch budget it is (patches, 3 + pixels), of which ViTs take batches.
        """
        if isinstance(image, Tensor) and image.is_floating_point():
            return _check_input(image, self.preprocess.channels)
        content = read_content(image, self.preprocess)
        pixels = torch.from_numpy(eval_input(content, self.preprocess))
        return normalize(pixels[None], self.preprocess)[0]


def preprocess_image(image: ImageLike, preprocess: Preprocess) -> Tensor:
    """Preprocess an image as in evaluation: uint8 (height, width, channels).

    A float tensor stays as it is: (channels, height, width), already normalized. Raises ImageError
    if the image can't be used; its message does not name the image.
    """
    if isinstance(image, Tensor) and image.is_floating_point():
        return _check_input(image, preprocess.channels)
    content = read_content(image, preprocess)
    try:
        make = patches_image if preprocess.patches else eval_image
        return torch.from_numpy(make(content, preprocess))
    except ImageError:
        raise
    except InputError as error:  # pixels for which a whole dataset would be refused
        raise ImageError(str(error), "wrong channels") from None


def read_content(image: ImageLike, preprocess: Preprocess) -> Content:
    """Read an image to an encoded file or pixels, as datasets give them."""
    if _is_encoded(image):
        return _read_encoded(image)
    if isinstance(image, str | Path):
        try:
            return read_image_file(os.fsencode(image))
        except OSError as error:
            raise ImageError(error.strerror or str(error), "unreadable") from None
        except ValueError:  # a NUL in the name
            raise ImageError("not a valid file name", "unreadable") from None
    if isinstance(image, Image.Image):
        return _from_pillow(image, preprocess)
    if isinstance(image, Tensor):
        if image.ndim == 3:
            image = image.permute(1, 2, 0)
        image = image.cpu().numpy()
    if not isinstance(image, np.ndarray):
        kinds = "a path, bytes, an open file, a Pillow image, an array or a tensor"
        raise InputError(f"an image must be {kinds}, got {type(image).__name__}")
    return _check_pixels(image)


def _read_encoded(image: Encoded) -> bytes:
    """Read a whole file, from its beginning where it can be rewound, as Pillow does."""
    if isinstance(image, bytes | bytearray | memoryview):
        return bytes(image)
    try:
        if image.seekable():
            image.seek(0)
        content = image.read(LIMITS.bytes + 1)
    except (OSError, ValueError) as error:  # a closed file
        raise ImageError(f"the file can't be read: {error}", "unreadable") from None
    if not isinstance(content, bytes):
        raise InputError("an image file must be opened for reading bytes: open(path, 'rb')")
    return content


def _from_pillow(image: Image.Image, preprocess: Preprocess) -> np.ndarray:
    """Convert a Pillow image as its file would be: upright, 16-bit levels scaled."""
    LIMITS.check_pixels(image.height, image.width)
    orientation = (
        1 if image.format == "TIFF" else noted_orientation(image.info)
    )  # Pillow has turned it
    try:
        levels = preprocess.reading and preprocess.reading.levels
        return turn(to_array(image, preprocess.channels, levels), orientation)
    except OSError as error:  # an opened file that turns out to be truncated
        raise ImageError(" ".join(str(error).split())[:80], "truncated") from None


def _check_pixels(pixels: np.ndarray) -> np.ndarray:
    if pixels.dtype != np.uint8:
        text = f"an array of {pixels.dtype}; expected uint8 from 0 to 255"
        raise ImageError(text, "unsupported format")
    if pixels.ndim == 2:
        pixels = pixels[..., None]
    if pixels.ndim != 3 or min(pixels.shape) < 1:
        text = f"an array of shape {pixels.shape}; expected (height, width[, channels])"
        raise ImageError(text, "unsupported format")
    LIMITS.check_pixels(*pixels.shape[:2])
    return np.ascontiguousarray(pixels)


def _check_input(tensor: Tensor, channels: int) -> Tensor:
    if tensor.ndim != 3 or tensor.shape[0] != channels:
        text = f"a tensor of shape {tuple(tensor.shape)}; expected ({channels}, height, width)"
        raise ImageError(text, "wrong channels")
    return tensor.detach()


def find_images(paths: Sequence[str | Path]) -> list[str]:
    """List files; a folder stands for all images in and below it, a glob for what it matches."""
    found: list[str] = []
    for path in map(Path, paths):
        if path.is_dir():
            inside = find_files(path)
            if not inside:
                raise InputError(f"the folder {show(path)} has no images")
            found += [os.path.join(path, os.fsdecode(file)) for file in inside]
        elif os.path.lexists(path):
            found.append(str(path))
        elif matches := sorted(glob(str(path), recursive=True)):  # where no shell expanded it
            found += find_images(matches)
        else:
            raise InputError(f"no file or folder {show(path)}{neighbors(path)}")
    return found
