"""How an image becomes a model's input: one record, which travels with the weights."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from vitrail.config import InputError
from vitrail.data.decoding.reading import Reading

if TYPE_CHECKING:
    from vitrail.data.dataset import ImageDataset, ImageStream

Interpolation = Literal["nearest", "bilinear", "bicubic", "lanczos", "area"]
Fit = Literal["stretch", "crop", "small"]
Center = Literal["round", "floor"]
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Mean and std of ImageNet's pixels, with which timm, DeiT and MAE normalize."""
LARGEST_SIDE = 4096
"""Most pixels of a side of a model's input: 200 MB as numbers. Published ones end at 1024."""


@dataclass(frozen=True, kw_only=True)
class Preprocess:
    """The evaluation transform that weights were published with."""

    size: tuple[int, int]
    """Height and width of the model's input."""
    mean: tuple[float, ...]
    """What is taken from each channel, of pixels from 0 to 1."""
    std: tuple[float, ...]
    """What each channel is divided by then."""
    interpolation: Interpolation
    fit: Fit
    """`stretch` resizes to the size whatever the shape (Google, Hugging Face); `crop` resizes the
    short side and cuts the center out, as torchvision, timm and Hugging Face do; `small` does so
    with big_vision's rounding."""
    crop: float = 1.0
    """The part of the resized image's side that is kept: both sides with `stretch`, the short
    one otherwise."""
    antialias: bool = True
    """Whether a smaller image is averaged from all pixels, as Pillow does; TensorFlow's plain
    resize, with which the paper's models were trained, takes the nearest ones only."""
    center: Center = "round"
    """Where `crop` begins if the margin is an odd number of pixels: its half, rounded (torchvision
    and timm) or rounded down (Hugging Face)."""
    patches: int = 0
    """Patch budget (NaFlex, SigLIP 2): images keep their aspect ratio, in as many patches as fit; 0
    for images of one size. Where one size is needed, as in exported models, it is `size`."""
    patch_size: int = 16
    """Side of these patches, in pixels."""
    reading: Reading | None = None
    """Black and white of deep images, and the page of TIFFs, as in the data that it was trained on;
    without it, images are read as their dataset says."""

    def __post_init__(self) -> None:
        if self.patches < 0 or self.patches > LARGEST_SIDE:
            raise InputError(f"patches must be in [0, {LARGEST_SIDE}], got {_brief(self.patches)}")
        if not 1 <= self.patch_size <= LARGEST_SIDE:
            raise InputError(f"patch_size must be at least 1, got {_brief(self.patch_size)}")
        if len(self.mean) != len(self.std) or not self.mean:
            raise InputError(f"{len(self.mean)} means but {len(self.std)} stds; expected as many")
        if not 1 <= min(self.size) <= max(self.size) <= LARGEST_SIDE:
            raise InputError(f"size must be in [1, {LARGEST_SIDE}], got {_brief(self.size)}")
        least = max(0.05, max(self.size) / (2 * LARGEST_SIDE))  # it is cut from a larger image
        if not least <= self.crop <= 1:
            raise InputError(f"crop must be in [{least:g}, 1], got {_brief(self.crop)}")
        if not all(math.isfinite(each) and abs(each) <= 1e3 for each in self.mean):
            raise InputError(f"mean must be in [-1000, 1000], got {_brief(self.mean)}")
        if not all(1e-4 <= each <= 1e4 for each in self.std):
            raise InputError(f"std must be in [0.0001, 10000], got {_brief(self.std)}")

    @property
    def channels(self) -> int:
        """Count the channels of the model's input."""
        return len(self.mean)

    def read_as(self, dataset: ImageDataset | ImageStream, *, learn: bool = False) -> Preprocess:
        """Read a dataset's files as it says, where DATA says so or the model does not.

        To `learn` from it, the dataset is always obeyed.
        """
        reading = dataset.reading
        if reading is None or (self.reading and not (learn or dataset.reading_given)):
            return self
        return replace(self, reading=reading)


def _brief(value: object) -> str:
    return str(value)[:80]


def default_preprocess(size: tuple[int, int], channels: int) -> Preprocess:
    """Give what the paper's models take: the whole image, from -1 to 1."""
    half = (0.5,) * channels
    return Preprocess(size=size, mean=half, std=half, interpolation="bilinear", fit="stretch")
