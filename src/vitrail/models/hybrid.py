"""The hybrid's stems: the official code's ResNet (section 3.1), one for small images, MobileCLIP's.

Unlike in BiT, normalization follows each convolution. The ResNet's padding is TensorFlow's "same".
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.models.convolution import StdConv, pad_same
from vitrail.models.init import lecun_normal
from vitrail.models.spec import HybridSpec

GROUPS = 32
GROUP_CHANNELS = 16
"""Of stem=conv, which may be narrow: 32 groups of a channel each would normalize it alone."""


class StemBlock(nn.Module):
    """A bottleneck block: 1x1, 3x3 and 1x1 convolutions, each with a norm, and a shortcut."""

    def __init__(self, spec: HybridSpec, inputs: int, middle: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = _unit(spec, inputs, middle, 1, 1)
        self.conv2, self.norm2 = _unit(spec, middle, middle, 3, stride)
        self.conv3, self.norm3 = _unit(spec, middle, 4 * middle, 1, 1)
        self.shortcut = nn.Identity()
        if inputs != 4 * middle or stride > 1:
            self.shortcut = nn.Sequential(*_unit(spec, inputs, 4 * middle, 1, stride))

    def forward(self, x: Tensor) -> Tensor:
        """Map a feature map (batch, channels, height, width)."""
        y = self.norm1(self.conv1(x)).relu()
        y = self.norm2(self.conv2(y)).relu()
        y = self.norm3(self.conv3(y))
        return (self.shortcut(x) + y).relu()


class Stem(nn.Module):
    """A ResNet's root, and its blocks, which the model runs one by one."""

    def __init__(self, spec: HybridSpec) -> None:
        super().__init__()
        self.conv, self.norm = _unit(spec, spec.channels, spec.stem_width, 7, 2)
        self.blocks = nn.ModuleList()
        inputs = spec.stem_width
        for stage, blocks in enumerate(spec.stages):
            middle = spec.stem_width * 2**stage
            for block in range(blocks):
                stride = 2 if stage and not block else 1
                self.blocks.append(StemBlock(spec, inputs, middle, stride))
                inputs = 4 * middle

    def forward(self, x: Tensor) -> Tensor:
        """Map images (batch, channels, height, width) to the first block's input."""
        x = self.norm(self.conv(x)).relu()
        x = pad_same(x, 3, 2, value=float("-inf")).contiguous(memory_format=torch.channels_last)
        # torch's max-pool is vectorized over channels only; its norms are faster the other way.
        return F.max_pool2d(x, 3, 2).contiguous()

    def filters(self) -> Tensor:
        """Return the first convolution's filters as they are applied."""
        return self.conv.standardized()

    def init_stem(self) -> None:
        """Make each block start as its shortcut, as the official code does."""
        for module in self.modules():
            if isinstance(module, StemBlock):
                nn.init.zeros_(module.norm3.weight)


class ConvBlock(nn.Module):
    """A 3x3 convolution and its norm: around a stage's first a max-pool, else a shortcut."""

    def __init__(self, spec: HybridSpec, inputs: int, outputs: int) -> None:
        super().__init__()
        self.pools = inputs != outputs
        self.conv, self.norm = _narrow_unit(spec, inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Map a feature map (batch, channels, height, width)."""
        y = self.conv(x)
        if self.pools:
            return self.norm(F.max_pool2d(y, 2)).relu()
        return (x + self.norm(y)).relu()


class ConvStem(nn.Module):
    """A stem for small images: a 3x3 root that shrinks nothing, and 3x3 convolutions in stages."""

    def __init__(self, spec: HybridSpec) -> None:
        super().__init__()
        self.conv, self.norm = _narrow_unit(spec, spec.channels, spec.stem_width)
        self.blocks = nn.ModuleList()
        channels = spec.stem_width
        for blocks in spec.stages:
            self.blocks.append(ConvBlock(spec, channels, 2 * channels))
            channels *= 2
            self.blocks.extend(ConvBlock(spec, channels, channels) for _ in range(blocks - 1))

    def forward(self, x: Tensor) -> Tensor:
        """Map images (batch, channels, height, width) to the first block's input."""
        x = x.contiguous(memory_format=torch.channels_last)  # convolutions and pools are faster so
        return self.norm(self.conv(x)).relu()

    def filters(self) -> Tensor:
        """Return the first convolution's filters as they are applied."""
        return self.conv.standardized()

    def init_stem(self) -> None:
        """Make each block with a shortcut start as that."""
        for module in self.modules():
            if isinstance(module, ConvBlock) and not module.pools:
                nn.init.zeros_(module.norm.weight)


class PatchStem(nn.Module):
    """MobileCLIP's stem (arXiv 2311.17049): convolutions whose cells don't overlap.

    It is trained with BatchNorm, which is folded into the convolutions here.
    """

    def __init__(self, spec: HybridSpec) -> None:
        super().__init__()
        self.conv = nn.Conv2d(spec.channels, spec.stem_width, 4, 4)
        self.conv2 = nn.Conv2d(spec.stem_width, spec.stem_width, 2, 2)
        self.blocks = nn.ModuleList()

    def forward(self, x: Tensor) -> Tensor:
        """Map images (batch, channels, height, width) to a feature map of stride 8."""
        return F.gelu(self.conv2(F.gelu(self.conv(x))))

    def filters(self) -> Tensor:
        """Return the first convolution's filters."""
        return self.conv.weight

    def init_stem(self) -> None:
        """Fill the convolutions as a patch embedding is."""
        for layer in (self.conv, self.conv2):
            lecun_normal(layer.weight)
            assert layer.bias is not None
            nn.init.zeros_(layer.bias)


def _unit(
    spec: HybridSpec, inputs: int, outputs: int, kernel: int, stride: int
) -> tuple[StdConv, nn.GroupNorm]:
    conv = StdConv(inputs, outputs, kernel, stride, spec.standardize, same=True)
    return conv, nn.GroupNorm(GROUPS, outputs, spec.stem_norm_eps)


def _narrow_unit(spec: HybridSpec, inputs: int, outputs: int) -> tuple[StdConv, nn.GroupNorm]:
    conv = StdConv(inputs, outputs, 3, 1, spec.standardize, same=False)
    return conv, nn.GroupNorm(outputs // GROUP_CHANNELS, outputs, spec.stem_norm_eps)
