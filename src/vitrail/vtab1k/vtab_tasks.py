"""The 19 tasks as records: names, groups, classes, test images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Group = Literal["natural", "specialized", "structured"]
GROUPS: tuple[Group, ...] = ("natural", "specialized", "structured")


@dataclass(frozen=True)
class VTABTask:
    """One task of VTAB."""

    name: str
    title: str
    group: Group
    classes: int
    test: int
    """Images of the test split, on all of which it is evaluated."""
    folders: tuple[str, ...] = ()
    """Other names of its folder, for example those of the usual lists."""
    scheme: str | None = None
    """The scheme of DATA that opens the dataset as published, if there is one."""
    crop: bool = True
    """Whether a random crop keeps the label, which a distance, a count or a place does not."""
    flip: bool = True
    """Whether a horizontal flip keeps it."""

    @property
    def places(self) -> tuple[str, ...]:
        """The folders, or lists without their .csv, that may hold it."""
        return self.name, *self.folders


# VTAB's Tables 2 and 3 (arXiv 1910.04867); for the count of test images also task_adaptation.
# What crops and flips would falsify: BiT (arXiv 1912.11370), supplement F, which section B.1.1 of
# the paper follows.
TASKS: tuple[VTABTask, ...] = (
    VTABTask("caltech101", "Caltech101", "natural", 102, 6_084, (), "caltech101"),
    VTABTask("cifar100", "CIFAR-100", "natural", 100, 10_000, ("cifar", "cifar-100"), "cifar100"),
    VTABTask("dtd", "DTD", "natural", 47, 1_880),
    VTABTask("flowers102", "Flowers102", "natural", 102, 6_149, ("oxford_flowers102",),
             "flowers102"),
    VTABTask("pets", "Pets", "natural", 37, 3_669, ("oxford_iiit_pet",), "pets"),
    VTABTask("sun397", "Sun397", "natural", 397, 21_750),
    VTABTask("svhn", "SVHN", "natural", 10, 26_032),
    VTABTask("camelyon", "Patch Camelyon", "specialized", 2, 32_768, ("patch_camelyon",)),
    VTABTask("eurosat", "EuroSAT", "specialized", 10, 5_400),
    VTABTask("resisc45", "Resisc45", "specialized", 45, 6_300),
    VTABTask("retinopathy", "Retinopathy", "specialized", 5, 42_670, ("diabetic_retinopathy",)),
    VTABTask("clevr-count", "Clevr-Count", "structured", 8, 15_000, ("clevr_count",), crop=False),
    VTABTask("clevr-distance", "Clevr-Distance", "structured", 6, 15_000,
             ("clevr_distance", "clevr_dist"), crop=False),
    VTABTask("dmlab", "DMLab", "structured", 6, 22_735, crop=False),
    VTABTask("dsprites-location", "dSprites-Location", "structured", 16, 73_728,
             ("dsprites_location", "dsprites_loc"), crop=False, flip=False),
    VTABTask("dsprites-orientation", "dSprites-Orientation", "structured", 16, 73_728,
             ("dsprites_orientation", "dsprites_ori"), flip=False),
    VTABTask("kitti-distance", "KITTI-Distance", "structured", 4, 711, ("kitti_distance", "kitti"),
             crop=False),
    VTABTask("smallnorb-azimuth", "sNORB-Azimuth", "structured", 18, 12_150,
             ("smallnorb_azimuth", "smallnorb_azi"), flip=False),
    VTABTask("smallnorb-elevation", "sNORB-Elevation", "structured", 9, 12_150,
             ("smallnorb_elevation", "smallnorb_ele")),
)  # fmt: skip
"""All tasks, in the order of the ViT paper's Table 9."""
