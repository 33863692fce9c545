"""Images as people have them: paths, files' bytes, Pillow images, arrays and tensors."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitrail.config import InputError
from vitrail.data.dataset import Content
from vitrail.data.datasets.folder import find_files, read_file
from vitrail.data.decoding.decode import LIMITS, ImageError
from vitrail.data.decoding.modes import to_array
from vitrail.data.decoding.orientation import noted_orientation, turn
from vitrail.data.transforms.apply import eval_image
from vitrail.data.transforms.preprocess import Preprocess
from vitrail.text import neighbors, show

if TYPE_CHECKING:
    from typing_extensions import TypeIs  # Python 3.13's

ImageLike = str | Path | bytes | Image.Image | np.ndarray | Tensor
"""A path; an encoded file; a Pillow image; uint8 pixels, as an array (height, width[, channels])
or a tensor (channels, height, width); or, as a tensor of floating point, the model's own input."""


def is_one(images: ImageLike | Iterable[ImageLike]) -> TypeIs[ImageLike]:
    """Tell one image from many; arrays and tensors with a fourth axis are many."""
    if isinstance(images, np.ndarray | Tensor):
        return images.ndim < 4
    return isinstance(images, str | Path | bytes | Image.Image)


def prepare(image: ImageLike, preprocess: Preprocess) -> Tensor:
    """Make evaluation's input of an image: uint8 (height, width, channels).

    A tensor of floating point stays as it is: (channels, height, width), normalized already.
    ImageError where an image can't be used, with no word on which one it is.
    """
    if isinstance(image, Tensor) and image.is_floating_point():
        return _check_input(image, preprocess.channels)
    content = read_content(image, preprocess.channels)
    try:
        return torch.from_numpy(eval_image(content, preprocess))
    except ImageError:
        raise
    except InputError as error:  # of pixels, with which a data set would be refused as a whole
        raise ImageError(str(error), "wrong channels") from None


def read_content(image: ImageLike, channels: int) -> Content:
    """Read an image to what the data room takes: an encoded file, or pixels."""
    if isinstance(image, bytes):
        return image
    if isinstance(image, str | Path):
        try:
            return read_file(os.fsencode(image))
        except OSError as error:
            raise ImageError(error.strerror or str(error), "unreadable") from None
        except ValueError:  # a NUL in the name
            raise ImageError("no file can have this name", "unreadable") from None
    if isinstance(image, Image.Image):
        return _from_pillow(image, channels)
    if isinstance(image, Tensor):
        if image.ndim == 3:
            image = image.permute(1, 2, 0)
        image = image.cpu().numpy()
    if not isinstance(image, np.ndarray):
        kinds = "a path, bytes, a Pillow image, an array or a tensor"
        raise InputError(f"no image but a {type(image).__name__}; expected {kinds}")
    return _check_pixels(image)


def _from_pillow(image: Image.Image, channels: int) -> np.ndarray:
    """Take a Pillow image as its file would be taken: upright, deep levels scaled."""
    LIMITS.check_pixels(image.height, image.width)
    orientation = 1 if image.format == "TIFF" else noted_orientation(image.info)  # Pillow turns it
    try:
        return turn(to_array(image, channels), orientation)
    except OSError as error:  # a file that is opened but not read yet, and is cut short
        raise ImageError(" ".join(str(error).split())[:80], "truncated") from None


def _check_pixels(pixels: np.ndarray) -> np.ndarray:
    if pixels.dtype != np.uint8:
        text = f"an array of {pixels.dtype}; expected uint8, from 0 to 255"
        raise ImageError(text, "unsupported format")
    if pixels.ndim == 2:
        pixels = pixels[..., None]
    if pixels.ndim != 3 or min(pixels.shape) < 1:
        text = f"an array of {pixels.shape}; expected (height, width) or (height, width, channels)"
        raise ImageError(text, "unsupported format")
    LIMITS.check_pixels(*pixels.shape[:2])
    return np.ascontiguousarray(pixels)


def _check_input(tensor: Tensor, channels: int) -> Tensor:
    if tensor.ndim != 3 or tensor.shape[0] != channels:
        text = f"a tensor of {tuple(tensor.shape)}; expected ({channels}, height, width)"
        raise ImageError(text, "wrong channels")
    return tensor.detach()


def find_images(paths: Sequence[str | Path]) -> list[str]:
    """List the files of paths: of a folder, all in it and below that are not hidden."""
    found: list[str] = []
    for path in map(Path, paths):
        if path.is_dir():
            inside = find_files(path)
            if not inside:
                raise InputError(f"the folder {show(path)} holds no files")
            found += [os.path.join(path, os.fsdecode(file)) for file in inside]
        elif os.path.lexists(path):
            found.append(str(path))
        else:
            raise InputError(f"no file or folder {show(path)}{neighbors(path)}")
    return found
