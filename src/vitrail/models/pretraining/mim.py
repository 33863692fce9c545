"""Masked image modeling: its settings, and the shapes that follow from them.

This module does not import torch, so that costs answer at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from vitrail.config import InputError, PositiveInt, Range, UnitFloat, UsedIf, validate
from vitrail.models.spec import HybridSpec, Size, Spec, ViTSpec
from vitrail.models.vit_spec import PLAIN_HEAD, QUIET

Target = Literal["color", "colors", "pixels", "normalized-pixels"]
"""The mean color of 512 (Appendix B.1.2), those of 4 x 4 parts, or the pixels themselves."""
Pixels = Literal["raw", "input"]
"""Whether targets are pixels from 0 to 1, or as the model gets them, by mean and std normalized."""

LEVELS = 8  # Appendix B.1.2: 3 bits per channel
PARTS = 4  # Appendix B.1.2: 4 x 4 parts per patch


@dataclass(frozen=True, kw_only=True)
class MaskConfig:
    """How patches are corrupted (Appendix B.1.2)."""

    ratio: Annotated[float, Range("(0, 1)")] = 0.5  # Appendix B.1.2
    """Fraction of the patches that is chosen, and predicted."""
    masked: UnitFloat = 0.8  # Appendix B.1.2
    """Fraction of the chosen patches that becomes the mask embedding."""
    replaced: UnitFloat = 0.1  # Appendix B.1.2
    """Fraction of the chosen patches that becomes another patch's embedding; the rest stay."""
    unit: PositiveInt = 1
    """Side of the squares of patches that are chosen together (SimMIM)."""
    rounding: Literal["nearest", "up"] = "nearest"
    """How the number of chosen patches, or of squares, is rounded (MAE and SimMIM: up)."""

    def __post_init__(self) -> None:
        validate(self, "mim.mask")
        if self.masked + self.replaced > 1 + 1e-9:
            total = f"{self.masked:g} + {self.replaced:g}"
            raise InputError(f"mim.mask.masked + mim.mask.replaced must be at most 1, got {total}")


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """The light transformer that MAE predicts pixels with (arXiv 2111.06377, section 4.1)."""

    depth: PositiveInt = 8
    """Blocks."""
    width: PositiveInt = 512
    """Size of a token."""
    heads: PositiveInt = 16
    """Attention heads of a block."""

    def __post_init__(self) -> None:
        validate(self, "mim.decoder")


@dataclass(frozen=True, kw_only=True)
class MIMConfig:
    """What is hidden from the encoder, and what is predicted."""

    mask: MaskConfig = field(default_factory=MaskConfig)
    target: Target = "color"  # Appendix B.1.2: the best of its three
    """`color` of 512, `colors` of 4 x 4 parts, `pixels`, or `normalized-pixels` (MAE)."""
    distance: Annotated[
        Literal["square", "absolute"], UsedIf("target", "pixels", "normalized-pixels")
    ] = "square"
    """Distance between predicted and true pixels."""
    pixels: Annotated[Pixels, UsedIf("target", "pixels", "normalized-pixels")] = "raw"
    """Whether pixel targets are `raw`, from 0 to 1, or of the model's `input`, which mean and std
    have normalized (MAE, SimMIM)."""
    decoder: DecoderConfig = field(default_factory=DecoderConfig)
    """Only for `mae`."""

    def __post_init__(self) -> None:
        validate(self, "mim")


def check_mim(mim: MIMConfig, task: str) -> None:
    """Refuse settings that a task (`classification`, `masked-patches`, `mae`) does not read."""
    plain = MIMConfig()
    if task in ("classification", "regression"):
        if mim != plain:
            raise InputError("mim.* requires --task masked-patches or --task mae")
    elif task == "mae":
        if (mim.mask.masked, mim.mask.replaced) != (plain.mask.masked, plain.mask.replaced):
            raise InputError(
                "mim.mask.masked and mim.mask.replaced require --task masked-patches; "
                "mae leaves the chosen patches out"
            )
    elif mim.decoder != plain.decoder:
        raise InputError(f"mim.decoder.* requires --task mae; {task} has no decoder")


def encoder_spec(spec: Spec) -> ViTSpec:
    """Return the spec without its head; only a ViT has patches to predict."""
    if not isinstance(spec, ViTSpec):
        raise InputError(f"{spec.name} has no patch tokens to predict; choose a ViT or a hybrid")
    return replace(spec, classes=0, **PLAIN_HEAD)


def decoder_spec(spec: ViTSpec, decoder: DecoderConfig) -> ViTSpec:
    """Return the spec of MAE's decoder; refuse an encoder that needs all of its patches."""
    whole = {
        "a stem sees the whole image": isinstance(spec, HybridSpec),
        "axial attention runs over whole rows": spec.attention == "axial",
        "positions act in every layer": spec.position_at != "input" or spec.rotary != "none",
    }
    for reason, found in whole.items():
        if found:
            raise InputError(
                f"mae leaves patches out, and in {spec.name} {reason}; choose a plain ViT, or "
                "--task masked-patches"
            )
    if decoder.width < 8 or decoder.width % 4 or decoder.width % decoder.heads:
        raise InputError(
            f"mim.decoder.width {decoder.width} must be at least 8 and a multiple of 4 and "
            f"of its {decoder.heads} heads"
        )
    return replace(
        spec,
        depth=decoder.depth,
        width=decoder.width,
        heads=decoder.heads,
        mlp=4 * decoder.width,  # section 4.1
        position="sincos-2d-mae",
        key_heads=0,
        key_heads_ends=0,
        **QUIET,
    )


def count_chosen(grid: Size, mask: MaskConfig) -> int:
    """Return how many patches of an image are chosen."""
    rows, columns = grid[0] // mask.unit, grid[1] // mask.unit
    if (rows * mask.unit, columns * mask.unit) != grid:
        raise InputError(
            f"mim.mask.unit {mask.unit} does not divide the grid of {grid[0]}x{grid[1]} patches"
        )
    units = rows * columns
    exact = mask.ratio * units
    chosen = math.ceil(exact) if mask.rounding == "up" else round(exact)
    if not 0 < chosen < units:
        raise InputError(
            f"mim.mask.ratio {mask.ratio:g} of {units} patches is {chosen}; some have to be "
            "chosen, and some not"
        )
    return chosen * mask.unit**2


def target_size(target: Target, patch: Size, channels: int) -> int:
    """Return the size of the prediction for one patch."""
    height, width = patch
    if target in ("pixels", "normalized-pixels"):
        return height * width * channels
    if channels != 3:
        raise InputError(f"mim.target {target} requires 3 channels, the model has {channels}")
    if target == "color":
        return LEVELS**3
    if height % PARTS or width % PARTS:
        raise InputError(
            f"4 x 4 colors need patches whose sides 4 divides, not {height}x{width}; "
            "choose --mim.target color or pixels"
        )
    return PARTS**2 * LEVELS**3
