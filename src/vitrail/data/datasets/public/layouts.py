"""Public datasets recognized by the files of their published layouts."""

from __future__ import annotations

import os
from pathlib import Path

from vitrail.text import show

_MNIST = [f"train-images{mark}idx3-ubyte{end}" for mark in "-." for end in ("", ".gz")]
_CIFAR10 = ["cifar-10-batches-bin", "cifar-10-batches-py", "data_batch_1.bin"]
_CIFAR100 = ["cifar-100-binary", "cifar-100-python", "fine_label_names.txt train.bin"]
_LAYOUTS = {
    "pets": ("Oxford-IIIT Pets", ["images annotations/trainval.txt"]),
    "flowers102": ("Oxford Flowers-102", ["jpg imagelabels.mat"]),
    "cifar10": ("CIFAR-10", [*_CIFAR10, "data_batch_1 batches.meta"]),
    "cifar100": ("CIFAR-100", _CIFAR100),
    "mnist": ("MNIST or Fashion-MNIST", _MNIST),
    "caltech101": ("Caltech-101", ["101_ObjectCategories", "caltech-101"]),
    "imagenet": ("ImageNet", ["ILSVRC/Data/CLS-LOC", "Data/CLS-LOC"]),
}
"""By name: the title, and for each version of the dataset the files that identify it."""


def recognize_layout(folder: Path) -> str | None:
    """Say how to open a published dataset whose folders are not its classes; None for others."""
    for name, (title, versions) in _LAYOUTS.items():
        found = any(all((folder / file).exists() for file in each.split()) for each in versions)
        if found or (name == "imagenet" and _has_flat_validation(folder / "val")):
            other = f" or fashion-mnist:{show(folder)}" if name == "mnist" else ""
            return (
                f"{show(folder)} is {title} as published; write {name}:{show(folder)}{other}, "
                f"or folder:{show(folder)} if its folders are the classes"
            )
    return None


def _has_flat_validation(folder: Path) -> bool:
    """Recognize ImageNet's validation images in one folder, without class folders."""
    try:
        with os.scandir(folder) as entries:
            return any(entry.name.startswith("ILSVRC2012_val_") for entry in entries)
    except OSError:
        return False
