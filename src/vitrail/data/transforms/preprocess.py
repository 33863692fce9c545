"""How an image becomes a model's input: one record, which travels with the weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vitrail.config import InputError

Interpolation = Literal["nearest", "bilinear", "bicubic", "lanczos", "area"]
Fit = Literal["stretch", "crop", "small"]


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
    short side and cuts the center out, with torchvision's and timm's rounding; `small` does so with
    big_vision's."""
    crop: float = 1.0
    """The part of the resized image's side that is kept: both sides with `stretch`, the short
    one otherwise."""
    antialias: bool = True
    """Whether a smaller image is averaged from all pixels, as Pillow does; TensorFlow's plain
    resize, with which the paper's models were trained, takes the nearest ones only."""

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std):
            raise InputError(f"{len(self.mean)} means but {len(self.std)} stds")
        if min(self.size) < 1 or not 0 < self.crop <= 1 or min(self.std, default=0) <= 0:
            raise InputError(f"no such preprocessing: {self}")

    @property
    def channels(self) -> int:
        """Count the channels of the model's input."""
        return len(self.mean)


def default_preprocess(size: tuple[int, int], channels: int) -> Preprocess:
    """Give what the paper's models take: the whole image, from -1 to 1."""
    half = (0.5,) * channels
    return Preprocess(size=size, mean=half, std=half, interpolation="bilinear", fit="stretch")
