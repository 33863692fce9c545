"""Augmentation for training: one record, and AugReg's levels by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from vitrail.config import (
    InputError,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    Range,
    UnitFloat,
    UsedIf,
    suggest,
    validate,
)

Crop = Literal["inception", "area", "small", "square", "pad", "whole"]
Operations = Literal["big_vision", "torchvision", "timm"]
_Area = Annotated[float, Range("(0, 1]")]


@dataclass(frozen=True, kw_only=True)
class RandAugment:
    """Random operations on each image, one after the other (arXiv 1909.13719)."""

    layers: PositiveInt = 2
    """Operations per image."""
    magnitude: Annotated[float, Range("[0, 30]")] = 10
    """Strength: 0 to 30 with `torchvision`; 10 is full strength with `big_vision`, which uses up
    to 20, and with `timm`, which ends there."""
    operations: Operations = "big_vision"
    """The 16 operations of big_vision, the 14 of the paper and torchvision, or the 15 of timm, in
    their increasing form (`inc1`)."""
    probability: UnitFloat = 1.0
    """Probability of each operation, which otherwise leaves the image as it is (timm: 0.5)."""
    magnitude_std: NonNegativeFloat = 0.0
    """Std of the magnitude, sampled for each operation (timm's `mstd0.5`: 0.5)."""
    fill: Annotated[int, Range("[0, 255]")] | None = None
    """Gray beside a moved image; by default 128 for `big_vision`, black for `torchvision`, and the
    model's mean for `timm`."""

    def __post_init__(self) -> None:
        validate(self, "augment.randaugment")
        if self.operations == "timm" and self.magnitude > 10:
            raise InputError(
                "augment.randaugment.magnitude must be in [0, 10] with operations timm, got "
                f"{self.magnitude:g}"
            )


@dataclass(frozen=True, kw_only=True)
class Augment:
    """The training transform: crop, flip, then operations on one image, then mixing of two."""

    crop: Crop = "inception"
    """`inception`: a random box, sampled as TensorFlow does; `area`: as torchvision and timm do;
    `small`: the short side resized to more than the size, then a random window (big_vision);
    `square`: the whole image stretched so (BiT); `pad`: a random window of the padded image
    (CIFAR); `whole`: no crop, as in evaluation."""
    area: Annotated[tuple[_Area, _Area], UsedIf("crop", "inception", "area")] = (0.05, 1.0)
    """Fraction of the image that `inception` and `area` keep (the paper's code: 5 to 100 %)."""
    ratio: Annotated[tuple[PositiveFloat, PositiveFloat], UsedIf("crop", "inception", "area")] = (
        0.75,
        1.33,
    )
    """Aspect ratio (width / height) of that box (TensorFlow's default, as in the paper's code)."""
    window: Annotated[_Area | None, UsedIf("crop", "small", "square")] = None
    """Side of the window of `small` and `square`, as a fraction of the resized side; by default
    224/256, and from 384 pixels on 384/448 (both of big_vision)."""
    pad: Annotated[NonNegativeFloat, UsedIf("crop", "pad")] = 0.125
    """Border that `pad` adds, as a fraction of the size (4 pixels of 32)."""
    flip: UnitFloat = 0.5
    """Probability of a horizontal flip."""
    randaugment: RandAugment | None = None
    brightness: NonNegativeFloat = 0.0
    """Color jitter: a factor of 1 - x to 1 + x."""
    contrast: NonNegativeFloat = 0.0
    saturation: NonNegativeFloat = 0.0
    hue: Annotated[float, Range("[0, 0.5]")] = 0.0
    """Color jitter: a shift of the hue by -x to x."""
    erase: UnitFloat = 0.0
    """Probability that a random rectangle is filled with noise (arXiv 1708.04896)."""
    mixup: NonNegativeFloat = 0.0
    """Beta parameter of mixup (arXiv 1710.09412); 0 is off."""
    cutmix: NonNegativeFloat = 0.0
    """Beta parameter of CutMix (arXiv 1905.04899); with mixup too, each batch uses one."""

    def __post_init__(self) -> None:
        validate(self, "augment")
        for name, (low, high) in {"area": self.area, "ratio": self.ratio}.items():
            if low > high:
                raise InputError(
                    f"augment.{name} must be the lower bound, then the upper, got {low}, {high}"
                )

    @property
    def mixes(self) -> bool:
        """Tell whether batches are mixed, so that labels are class probabilities."""
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
    """Look up one of AugReg's levels by name."""
    if name not in AUGMENTS:
        near = suggest(name, AUGMENTS) or f"; expected one of {', '.join(AUGMENTS)}"
        raise InputError(f"unknown augmentation {name!r}{near}")
    return AUGMENTS[name]
