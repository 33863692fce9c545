"""CIFAR-10 and CIFAR-100 in their official binary version.

The Python version is not read: its files are pickles, which may run code.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from vitrail.config import InputError
from vitrail.data.dataset import ArrayDataset, ImageDataset
from vitrail.data.split import choose_split

_SIDE = 32
_PIXELS = 3 * _SIDE * _SIDE  # red, green and blue one after the other
_PAGE = "https://www.cs.toronto.edu/~kriz/cifar.html"


def open_cifar10(path: Path, split: str) -> ImageDataset:
    """Open CIFAR-10 from its folder or the one that `cifar-10-batches-bin` is in."""
    part = choose_split(split, ("train", "test"), "CIFAR-10")
    folder = _find(path, "cifar-10-batches-bin/test_batch.bin", "cifar-10-binary.tar.gz")
    train = [f"data_batch_{number}.bin" for number in range(1, 6)]
    files = {"train": train, "test": ["test_batch.bin"], "all": [*train, "test_batch.bin"]}[part]
    classes = _read_names(folder / "batches.meta.txt", 10)
    return _read([folder / file for file in files], f"cifar10/{part}", classes, label_bytes=1)


def open_cifar100(path: Path, split: str) -> ImageDataset:
    """Open CIFAR-100 with fine labels, from its folder or the one `cifar-100-binary` is in."""
    part = choose_split(split, ("train", "test"), "CIFAR-100")
    folder = _find(path, "cifar-100-binary/test.bin", "cifar-100-binary.tar.gz")
    files = ["train.bin", "test.bin"] if part == "all" else [f"{part}.bin"]
    classes = _read_names(folder / "fine_label_names.txt", 100)
    return _read([folder / file for file in files], f"cifar100/{part}", classes, label_bytes=2)


def _find(path: Path, place: str, archive: str) -> Path:
    """Find the dataset's folder by one of its files, or explain what was given instead."""
    for file in (path / Path(place).name, path / place):
        if file.is_file():
            return file.parent
    if path.is_file():
        raise InputError(f"{path}: expected a folder; unpack {archive} and give its folder")
    python = ("data_batch_1", "meta", "cifar-10-batches-py", "cifar-100-python")
    if any((path / name).exists() for name in python):
        why = "is the Python version, whose pickles may run code"
        raise InputError(f"{path}: {why}; take {archive} of {_PAGE}")
    raise InputError(f"{path}: found no {Path(place).name}, nor {place}; unpack {archive} there")


def _read_names(path: Path, count: int) -> list[str]:
    try:
        names = path.read_text(encoding="utf-8", errors="replace").split()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; unpack the archive again") from None
    if len(names) != count or len(set(names)) != count:
        raise InputError(f"{path}: expected the names of {count} classes, got {len(set(names))}")
    return names


def _read(
    files: Sequence[Path], name: str, classes: Sequence[str], *, label_bytes: int
) -> ImageDataset:
    """Read records: the label bytes, the last of which is the class, then the pixels."""
    parts = [_read_records(file, label_bytes + _PIXELS) for file in files]
    for file, records in zip(files, parts, strict=True):
        labels = records[:, label_bytes - 1]
        if (wrong := np.flatnonzero(labels >= len(classes))).size:
            found = f"record {wrong[0]} has the label {labels[wrong[0]]}"
            raise InputError(f"{file}: {found}, expected 0 to {len(classes) - 1}; it is damaged")
    labels = np.concatenate([records[:, label_bytes - 1] for records in parts])
    planes = [records[:, label_bytes:].reshape(-1, 3, _SIDE, _SIDE) for records in parts]
    pixels = np.ascontiguousarray(np.concatenate(planes).transpose(0, 2, 3, 1))
    return ArrayDataset(name, classes, labels.astype(np.int64), pixels)


def _read_records(file: Path, size: int) -> np.ndarray:
    """Read a file of records of one size."""
    try:
        content = np.fromfile(file, np.uint8)
    except OSError as error:
        raise InputError(f"{file}: {error.strerror}; unpack the archive again") from None
    if len(content) == 0 or len(content) % size:
        told = f"expected records of {size:,} bytes, got {len(content):,} bytes"
        raise InputError(f"{file}: {told}; it is cut off: unpack the archive again")
    return content.reshape(-1, size)
