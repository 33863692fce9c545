"""Any map-style torch dataset that yields (image, label), as an ImageDataset."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Subset

from vitrail.config import InputError
from vitrail.data.dataset import Content, ImageDataset
from vitrail.data.datasets.class_index import name_classes, number_labels
from vitrail.data.datasets.labels import UNLABELED
from vitrail.data.decoding.modes import to_array

_GRAY = ("1", "L", "I", "F", "I;16", "I;16L", "I;16B", "I;16N")
_CHANNELS = (1, 3, 4)


class TorchDataset(ImageDataset):
    """The images of a map-style dataset.

    An item is (image, label) or, with `labels=False`, an image alone. Images are PIL images, uint8
    arrays (H, W, C), uint8 tensors (C, H, W) or encoded files; labels are class indices, class
    names, or 0 / 1 for each class. Labels come from `targets` where the dataset has them and they
    agree with its first and last item; otherwise each item is read once.
    """

    def __init__(
        self, dataset: Any, *, classes: Sequence[str] | None = None, labels: bool = True
    ) -> None:
        name = type(dataset).__name__
        if not callable(getattr(dataset, "__getitem__", None)) or not hasattr(dataset, "__len__"):
            raise InputError(
                f"expected data as text, an ImageDataset or a dataset with items by number "
                f"(__getitem__ and __len__), got {name}"
            )
        self._dataset, self._labeled = dataset, labels
        found = _labels(dataset, name) if labels else [0] * len(dataset)
        classes = classes or _attribute(dataset, "classes") if labels else (UNLABELED,)
        several = any(isinstance(label, np.ndarray) for label in found)
        if several:
            numbers = _stack(found, name)
            classes = classes or [str(number) for number in range(numbers.shape[1])]
        else:
            classes = list(map(str, classes)) if classes else name_classes(found, name)
            numbers = number_labels(found, classes, lambda i: f"{name}[{i}]", several=False)
        if several and numbers.shape[1] != len(classes):
            raise InputError(
                f"{name} has {len(classes)} classes, but labels of {numbers.shape[1]} values"
            )
        super().__init__(name, list(map(str, classes)), numbers)
        self.known_again = False  # an item may differ each time, and others have its name

    def read(self, index: int) -> Content:
        """Return the image of an item."""
        item = self._dataset[index]
        paired = isinstance(item, tuple | list)
        return _content(item[0] if paired else item, self.where(index))

    def where(self, index: int) -> str:
        """Name an image by its number."""
        return f"{self.name}[{index}]"


def _labels(dataset: Any, name: str) -> list[Any]:
    targets = _attribute(dataset, "targets")
    if targets is not None and len(targets) == len(dataset) > 0:
        labels = [_label(target, name) for target in targets]
        ends = (0, len(dataset) - 1)  # target_transform may change them
        if all(np.array_equal(labels[i], _label_of(dataset[i], f"{name}[{i}]")) for i in ends):
            return labels
    return [_label_of(dataset[i], f"{name}[{i}]") for i in range(len(dataset))]


def _attribute(dataset: Any, key: str) -> Any:
    """Read an attribute, through torch's Subset to the dataset behind it."""
    if isinstance(dataset, Subset) and not hasattr(dataset, key):
        whole = _attribute(dataset.dataset, key)
        return whole if whole is None or key == "classes" else [whole[i] for i in dataset.indices]
    return getattr(dataset, key, None)


def _label_of(item: Any, where: str) -> Any:
    if not isinstance(item, tuple | list) or len(item) != 2:
        raise InputError(f"{where}: expected (image, label), got {type(item).__name__}")
    return _label(item[1], where)


def _label(label: Any, where: str) -> int | str | np.ndarray:
    """Return a label as an int, a name, or 0 / 1 for each class."""
    if isinstance(label, str):
        return label
    value = np.asarray(label)
    whole = value.dtype.kind in "bui" or (value.dtype.kind == "f" and (value == value // 1).all())
    if whole and value.ndim == 0:
        return int(value)
    if whole and value.ndim == 1 and np.isin(value, (0, 1)).all():
        return value.astype(np.uint8)
    raise InputError(
        f"{where}: expected a class index, a class name or 0 / 1 for each class, "
        f"got {str(label)[:60]}"
    )


def _stack(labels: list[Any], name: str) -> np.ndarray:
    if len({getattr(label, "shape", ()) for label in labels}) > 1:
        raise InputError(f"{name}: labels are of several lengths; expected 0 / 1 for each class")
    return np.stack(labels)


def _content(image: Any, where: str) -> Content:
    """Convert an image to what an ImageDataset holds."""
    if isinstance(image, bytes):
        return image
    if isinstance(image, Image.Image):
        return to_array(image, 1 if image.mode in _GRAY else 3)
    planes = isinstance(image, torch.Tensor)
    pixels = image.detach().cpu().numpy() if isinstance(image, torch.Tensor) else image
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.ndim not in (2, 3):
        kind = getattr(image, "dtype", type(image).__name__)
        raise InputError(
            f"{where}: expected a PIL image, a uint8 array (H, W, C) or a uint8 tensor (C, H, W), "
            f"got {kind}; leave ToTensor and Normalize out, images are transformed later"
        )
    if pixels.ndim == 2:
        return pixels[..., None]
    first, last = pixels.shape[0] in _CHANNELS, pixels.shape[2] in _CHANNELS
    if first and (planes or not last):
        pixels = np.ascontiguousarray(pixels.transpose(1, 2, 0))
    return pixels
