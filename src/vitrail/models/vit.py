"""The Vision Transformer (section 3.1): patches, tokens, encoder, head; hybrid and axial too."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Tensor, nn

from vitrail.config import InputError
from vitrail.models.hybrid import Stem
from vitrail.models.init import init_layers, lecun_normal, normal
from vitrail.models.layers import AttentionPool, AxialBlock, Block
from vitrail.models.model import Model
from vitrail.models.noise import Dropout
from vitrail.models.positions import Positions, RelativePositions
from vitrail.models.spec import HybridSpec, Size, ViTSpec, check_division


class ViT(Model[ViTSpec]):
    """A Vision Transformer; with a HybridSpec, over the feature map of a ResNet stem."""

    def __init__(self, spec: ViTSpec) -> None:
        super().__init__(spec)
        hybrid = isinstance(spec, HybridSpec)
        self.stem = Stem(spec) if hybrid else None
        channels = spec.stem_channels if hybrid else spec.channels
        # Equation 1's projection of flattened patches; a convolution keeps no copy of them.
        self.embedding = nn.Conv2d(
            channels, spec.width, spec.patch, spec.patch, bias=spec.patch_bias
        )
        self.class_token = _make_tokens(spec, int(spec.pool == "token"))
        self.distillation_token = _make_tokens(spec, int(spec.distilled))
        self.registers = _make_tokens(spec, spec.registers)
        self.positions = _make_positions(spec)
        self.dropout = Dropout(spec.dropout)
        self.pre_norm = nn.LayerNorm(spec.width, spec.norm_eps) if spec.pre_norm else nn.Identity()
        kind = AxialBlock if spec.attention == "axial" else Block
        # From 0 in the first block to the whole in the last; a single block is the last one.
        rates = [spec.stochastic_depth * n / max(spec.depth - 1, 1) for n in range(spec.depth)]
        rates = rates if spec.depth > 1 else [spec.stochastic_depth]
        self.blocks = nn.ModuleList(kind(spec, rate) for rate in rates)
        self.norm = nn.LayerNorm(spec.width, spec.norm_eps)
        self.pooling = AttentionPool(spec) if spec.pool == "map" else None
        self.distillation_head = self.make_head() if spec.distilled else None
        if not self.norm.weight.is_meta:  # there is nothing to fill, and torch is slow to do it
            self.init_weights()

    def tokens(self, x: Tensor) -> Tensor:
        """Encode images (batch, channels, height, width) to tokens (batch, tokens, width).

        The class token comes first, then the registers, then the patches row by row.
        """
        return self.norm(self.encode(x))

    def features(self, x: Tensor) -> Tensor:
        """Encode images to their representation, the pre-logits (batch, width)."""
        return self.represent(self.encode(x))

    def represent(self, encoded: Tensor) -> Tensor:
        """Give the pre-logits of a block's output (batch, tokens, width)."""
        if self.spec.pool == "token":  # no other token needs the last norm
            return self.head.features(self.norm(encoded[:, 0]))
        return self.head.features(self.pool(self.norm(encoded)))

    def forward(self, x: Tensor, *, each: bool = False) -> Tensor:
        """Classify images (batch, channels, height, width) to logits (batch, classes).

        `each` gives those of DeiT's two heads apart (batch, 2, classes), for its training.
        """
        return self.classify_each(self.encode(x)) if each else self.classify(self.encode(x))

    def classify(self, encoded: Tensor) -> Tensor:
        """Give the logits of a block's output; two heads' are averaged (DeiT)."""
        if self.distillation_head is None:
            return self.head(self.represent(encoded))
        return self.classify_each(encoded).mean(1)

    def classify_each(self, encoded: Tensor) -> Tensor:
        """Give the logits of the class token and of the distillation token (batch, 2, classes)."""
        assert self.distillation_head is not None
        tokens = self.norm(encoded[:, :2]).unbind(1)
        heads = zip((self.head, self.distillation_head), tokens, strict=True)
        return torch.stack([head(head.features(token)) for head, token in heads], dim=1)

    def replace_head(self, head: int | nn.Module) -> None:
        """Remove the whole head and put one zero-initialized linear layer in its place."""
        super().replace_head(head)
        if self.distillation_head is not None:
            self.distillation_head = deepcopy(self.head)

    def encode(self, x: Tensor) -> Tensor:
        """Run images through the blocks, up to the last norm."""
        return self.run_blocks(*self.embed(x))

    def run_blocks(self, x: Tensor, grid: Size) -> Tensor:
        """Run the first block's input, of a grid of patches, through all blocks."""
        if self.spec.attention == "axial":
            x = x.unflatten(1, grid)
        for layer, block in enumerate(self.blocks):
            if layer:  # the first layer's are in the embedding
                x = self.add_positions(x, grid, layer)
            x = self.run_block(block, x, self._relative(layer))
        return self.flatten_tokens(x)

    def flatten_tokens(self, x: Tensor) -> Tensor:
        """Bring a block's output to (batch, tokens, width)."""
        return x.flatten(1, 2) if self.spec.attention == "axial" else x

    def embed(self, x: Tensor) -> tuple[Tensor, Size]:
        """Turn images into the first block's input, and say its grid of patches."""
        patches, grid = self.embed_patches(x)
        return self.embed_tokens(patches, grid), grid

    def embed_patches(self, x: Tensor) -> tuple[Tensor, Size]:
        """Turn images into patch embeddings (batch, patches, width), and say their grid."""
        self.check_input(x)
        height, width = x.shape[2:]
        stride = self.spec.stride
        try:
            check_division((height, width), stride)
        except InputError as error:
            raise InputError(f"{self.spec.name}: {error}") from None
        if self.stem is not None:
            x = self.stem(x)
            for block in self.stem.blocks:
                x = self.run_block(block, x)
        grid = height // stride[0], width // stride[1]
        patches = self.embedding(x).flatten(2).transpose(1, 2)
        # Under autocast they are halves, which would round the sums that run over the blocks.
        return patches.to(self.embedding.weight.dtype), grid

    def embed_tokens(self, patches: Tensor, grid: Size) -> Tensor:
        """Join the class token and its like with patch embeddings, and add positions."""
        prefix = (self.class_token, self.distillation_token, self.registers)
        count = patches.shape[0]  # not len, which torch.export would take for a constant
        prefix = [token.expand(count, -1, -1) for token in prefix if token is not None]
        tokens = torch.cat([*prefix, patches], dim=1) if prefix else patches.contiguous()
        return self.pre_norm(self.dropout(self.add_positions(tokens, grid, 0)))

    def add_positions(self, x: Tensor, grid: Size, layer: int) -> Tensor:
        """Add a layer's position embeddings to its input, where the spec says so."""
        table = self._positions_of(layer)
        if not isinstance(table, Positions) or (layer and self.spec.position_at == "input"):
            return x
        return x + table(grid, x).view(x.shape[1:])

    def _relative(self, layer: int) -> RelativePositions | None:
        table = self._positions_of(layer)
        return table if isinstance(table, RelativePositions) else None

    def _positions_of(self, layer: int) -> nn.Module | None:
        if not len(self.positions):
            return None
        return self.positions[layer if len(self.positions) > 1 else 0]

    def pool(self, tokens: Tensor) -> Tensor:
        """Pool encoded tokens as the spec says: class token, mean of patches, or attention."""
        if self.spec.pool == "token":
            return tokens[:, 0]
        patches = tokens[:, self.spec.prefix :]
        return patches.mean(1) if self.pooling is None else self.pooling(patches)

    def layer_of(self, parameter: str) -> int:
        """Say how deep a parameter sits: 0 is the embedding, 1 the first block, the head last."""
        room, _, rest = parameter.partition(".")
        if room == "blocks":
            return 1 + int(rest.partition(".")[0])
        late = ("norm", "pooling", "head", "distillation_head")
        return 1 + self.spec.depth if room in late else 0

    @torch.no_grad()
    def init_parameters(self) -> None:
        """Fill all parameters as the official code does, from torch's random generator."""
        init_layers(self)
        if self.stem is not None:
            self.stem.init_blocks()
        lecun_normal(self.embedding.weight)
        for zero in (self.embedding.bias, self.class_token, self.distillation_token):
            if zero is not None:
                nn.init.zeros_(zero)
        if self.registers is not None:
            normal(self.registers, std=1e-6)  # as DINOv2 does


def _make_tokens(spec: ViTSpec, count: int) -> nn.Parameter | None:
    return nn.Parameter(torch.empty(1, count, spec.width)) if count else None


def _make_positions(spec: ViTSpec) -> nn.ModuleList:
    """Make the tables: none, one (at the input, or shared by the layers), or one for each layer."""
    if spec.position == "none":
        return nn.ModuleList()
    count = spec.depth if spec.position_at == "every-layer" else 1
    if spec.position == "relative":
        return nn.ModuleList(RelativePositions(spec.tokens, spec.width) for _ in range(count))
    return nn.ModuleList(Positions(spec) for _ in range(count))
