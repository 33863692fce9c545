"""Pre-training without labels: an encoder with what predicts the patches that it was not shown.

What only pre-training needs (mask embedding, prediction, decoder) stands beside the encoder, never
in it, so that the encoder is an ordinary ViT to whoever loads it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor, nn

from vitrail.config import InputError
from vitrail.models.init import init_layers, normal, xavier
from vitrail.models.layers import Block
from vitrail.models.model import Model
from vitrail.models.positions import sincos_2d
from vitrail.models.pretraining.masking import MaskConfig, Masking, gather_patches, mask_patches
from vitrail.models.pretraining.patch_targets import Target, target_size
from vitrail.models.spec import HybridSpec, Size, Spec, ViTSpec
from vitrail.models.vit import ViT


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """The light transformer that MAE predicts pixels with (arXiv 2111.06377, section 4.1)."""

    depth: int = 8
    """Blocks."""
    width: int = 512
    """Size of a token."""
    heads: int = 16
    """Attention heads of a block."""

    def __post_init__(self) -> None:
        for name in ("depth", "width", "heads"):
            if (value := getattr(self, name)) < 1:
                raise InputError(f"mim.decoder.{name} is at least 1, not {value}")


@dataclass(frozen=True, kw_only=True)
class MIMConfig:
    """What is hidden from the encoder, and what it has to say of it."""

    mask: MaskConfig = field(default_factory=MaskConfig)
    target: Target = "color"  # Appendix B.1.2: the best of its three
    """`color` of 512, `colors` of 4 x 4 parts, `pixels`, or `normalized-pixels` (MAE)."""
    distance: Literal["square", "absolute"] = "square"
    """How far predicted pixels are from the true ones."""
    decoder: DecoderConfig = field(default_factory=DecoderConfig)
    """Of `mae` only."""


class MaskedImageModel(Model[ViTSpec]):
    """An encoder in pre-training: images and their masking in, predictions out."""

    def __init__(self, encoder: ViT) -> None:
        super().__init__(encoder.spec)
        self.encoder = encoder

    def tokens(self, x: Tensor) -> Tensor:
        """Encode images, none of their patches hidden."""
        return self.encoder.tokens(x)

    def pool(self, tokens: Tensor) -> Tensor:
        """Pool encoded tokens as the encoder does."""
        return self.encoder.pool(tokens)

    def forward_intermediates(
        self, x: Tensor, indices: Sequence[int] | None = None, *, norm: bool = False
    ) -> tuple[Tensor, list[Tensor]]:
        """Give the encoder's tokens and the outputs of its blocks, no patch hidden."""
        return self.encoder.forward_intermediates(x, indices, norm=norm)

    def flatten_tokens(self, x: Tensor) -> Tensor:
        """Bring a block's output to (batch, tokens, width)."""
        return self.encoder.flatten_tokens(x)

    @abstractmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]  # it does not classify
        self, x: Tensor, masking: Masking
    ) -> Tensor:
        """Predict the chosen patches of images (batch, chosen, outputs)."""

    def init_parameters(self) -> None:
        """Fill all parameters from torch's random generator."""
        self.encoder.init_parameters()
        self.init_prediction()

    @abstractmethod
    def init_prediction(self) -> None:
        """Fill what stands beside the encoder."""

    def layer_of(self, parameter: str) -> int:
        """Say how deep a parameter sits: the encoder's as there, the others after its last."""
        room, _, rest = parameter.partition(".")
        return self.encoder.layer_of(rest if room == "encoder" else "head")


class MaskedViT(MaskedImageModel):
    """BERT's way, the paper's (Appendix B.1.2), and SimMIM's: the encoder gets mask embeddings."""

    def __init__(self, encoder: ViT, target: Target) -> None:
        super().__init__(encoder)
        spec = encoder.spec
        self.mask = nn.Parameter(torch.empty(spec.width))
        self.predict = nn.Linear(spec.width, target_size(target, spec.stride, spec.channels))
        if not self.mask.is_meta:
            self.init_prediction()

    def forward(self, x: Tensor, masking: Masking) -> Tensor:
        """Predict the chosen patches of images (batch, chosen, outputs)."""
        encoder = self.encoder
        patches, grid = encoder.embed_patches(x)
        tokens = encoder.embed_tokens(mask_patches(patches, self.mask, masking), grid)
        encoded = encoder.run_blocks(tokens, grid)[:, self.spec.prefix :]
        return self.predict(encoder.norm(gather_patches(encoded, masking.chosen)))

    @torch.no_grad()
    def init_prediction(self) -> None:
        """Fill the mask embedding and the prediction from torch's random generator."""
        normal(self.mask, std=0.02)
        xavier(self.predict)


class MaskedAutoencoder(MaskedImageModel):
    """MAE (arXiv 2111.06377): the encoder sees only the other patches, a light decoder all."""

    def __init__(self, encoder: ViT, target: Target, decoder: DecoderConfig) -> None:
        super().__init__(encoder)
        spec = encoder.spec
        _check_droppable(spec)
        if decoder.width < 8 or decoder.width % 4 or decoder.width % decoder.heads:
            raise InputError(
                f"mim.decoder.width {decoder.width} must be at least 8 and a multiple of 4 and "
                f"of its {decoder.heads} heads"
            )
        light = replace(
            spec,
            depth=decoder.depth,
            width=decoder.width,
            heads=decoder.heads,
            mlp=4 * decoder.width,  # section 4.1
            position="sincos-2d",
            **dict.fromkeys(("dropout", "attention_dropout", "stochastic_depth"), 0.0),
        )
        self.enter = nn.Linear(spec.width, light.width)
        self.mask = nn.Parameter(torch.empty(light.width))
        self.blocks = nn.ModuleList(Block(light, 0.0) for _ in range(light.depth))
        self.norm = nn.LayerNorm(light.width, spec.norm_eps)
        self.predict = nn.Linear(light.width, target_size(target, spec.stride, spec.channels))
        if not self.mask.is_meta:
            self.init_prediction()

    def forward(self, x: Tensor, masking: Masking) -> Tensor:
        """Predict the chosen patches of images (batch, chosen, outputs)."""
        encoder, prefix = self.encoder, self.spec.prefix
        patches, grid = encoder.embed_patches(x)
        tokens = encoder.embed_tokens(patches, grid)
        seen = gather_patches(tokens[:, prefix:], masking.seen)
        seen = torch.cat([tokens[:, :prefix], seen], dim=1)
        encoded = self.enter(encoder.norm(encoder.run_blocks(seen, grid)))
        return self.decode(encoded, masking, grid)

    def decode(self, encoded: Tensor, masking: Masking, grid: Size) -> Tensor:
        """Predict chosen patches from tokens that have the decoder's width."""
        prefix, width = self.spec.prefix, encoded.shape[2]
        encoded = encoded.to(self.mask.dtype)  # autocast's halves would round the blocks' sums
        places = masking.seen[..., None].expand(-1, -1, width)
        blank = self.mask.expand(len(encoded), grid[0] * grid[1], -1)
        patches = blank.scatter(1, places, encoded[:, prefix:]) + self.positions(grid, encoded)
        x = torch.cat([encoded[:, :prefix], patches], dim=1)
        for block in self.blocks:
            x = self.run_block(block, x)
        return self.predict(self.norm(gather_patches(x[:, prefix:], masking.chosen)))

    def positions(self, grid: Size, like: Tensor) -> Tensor:
        """Give the decoder's fixed position embeddings (patches, width)."""
        return sincos_2d(grid, like.shape[-1], like.dtype, like.device)

    @torch.no_grad()
    def init_prediction(self) -> None:
        """Fill the decoder from torch's random generator."""
        init_layers(self.blocks)
        init_layers(self.norm)
        normal(self.mask, std=0.02)
        xavier(self.enter)
        xavier(self.predict)


def encoder_spec(spec: Spec) -> ViTSpec:
    """Take the head off a spec; only a ViT's has patches to predict."""
    if not isinstance(spec, ViTSpec):
        raise InputError(f"{spec.name} has no patch tokens to predict; choose a ViT or a hybrid")
    return replace(spec, classes=0, representation=0)


def _check_droppable(spec: ViTSpec) -> None:
    """Refuse an encoder that can't do without a part of its patches."""
    whole = {
        "a stem sees the whole image": isinstance(spec, HybridSpec),
        "axial attention runs over whole rows": spec.attention == "axial",
        "positions act in every layer": spec.position_at != "input",
    }
    for reason, found in whole.items():
        if found:
            raise InputError(
                f"mae leaves patches out, and in {spec.name} {reason}; choose a plain ViT, or "
                "--task masked-patches"
            )
