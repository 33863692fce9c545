"""MNIST and Fashion-MNIST from their idx files, gzipped or not."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np

from vitrail.config import InputError, suggest
from vitrail.data.dataset import ArrayDataset, ImageDataset
from vitrail.data.split import choose_split

_CLASSES = {
    "mnist": tuple("0123456789"),
    "fashion-mnist": (
        "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
        "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
    ),
}  # fmt: skip
_FILES = {"train": "train", "test": "t10k"}
_SIDE = 28
_CHUNK = 1 << 20
_DEFLATE = 1032  # a byte of a gzip file holds at most so many (zlib.net/zlib_tech.html)


def open_idx(path: Path, split: str, name: str) -> ImageDataset:
    """Open `mnist` or `fashion-mnist` from the folder with its four files."""
    if name not in _CLASSES:
        near = suggest(name, _CLASSES)
        raise InputError(f"no idx dataset {name!r}; expected mnist or fashion-mnist{near}")
    part = choose_split(split, ("train", "test"), name)
    labels, pixels = [], []
    for stem in _FILES.values() if part == "all" else [_FILES[part]]:
        images = _find(path, f"{stem}-images", "idx3-ubyte")
        numbers = _find(path, f"{stem}-labels", "idx1-ubyte")
        pixels.append(_read(images, 3))
        labels.append(_read(numbers, 1))
        if len(pixels[-1]) != len(labels[-1]):
            counts = f"{len(labels[-1]):,} labels for {len(pixels[-1]):,} images"
            raise InputError(f"{numbers}: {counts} of {images.name}; download both again")
        if (most := labels[-1].max()) >= len(_CLASSES[name]):
            raise InputError(f"{numbers}: expected labels of 0 to 9, got {most}; it is damaged")
    numbers = np.concatenate(labels).astype(np.int64)
    return ArrayDataset(
        f"{name}/{part}", _CLASSES[name], numbers, np.concatenate(pixels)[..., None]
    )


def _find(path: Path, stem: str, kind: str) -> Path:
    """Find a file by its usual names: with a dot or a dash, gzipped or not."""
    for name in (f"{stem}-{kind}", f"{stem}.{kind}"):
        for file in (path / name, path / f"{name}.gz"):
            if file.is_file():
                return file
    raise InputError(f"{path}: found no {stem}-{kind}.gz, nor {stem}-{kind}")


def _read(file: Path, dimensions: int) -> np.ndarray:
    """Read an array of bytes; the header is checked against the file's size first."""
    packed = file.suffix == ".gz"
    try:
        size = file.stat().st_size
        with gzip.open(file) if packed else file.open("rb") as stream:
            header = stream.read(4 + 4 * dimensions)
            if len(header) < 4 + 4 * dimensions or header[:4] != bytes((0, 0, 8, dimensions)):
                raise InputError(f"{file}: expected an idx{dimensions} file of bytes")
            shape = struct.unpack_from(f">{dimensions}I", header, 4)
            if shape[1:] not in ((), (_SIDE, _SIDE)):
                raise InputError(f"{file}: expected images of 28 x 28, got {shape[1:]}")
            expected = math.prod(shape)
            if expected == 0 or expected > size * (_DEFLATE if packed else 1):
                raise InputError(f"{file}: {shape[0]:,} items do not fit in its {size:,} bytes")
            content = bytearray()  # which grows with what is really there
            while len(content) <= expected and (piece := stream.read(_CHUNK)):
                content += piece
            if len(content) != expected:
                raise InputError(f"{file}: expected {expected:,} bytes of {shape[0]:,} items")
    except (OSError, EOFError, zlib.error) as error:
        why = getattr(error, "strerror", None) or f"{error}; it is damaged: download it again"
        raise InputError(f"{file}: {why}") from None
    return np.frombuffer(content, np.uint8).reshape(shape)
