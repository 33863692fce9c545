"""The weight-standardized convolution that BiT and the hybrid's stem share."""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.models.spec import Standardize

_EPSILONS: dict[Standardize, tuple[float, float]] = {  # added to the variance, to the std
    "bit": (1e-10, 0.0),  # big_vision's bit_paper.py
    "hybrid": (0.0, 1e-5),  # vision_transformer's models_resnet.py
    "timm": (1e-8, 0.0),
}


class StdConv(nn.Conv2d):
    """A convolution without bias whose filters have mean 0 and std 1 (arXiv 1903.10520)."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int, stride: int, rule: Standardize, same: bool
    ) -> None:
        # TensorFlow's "same" depends on the input's size, so forward pads.
        padding = 0 if same else kernel // 2
        super().__init__(inputs, outputs, kernel, stride, padding, bias=False)
        self.rule: Standardize = rule
        self.same = same

    def standardized(self) -> Tensor:
        """Return the filters as they are applied."""
        inside, outside = _EPSILONS[self.rule]
        centered = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        variance = centered.square().mean((1, 2, 3), keepdim=True)
        return centered / ((variance + inside).sqrt() + outside)

    def forward(self, input: Tensor) -> Tensor:
        """Convolve a feature map (batch, channels, height, width)."""
        if self.same:
            input = pad_same(input, self.kernel_size[0], self.stride[0])
        return F.conv2d(input, self.standardized(), None, self.stride, self.padding)


def pad_same(x: Tensor, kernel: int, stride: int, value: float = 0.0) -> Tensor:
    """Pad a feature map as TensorFlow's "same" does: the odd cell goes below and to the right."""
    height, width = (_padding(side, kernel, stride) for side in x.shape[-2:])
    return F.pad(x, (*width, *height), value=value) if any((*height, *width)) else x


def _padding(side: int, kernel: int, stride: int) -> tuple[int, int]:
    total = max((math.ceil(side / stride) - 1) * stride + kernel - side, 0)
    return total // 2, total - total // 2
