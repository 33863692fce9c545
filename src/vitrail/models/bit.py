"""The BiT ResNet-v2 (section 4.1's baseline) and, with attention for 3x3 convolutions, AxialResNet.

As in big_vision's bit_paper.py: pre-activation bottlenecks, GroupNorm, standardized weights.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.models.convolution import StdConv
from vitrail.models.init import init_layers
from vitrail.models.layers.self_attention import SelfAttention
from vitrail.models.model import Model
from vitrail.models.positions.relative import RelativePositions
from vitrail.models.spec import BiTSpec, Size

GROUPS = 32


class AxialMixing(nn.Module):
    """Row, then column self-attention with relative positions, instead of a 3x3 convolution."""

    def __init__(self, channels: int, heads: int, grid: Size, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.row = SelfAttention(channels, heads)
        self.row_offsets = RelativePositions(grid[1], channels)
        self.column = SelfAttention(channels, heads)
        self.column_offsets = RelativePositions(grid[0], channels)

    def forward(self, x: Tensor) -> Tensor:
        """Mix a feature map (batch, channels, height, width), then shrink it by the stride."""
        x = self.row(x.permute(0, 2, 3, 1), self.row_offsets)
        x = self.column(x.transpose(1, 2), self.column_offsets).permute(0, 3, 2, 1)
        return F.avg_pool2d(x, self.stride, ceil_mode=True) if self.stride > 1 else x


class Bottleneck(nn.Module):
    """A pre-activation bottleneck block; the first of a stage projects its shortcut."""

    def __init__(self, spec: BiTSpec, inputs: int, middle: int, stride: int, grid: Size) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(GROUPS, inputs, spec.norm_eps)
        self.conv1 = _conv(spec, inputs, middle, 1, 1)
        self.norm2 = nn.GroupNorm(GROUPS, middle, spec.norm_eps)
        self.conv2 = (
            AxialMixing(middle, spec.heads, grid, stride)
            if spec.heads
            else _conv(spec, middle, middle, 3, stride)
        )
        self.norm3 = nn.GroupNorm(GROUPS, middle, spec.norm_eps)
        self.conv3 = _conv(spec, middle, 4 * middle, 1, 1)
        projects = inputs != 4 * middle or stride > 1
        self.shortcut = _conv(spec, inputs, 4 * middle, 1, stride) if projects else None

    def forward(self, x: Tensor) -> Tensor:
        """Map a feature map (batch, channels, height, width)."""
        y = self.norm1(x).relu()
        shortcut = x if self.shortcut is None else self.shortcut(y)
        y = self.conv1(y)
        y = self.conv2(self.norm2(y).relu())
        y = self.conv3(self.norm3(y).relu())
        return shortcut + y


class BiT(Model[BiTSpec]):
    """A BiT ResNet-v2, or an AxialResNet."""

    def __init__(self, spec: BiTSpec) -> None:
        super().__init__(spec)
        self.root = _conv(spec, spec.channels, spec.width, 7, 2)
        self.blocks = nn.ModuleList()
        inputs, grid = spec.width, _halved(_halved(spec.image))
        for stage, blocks in enumerate(spec.stages):
            middle = spec.width * 2**stage
            for block in range(blocks):
                stride = 2 if stage and not block else 1
                self.blocks.append(Bottleneck(spec, inputs, middle, stride, grid))
                inputs, grid = 4 * middle, _halved(grid) if stride == 2 else grid
        self.norm = nn.GroupNorm(GROUPS, inputs, spec.norm_eps)
        if not self.norm.weight.is_meta:  # there is nothing to fill, and torch is slow to do it
            self.init_weights()

    def tokens(self, x: Tensor) -> Tensor:
        """Encode images to the cells of the last feature map (batch, cells, channels)."""
        last = len(self.blocks) - 1
        return self.finish(self.run_to(x, [last], last)[last])

    def run_to(self, x: Tensor, layers: Sequence[int], stop: int) -> dict[int, Tensor]:
        """Run images up to a block; return the feature maps of some blocks."""
        self.check_input(x)
        outputs: dict[int, Tensor] = {}
        x = self.root(x)
        if self.spec.pool_padding == "zeros":
            x = F.max_pool2d(F.pad(x, (1, 1, 1, 1)), 3, 2)
        else:
            x = F.max_pool2d(x, 3, 2, 1)
        for layer, block in enumerate(self.blocks):
            x = self.run_block(block, x)
            if layer in layers:
                outputs[layer] = x
            if layer == stop:
                break
        return outputs

    def finish(self, output: Tensor) -> Tensor:
        """Return the cells (batch, cells, channels) of the last feature map, after its norm."""
        return self.flatten_tokens(self.norm(output).relu())

    def map_size(self, x: Tensor, output: Tensor) -> Size:
        """Return the rows and columns of a feature map."""
        return output.shape[2], output.shape[3]

    def flatten_tokens(self, x: Tensor) -> Tensor:
        """Reshape a feature map to (batch, cells, channels)."""
        return x.flatten(2).transpose(1, 2)

    def pool(self, tokens: Tensor) -> Tensor:
        """Average the cells."""
        return tokens.mean(1)

    def layer_of(self, parameter: str) -> int:
        """Return a parameter's depth: 0 for the root, 1 for the first block, the head last."""
        room, _, rest = parameter.partition(".")
        if room == "blocks":
            return 1 + int(rest.partition(".")[0])
        return 1 + len(self.blocks) if room in ("norm", "head") else 0

    def init_parameters(self) -> None:
        """Fill all parameters as the official code does, with torch's global generator."""
        init_layers(self)


def _conv(spec: BiTSpec, inputs: int, outputs: int, kernel: int, stride: int) -> StdConv:
    return StdConv(inputs, outputs, kernel, stride, spec.standardize, same=False)


def _halved(grid: Size) -> Size:
    return -(-grid[0] // 2), -(-grid[1] // 2)
