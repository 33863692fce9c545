"""The Vision Transformer (section 3.1): patches, tokens, encoder, head; hybrid and axial too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.config import InputError
from vitrail.models.hybrid import ConvStem, PatchStem, Stem
from vitrail.models.init import init_layers, lecun_normal, normal, whole
from vitrail.models.layers.blocks import make_block
from vitrail.models.layers.heads import AttentionPool, mean_tokens
from vitrail.models.layers.linear import linear
from vitrail.models.layers.norms import make_norm
from vitrail.models.layers.self_attention import AttentionBias
from vitrail.models.model import Model
from vitrail.models.noise import Dropout
from vitrail.models.positions.absolute import Positions
from vitrail.models.positions.mixed_grids import MixedGrids, PatchBatch, unpack_patches
from vitrail.models.positions.relative import RelativeBias, RelativeMLP, RelativePositions
from vitrail.models.positions.rotary import RotaryPositions, mixed_frequencies
from vitrail.models.spec import HybridSpec, Size, ViTSpec, check_division


class ViT(Model[ViTSpec]):
    """A Vision Transformer; with a HybridSpec, over the feature map of a stem."""

    def __init__(self, spec: ViTSpec) -> None:
        super().__init__(spec)
        hybrid = isinstance(spec, HybridSpec)
        self.stem = _make_stem(spec) if hybrid else None
        channels = spec.stem_channels if hybrid else spec.channels
        # Equation 1's projection of flattened patches; a convolution keeps no copy of them.
        self.embedding = nn.Conv2d(
            channels, spec.width, spec.patch, spec.patch, bias=spec.patch_bias
        )
        self.patch_norm = make_norm(spec, spec.width) if spec.patch_norm else nn.Identity()
        self.class_token = _make_tokens(spec, spec.class_tokens - spec.distilled)
        self.distillation_token = _make_tokens(spec, int(spec.distilled))
        self.registers = _make_tokens(spec, spec.registers)
        self.positions = _make_positions(spec)
        self.rotary = None if spec.rotary == "none" else RotaryPositions(spec)
        self.dropout = Dropout(spec.dropout)
        self.pre_norm = make_norm(spec, spec.width) if spec.pre_norm else nn.Identity()
        # From 0 in the first block to the whole in the last; a single block is the last one.
        rates = [spec.stochastic_depth * n / max(spec.depth - 1, 1) for n in range(spec.depth)]
        rates = rates if spec.depth > 1 else [spec.stochastic_depth]
        self.blocks = nn.ModuleList(make_block(spec, rate, n) for n, rate in enumerate(rates))
        last = {spec.last_norm: make_norm(spec, spec.width)}
        self.norm = last.get("tokens", nn.Identity())
        self.pooled_norm = last.get("pooled", nn.Identity())
        self.pooling = AttentionPool(spec) if spec.pool in ("map", "probe") else None
        self.distillation_head = self.make_head() if spec.distilled else None
        if not self.embedding.weight.is_meta:  # nothing to fill, and torch is slow to do it
            self.init_weights()

    def tokens(self, x: Tensor | PatchBatch) -> Tensor:
        """Encode images (batch, channels, height, width) to tokens (batch, tokens, width).

        The class token comes first, then the registers, then the patches row by row.
        """
        return self.norm(self.encode(x))

    def features(self, x: Tensor | PatchBatch) -> Tensor:
        """Encode images to their representation, the pre-logits (batch, width)."""
        return self.represent(self.encode(x), _valid(x))

    def represent(self, encoded: Tensor, valid: Tensor | None = None) -> Tensor:
        """Return the pre-logits of a block's output (batch, tokens, width)."""
        if self.spec.pool == "token":  # no other token needs the last norm
            return self.head.features(self.pooled_norm(self.norm(encoded[:, 0])))
        return self.head.features(self.pool(self.norm(encoded), valid))

    def forward(self, x: Tensor | PatchBatch, *, each: bool = False) -> Tensor:
        """Classify images (batch, channels, height, width) to logits (batch, classes).

        Images of different sizes are a `PatchBatch`, or one tensor (batch, length, 3 + pixels) with
        row, column and validity before a patch's pixels. With `each`, the logits of DeiT's two
        heads separately (batch, 2, classes), for its training.
        """
        if each:
            return self.classify_each(self.encode(x))
        return self.classify(self.encode(x), _valid(x))

    def classify(self, encoded: Tensor, valid: Tensor | None = None) -> Tensor:
        """Return the logits of a block's output, averaged over DeiT's two heads."""
        if self.distillation_head is None:
            return self.head(self.represent(encoded, valid))
        return self.classify_each(encoded).mean(1)

    def classify_each(self, encoded: Tensor) -> Tensor:
        """Return the logits of class and distillation token (batch, 2, classes)."""
        assert self.distillation_head is not None
        tokens = self.norm(encoded[:, :2]).unbind(1)
        heads = zip((self.head, self.distillation_head), tokens, strict=True)
        return torch.stack([head(head.features(token)) for head, token in heads], dim=1)

    def replace_head(self, head: int | nn.Module) -> None:
        """Replace the whole head, and DeiT's second, by one zero-initialized linear layer."""
        super().replace_head(head)
        if self.distillation_head is not None:
            self.distillation_head = deepcopy(self.head)

    def encode(self, x: Tensor | PatchBatch) -> Tensor:
        """Run images through the blocks, up to the last norm."""
        return self.run_blocks(*self.embed(x))

    def run_to(self, x: Tensor | PatchBatch, layers: Sequence[int], stop: int) -> dict[int, Tensor]:
        """Run images up to a block; return outputs of some blocks as they are."""
        outputs: dict[int, Tensor] = {}
        self.run_blocks(*self.embed(x), outputs=outputs, keep=layers, stop=stop)
        return outputs

    def finish(self, output: Tensor) -> Tensor:
        """Apply the last norm to the last block's output."""
        return self.norm(self.flatten_tokens(output))

    def map_size(self, x: Tensor | PatchBatch, output: Tensor) -> Size:
        """Return the rows and columns of images' patches."""
        if not isinstance(x, Tensor) or x.ndim != 4:
            raise InputError("grid=True needs images of one size, not patches")
        stride = self.spec.stride
        return x.shape[2] // stride[0], x.shape[3] // stride[1]

    def run_blocks(
        self,
        x: Tensor,
        grid: Size | MixedGrids,
        *,
        outputs: dict[int, Tensor] | None = None,
        keep: Sequence[int] = (),
        stop: int | None = None,
    ) -> Tensor:
        """Run the first block's input through the blocks; `grid` is that of its patches.

        `outputs` gets those of the blocks in `keep`; `stop` is the last block that runs.
        """
        if self.spec.attention == "axial":
            assert not isinstance(grid, MixedGrids)
            x = x.unflatten(1, grid)
        rotations = [None] * len(self.blocks) if self.rotary is None else self.rotary(grid, x)
        biases = self._attention_biases(grid, x)
        layers = zip(self.blocks, biases, rotations, strict=True)
        for layer, (block, bias, rotation) in enumerate(layers):
            if layer:  # the first layer's are in the embedding
                x = self.add_positions(x, grid, layer)
            x = self.run_block(block, x, bias, rotation)
            if outputs is not None and layer in keep:
                outputs[layer] = x
            if layer == stop:
                break
        return self.flatten_tokens(x)

    def flatten_tokens(self, x: Tensor) -> Tensor:
        """Reshape a block's output to (batch, tokens, width)."""
        return x.flatten(1, 2) if self.spec.attention == "axial" else x

    def embed(self, x: Tensor | PatchBatch) -> tuple[Tensor, Size | MixedGrids]:
        """Return the first block's input for images, and their grid of patches."""
        packed = 3 + self.embedding.weight[0].numel()  # row, column, validity and pixels
        if isinstance(x, Tensor) and x.ndim == 3 and x.shape[2] == packed:
            x = unpack_patches(x)
        mixed = isinstance(x, PatchBatch)
        patches, grid = self._embed_batch(x) if mixed else self.embed_patches(x)
        return self.embed_tokens(patches, grid), grid

    def _embed_batch(self, batch: PatchBatch) -> tuple[Tensor, MixedGrids]:
        """Return the patch embeddings (batch, length, width) of a batch, and its images' grids."""
        if not self.spec.takes_mixed_sizes:
            raise InputError(
                f"{self.spec.name}: batches of different sizes need a ViT without a stem, axial "
                "attention or 1-D relative positions"
            )
        weight = self.embedding.weight.permute(0, 2, 3, 1).flatten(1)
        if batch.patches.ndim != 3 or batch.patches.shape[2] != weight.shape[1]:
            raise InputError(
                f"{self.spec.name}: expected (batch, length, {weight.shape[1]}) patches, got "
                f"{tuple(batch.patches.shape)}"
            )
        patches = self.patch_norm(linear(batch.patches, weight, self.embedding.bias))
        return patches.to(weight.dtype), MixedGrids.of(batch)

    def embed_patches(self, x: Tensor) -> tuple[Tensor, Size]:
        """Return the patch embeddings (batch, patches, width) of images, and their grid."""
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
        patches = self.patch_norm(self.embedding(x).flatten(2).transpose(1, 2))
        # Under autocast they are 16 bits, which would round the residual stream.
        return patches.to(self.embedding.weight.dtype), grid

    def embed_tokens(self, patches: Tensor, grid: Size | MixedGrids) -> Tensor:
        """Prepend class token and registers to patch embeddings, and add positions."""
        prefix = (self.class_token, self.distillation_token, self.registers)
        count = patches.shape[0]  # not len, which torch.export would take for a constant
        prefix = [token.expand(count, -1, -1) for token in prefix if token is not None]
        tokens = torch.cat([*prefix, patches], dim=1) if prefix else patches.contiguous()
        return self.pre_norm(self.dropout(self.add_positions(tokens, grid, 0)))

    def add_positions(self, x: Tensor, grid: Size | MixedGrids, layer: int) -> Tensor:
        """Add a layer's position embeddings to its input, if it has any."""
        table = self._positions_of(layer)
        if not isinstance(table, Positions) or (layer and self.spec.position_at == "input"):
            return x
        if isinstance(grid, MixedGrids):
            return x + grid.gather(lambda size: table(size, x), self.spec.prefix)
        return x + table(grid, x).view(x.shape[1:])

    def _attention_biases(
        self, grid: Size | MixedGrids, x: Tensor
    ) -> Iterator[AttentionBias | None]:
        """Give each layer's bias of its attention logits: relative positions, masked padding."""
        shared = None
        if self.spec.position_at == "shared" and self._offset_bias(0, grid) is not None:
            shared = self.positions[0](x, grid).type_as  # computed once, in each query's type
        for layer in range(len(self.blocks)):
            bias = shared or self._offset_bias(layer, grid)
            if isinstance(grid, MixedGrids):
                bias = grid.mask_keys(bias, self.spec.prefix)
            table = self._positions_of(layer)
            yield table if isinstance(table, RelativePositions) else bias

    def _offset_bias(self, layer: int, grid: Size | MixedGrids) -> AttentionBias | None:
        table = self._positions_of(layer)
        of_offsets = isinstance(table, RelativeBias | RelativeMLP)
        return partial(table, grid=grid) if of_offsets else None

    def _positions_of(self, layer: int) -> nn.Module | None:
        if not len(self.positions):
            return None
        return self.positions[layer if len(self.positions) > 1 else 0]

    def pool(self, tokens: Tensor, valid: Tensor | None = None) -> Tensor:
        """Pool encoded tokens as the spec's `pool` says.

        `valid` (batch, patches) is False for padding, which is not read.
        """
        if self.spec.pool == "token":
            return self.pooled_norm(tokens[:, 0])
        prefix = self.spec.prefix
        read = tokens if self.spec.pool_prefix else tokens[:, prefix:]
        if valid is not None and self.spec.pool_prefix:
            valid = F.pad(valid, (prefix, 0), value=True)
        if self.pooling is not None:
            return self.pooled_norm(self.pooling(read, valid))
        mean = mean_tokens(read, valid)
        if self.spec.pool == "token-gap":
            return torch.cat([tokens[:, 0], mean], dim=1)
        return self.pooled_norm(mean)

    def layer_of(self, parameter: str) -> int:
        """Return a parameter's depth: 0 for the embedding, 1 for the first block, the head last."""
        room, _, rest = parameter.partition(".")
        if room == "blocks":
            return 1 + int(rest.partition(".")[0])
        late = ("norm", "pooling", "pooled_norm", "head", "distillation_head")
        return 1 + self.spec.depth if room in late else 0

    @torch.no_grad()
    def init_parameters(self) -> None:
        """Fill all parameters as the official code does, with torch's global generator."""
        init_layers(self)
        if self.stem is not None:
            self.stem.init_stem()
        lecun_normal(self.embedding.weight)
        for zero in (self.embedding.bias, self.class_token, self.distillation_token):
            if zero is not None:
                nn.init.zeros_(zero)
        if self.registers is not None:
            normal(self.registers, std=1e-6)  # as DINOv2 does
        if self.rotary is not None and self.spec.rotary == "mixed":
            with whole(self.rotary.frequencies) as frequencies:
                frequencies.copy_(mixed_frequencies(self.spec))


def _valid(x: Tensor | PatchBatch) -> Tensor | None:
    if isinstance(x, PatchBatch):
        return x.valid
    return x[..., 2] > 0 if x.ndim == 3 else None


def _make_stem(spec: HybridSpec) -> Stem | ConvStem | PatchStem:
    return {"resnet": Stem, "conv": ConvStem, "mobileclip": PatchStem}[spec.stem](spec)


def _make_tokens(spec: ViTSpec, count: int) -> nn.Parameter | None:
    return nn.Parameter(torch.empty(1, count, spec.width)) if count else None


def _make_positions(spec: ViTSpec) -> nn.ModuleList:
    """Build the tables: none, one (at the input, or shared by the layers), or one per layer."""
    if spec.position == "none":
        return nn.ModuleList()
    count = spec.depth if spec.position_at == "every-layer" else 1
    if spec.position == "relative":
        return nn.ModuleList(RelativePositions(spec.tokens, spec.width) for _ in range(count))
    kinds = {"relative-2d": RelativeBias, "relative-mlp": RelativeMLP}
    return nn.ModuleList(kinds.get(spec.position, Positions)(spec) for _ in range(count))
