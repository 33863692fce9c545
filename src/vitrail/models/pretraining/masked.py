"""Masked image modeling: an encoder, and the layers that predict its masked patches.

What only pre-training needs (mask embedding, prediction, decoder) is beside the encoder, not in it,
so that the encoder stays an ordinary ViT.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.models.init import init_layers, normal, xavier
from vitrail.models.layers.blocks import Block
from vitrail.models.layers.linear import Linear
from vitrail.models.layers.norms import make_norm
from vitrail.models.model import Model
from vitrail.models.positions.absolute import sincos_2d
from vitrail.models.positions.grid_resizing import resize_positions
from vitrail.models.pretraining.masking import Masking, gather_patches, mask_patches
from vitrail.models.pretraining.mim import DecoderConfig, Target, decoder_spec, target_size
from vitrail.models.spec import Size, ViTSpec
from vitrail.models.vit import ViT


class MaskedImageModel(Model[ViTSpec]):
    """An encoder in pre-training: maps images and their masking to predictions."""

    def __init__(self, encoder: ViT) -> None:
        super().__init__(encoder.spec)
        self.encoder = encoder

    def tokens(self, x: Tensor) -> Tensor:
        """Encode whole images."""
        return self.encoder.tokens(x)

    def pool(self, tokens: Tensor) -> Tensor:
        """Pool encoded tokens as the encoder does."""
        return self.encoder.pool(tokens)

    def intermediates(
        self, x: Tensor, layers: int | Sequence[int] | None = None, **options: Any
    ) -> list[Tensor]:
        """Return the outputs of the encoder's blocks for whole images."""
        return self.encoder.intermediates(x, layers, **options)

    def forward_intermediates(
        self, x: Tensor, indices: int | Sequence[int] | None = None, *, norm: bool = False
    ) -> tuple[Tensor, list[Tensor]]:
        """Return the encoder's tokens and the outputs of its blocks, for whole images."""
        return self.encoder.forward_intermediates(x, indices, norm=norm)

    def run_to(self, x: Tensor, layers: Sequence[int], stop: int) -> dict[int, Tensor]:
        """Run whole images up to one of the encoder's blocks."""
        return self.encoder.run_to(x, layers, stop)

    def finish(self, output: Tensor) -> Tensor:
        """Return the encoded tokens of the encoder's last block."""
        return self.encoder.finish(output)

    def map_size(self, x: Tensor, output: Tensor) -> Size:
        """Return the rows and columns of images' patches."""
        return self.encoder.map_size(x, output)

    def flatten_tokens(self, x: Tensor) -> Tensor:
        """Reshape a block's output to (batch, tokens, width)."""
        return self.encoder.flatten_tokens(x)

    @abstractmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]  # it does not classify
        self, x: Tensor, masking: Masking
    ) -> Tensor:
        """Predict the chosen patches of images (batch, chosen, outputs)."""

    def init_parameters(self) -> None:
        """Fill all parameters, with torch's global generator."""
        self.encoder.init_parameters()
        self.init_prediction()

    @abstractmethod
    def init_prediction(self) -> None:
        """Fill all parameters but the encoder's."""

    def layer_of(self, parameter: str) -> int:
        """Return a parameter's depth: in the encoder, or that of its head for all others."""
        room, _, rest = parameter.partition(".")
        return self.encoder.layer_of(rest if room == "encoder" else "head")


class MaskedViT(MaskedImageModel):
    """The paper's way (Appendix B.1.2) and SimMIM's: the encoder gets mask embeddings."""

    def __init__(self, encoder: ViT, target: Target) -> None:
        super().__init__(encoder)
        spec = encoder.spec
        self.mask = nn.Parameter(torch.empty(spec.width))
        self.predict = Linear(spec.width, target_size(target, spec.stride, spec.channels))
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
        """Fill the mask embedding and the prediction layer, with torch's global generator."""
        normal(self.mask, std=0.02)
        xavier(self.predict)


class MaskedAutoencoder(MaskedImageModel):
    """MAE (arXiv 2111.06377): the encoder gets the visible patches, a light decoder all."""

    def __init__(self, encoder: ViT, target: Target, decoder: DecoderConfig) -> None:
        super().__init__(encoder)
        spec = encoder.spec
        light = decoder_spec(spec, decoder)
        self.enter = Linear(spec.width, light.width)
        self.mask = nn.Parameter(torch.empty(light.width))
        self.blocks = nn.ModuleList(Block(light, 0.0) for _ in range(light.depth))
        self.norm = make_norm(light, light.width)
        self.predict = Linear(light.width, target_size(target, spec.stride, spec.channels))
        self.table: Tensor | None
        self.register_buffer("table", None)  # weights may come with other positions than MAE's
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
        encoded = encoded.to(self.mask.dtype)  # 16 bits would round the residual stream
        places = masking.seen[..., None].expand(-1, -1, width)
        blank = self.mask.expand(len(encoded), grid[0] * grid[1], -1)
        patches = blank.scatter(1, places, encoded[:, prefix:])
        x = torch.cat([encoded[:, :prefix], patches], dim=1) + self.positions(grid, encoded)
        for block in self.blocks:
            x = self.run_block(block, x)
        return self.predict(self.norm(gather_patches(x[:, prefix:], masking.chosen)))

    def positions(self, grid: Size, like: Tensor) -> Tensor:
        """Return the decoder's fixed position embeddings (tokens, width)."""
        if self.table is not None:
            rule, prefix = self.spec.position_resize, self.spec.prefix
            return resize_positions(self.table, self.spec.grid, grid, rule, prefix)
        return F.pad(sincos_2d(grid, like.shape[-1], like, mae=True), (0, 0, self.spec.prefix, 0))

    @torch.no_grad()
    def init_prediction(self) -> None:
        """Fill the decoder, with torch's global generator."""
        init_layers(self.blocks)
        init_layers(self.norm)
        normal(self.mask, std=0.02)
        xavier(self.enter)
        xavier(self.predict)
