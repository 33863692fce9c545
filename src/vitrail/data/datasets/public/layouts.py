"""Public datasets recognized by the files of their published layouts."""

from __future__ import annotations

import os
from pathlib import Path

from vitrail.text import show

_MNIST = tuple((f"train-images{mark}idx3-ubyte{end}",) for mark in "-." for end in ("", ".gz"))
_LAYOUTS: dict[str, tuple[str, tuple[tuple[str, ...], ...]]] = {
    "pets": ("Oxford-IIIT Pets", (("images", "annotations/trainval.txt"),)),
    "flowers102": ("Oxford Flowers-102", (("jpg", "imagelabels.mat"),)),
    "cifar10": (
        "CIFAR-10",
        (
            ("cifar-10-batches-bin",),
            ("cifar-10-batches-py",),
            ("data_batch_1.bin",),
            ("data_batch_1", "batches.meta"),
        ),
    ),
    "cifar100": (
        "CIFAR-100",
        (
            ("cifar-100-binary",),
            ("cifar-100-python",),
            ("fine_label_names.txt", "train.bin"),
        ),
    ),
    "mnist": ("MNIST or Fashion-MNIST", _MNIST),
    "caltech101": ("Caltech-101", (("101_ObjectCategories",), ("caltech-101",))),
    "imagenet": ("ImageNet", (("ILSVRC/Data/CLS-LOC",), ("Data/CLS-LOC",))),
}
"""By name: what messages call it, and the files that show it, in one of several versions."""


def recognize_layout(folder: Path) -> str | None:
    """Say how to write a folder that would be misread as one of classes; None for others."""
    for name, (title, versions) in _LAYOUTS.items():
        found = any(all((folder / file).exists() for file in version) for version in versions)
        if found or (name == "imagenet" and _has_flat_validation(folder / "val")):
            other = f" or fashion-mnist:{show(folder)}" if name == "mnist" else ""
            return (
                f"{show(folder)} is {title} as published; write {name}:{show(folder)}{other}, "
                f"or folder:{show(folder)} if its folders are the classes"
            )
    return None


def _has_flat_validation(folder: Path) -> bool:
    """Tell ImageNet's validation images in one folder, whose classes a list says."""
    try:
        with os.scandir(folder) as entries:
            return any(entry.name.startswith("ILSVRC2012_val_") for entry in entries)
    except OSError:
        return False
