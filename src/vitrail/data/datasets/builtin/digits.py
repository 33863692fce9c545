"""Handwritten digits that come with the package: 1,797 real gray images of 8 x 8.

They are the test set of "Optical Recognition of Handwritten Digits" (E. Alpaydin and C. Kaynak,
1998, UCI Machine Learning Repository, doi 10.24432/C50P49, license CC BY 4.0), the same images in
the same order as scikit-learn's load_digits, by 13 writers. Their values of 0 to 16 are scaled to
0 to 255 here; nothing else is changed.
"""

from __future__ import annotations

import gzip
from importlib.resources import files

import numpy as np

from vitrail.data.dataset import ArrayDataset, ImageDataset, select
from vitrail.data.split import choose_split

_COUNT, _SIDE, _MOST = 1797, 8, 16


def open_digits(split: str) -> ImageDataset:
    """Open the digits: `test` is the last fifth of each class, `train` the rest.

    The file is sorted by writer, so most test images are by people who are not in the training
    split.
    """
    part = choose_split(split, ("train", "test"), "digits")
    dataset = _read_digits()
    if part == "all":
        return dataset
    test = np.zeros(_COUNT, bool)
    for number in range(10):
        (members,) = np.nonzero(dataset.labels == number)
        test[members[len(members) - len(members) // 5 :]] = True
    return select(dataset, np.flatnonzero(test == (part == "test")), f"digits/{part}")


def _read_digits() -> ArrayDataset:
    """Unpack the file: all labels, then each pixel of all images by class."""
    packed = files("vitrail.data.datasets.builtin").joinpath("digits.gz").read_bytes()
    values = np.frombuffer(gzip.decompress(packed), np.uint8)
    labels = values[:_COUNT].astype(np.int64)
    pixels = np.empty((_COUNT, _SIDE * _SIDE), np.uint8)
    pixels[np.argsort(labels, kind="stable")] = values[_COUNT:].reshape(-1, _COUNT).T
    pixels = np.rint(pixels * (255 / _MOST)).astype(np.uint8)
    classes = [str(number) for number in range(10)]
    return ArrayDataset("digits", classes, labels, pixels.reshape(-1, _SIDE, _SIDE, 1))
