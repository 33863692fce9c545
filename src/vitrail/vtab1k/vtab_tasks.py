"""The 19 tasks as records: names, groups, classes, test images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Group = Literal["natural", "specialized", "structured"]
GROUPS: tuple[Group, ...] = ("natural", "specialized", "structured")


@dataclass(frozen=True)
class Task:
    """One task of VTAB."""

    name: str
    title: str
    group: Group
    classes: int
    test: int
    """Images of the test split, on all of which it is evaluated."""
    folders: tuple[str, ...] = ()
    """Other names of its folder, for example those of the usual lists."""
    source: str | None = None
    """The scheme of DATA that opens the dataset as published, if there is one."""

    @property
    def places(self) -> tuple[str, ...]:
        """The folders, or lists without their .csv, that may hold it."""
        return self.name, *self.folders


# VTAB's Tables 2 and 3 (arXiv 1910.04867); for the count of test images also task_adaptation.
TASKS: tuple[Task, ...] = (
    Task("caltech101", "Caltech101", "natural", 102, 6_084, (), "caltech101"),
    Task("cifar100", "CIFAR-100", "natural", 100, 10_000, ("cifar", "cifar-100"), "cifar100"),
    Task("dtd", "DTD", "natural", 47, 1_880),
    Task("flowers102", "Flowers102", "natural", 102, 6_149, ("oxford_flowers102",), "flowers102"),
    Task("pets", "Pets", "natural", 37, 3_669, ("oxford_iiit_pet",), "pets"),
    Task("sun397", "Sun397", "natural", 397, 21_750),
    Task("svhn", "SVHN", "natural", 10, 26_032),
    Task("camelyon", "Patch Camelyon", "specialized", 2, 32_768, ("patch_camelyon",)),
    Task("eurosat", "EuroSAT", "specialized", 10, 5_400),
    Task("resisc45", "Resisc45", "specialized", 45, 6_300),
    Task("retinopathy", "Retinopathy", "specialized", 5, 42_670, ("diabetic_retinopathy",)),
    Task("clevr-count", "Clevr-Count", "structured", 8, 15_000, ("clevr_count",)),
    Task("clevr-distance", "Clevr-Distance", "structured", 6, 15_000,
         ("clevr_distance", "clevr_dist")),
    Task("dmlab", "DMLab", "structured", 6, 22_735),
    Task("dsprites-location", "dSprites-Location", "structured", 16, 73_728,
         ("dsprites_location", "dsprites_loc")),
    Task("dsprites-orientation", "dSprites-Orientation", "structured", 16, 73_728,
         ("dsprites_orientation", "dsprites_ori")),
    Task("kitti-distance", "KITTI-Distance", "structured", 4, 711, ("kitti_distance", "kitti")),
    Task("smallnorb-azimuth", "sNORB-Azimuth", "structured", 18, 12_150,
         ("smallnorb_azimuth", "smallnorb_azi")),
    Task("smallnorb-elevation", "sNORB-Elevation", "structured", 9, 12_150,
         ("smallnorb_elevation", "smallnorb_ele")),
)  # fmt: skip
"""All tasks, in the order of the ViT paper's Table 9."""
