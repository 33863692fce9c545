"""What training does to images: one record, and the levels that papers have named."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vitrail.config import InputError, suggest

Crop = Literal["inception", "area", "small", "pad", "whole"]
Operations = Literal["big_vision", "torchvision"]


@dataclass(frozen=True, kw_only=True)
class RandAugment:
    """Some random operations in a row on each image (arXiv 1909.13719)."""

    layers: int = 2
    """Operations an image."""
    magnitude: float = 10
    """How strong: 0 to 30 for `torchvision`; of 10 for `big_vision`, which goes beyond (20)."""
    operations: Operations = "big_vision"
    """The 16 operations of big_vision, or the 14 of the paper and torchvision."""

    def __post_init__(self) -> None:
        if self.layers < 0 or not 0 <= self.magnitude <= 30:
            raise InputError(f"no such RandAugment: {self.layers} layers of {self.magnitude}")


@dataclass(frozen=True, kw_only=True)
class Augment:
    """The training transform: crop, flip, then operations on one image, then mixing of two."""

    crop: Crop = "inception"
    """`inception`: a random part, by TensorFlow's sampling rule; `area`: by torchvision's and
    timm's; `small`: the short side to 8/7 of the size, then a random window (big_vision);
    `pad`: a random window of the padded image (CIFAR); `whole`: as evaluation fits it."""
    area: tuple[float, float] = (0.05, 1.0)
    """The part of the image that `inception` and `area` keep (section 4.1's code: 5 to 100 %)."""
    ratio: tuple[float, float] = (0.75, 1.33)
    """Width by height of that part (TensorFlow's default, which the paper's code takes)."""
    pad: float = 0.125
    """Border that `pad` adds, as a part of the size (4 pixels of 32)."""
    flip: float = 0.5
    """Chance of left for right."""
    randaugment: RandAugment | None = None
    brightness: float = 0.0
    """Color jitter: a factor of 1 - x to 1 + x."""
    contrast: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0
    """Color jitter: a turn of the color circle, at most 0.5."""
    erase: float = 0.0
    """Chance that a random rectangle is filled with noise (arXiv 1708.04896)."""
    mixup: float = 0.0
    """Beta parameter of mixup (arXiv 1710.09412); 0 is off."""
    cutmix: float = 0.0
    """Beta parameter of CutMix (arXiv 1905.04899); with mixup too, each batch takes one."""

    def __post_init__(self) -> None:
        low, high = self.area
        if not 0 < low <= high <= 1 or not 0 < self.ratio[0] <= self.ratio[1]:
            raise InputError(f"no such crop: area {self.area}, ratio {self.ratio}")
        chances = {"flip": self.flip, "erase": self.erase}
        for name, value in chances.items():
            if not 0 <= value <= 1:
                raise InputError(f"{name} is a chance from 0 to 1, not {value}")
        amounts = (self.brightness, self.contrast, self.saturation, self.mixup, self.cutmix)
        if min(*amounts, self.hue, self.pad) < 0 or self.hue > 0.5:
            raise InputError(f"no such augmentation: {self}")

    @property
    def mixes(self) -> bool:
        """Tell whether batches are mixed, and labels are shares of classes."""
        return self.mixup > 0 or self.cutmix > 0


def _augreg(magnitude: float, mixup: float) -> Augment:
    return Augment(randaugment=RandAugment(layers=2, magnitude=magnitude), mixup=mixup)


AUGMENTS: dict[str, Augment] = {
    "none": Augment(),  # arXiv 2106.10270, section 3.3: crop and flip only
    "light1": _augreg(0, 0.0),
    "light2": _augreg(10, 0.2),
    "medium1": _augreg(15, 0.2),
    "medium2": _augreg(15, 0.5),
    "strong1": _augreg(20, 0.5),
    "strong2": _augreg(20, 0.8),
}
"""AugReg's levels by name."""


def parse_augment(name: str) -> Augment:
    """Look an AugReg level up by name."""
    if name not in AUGMENTS:
        near = suggest(name, AUGMENTS) or f"; there are: {', '.join(AUGMENTS)}"
        raise InputError(f"unknown augmentation {name!r}{near}")
    return AUGMENTS[name]
