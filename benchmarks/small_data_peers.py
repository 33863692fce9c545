"""Opponents of benchmarks/small_data.py, written small from their papers.

Compact Transformers (CCT, arXiv 2104.05704): a convolutional tokenizer, sequence pooling. Their
recipe is for 300 epochs; in a run of minutes it is left without mixup, CutMix and RandAugment,
which cost accuracy there, and has twice its learning rate.

airbench94 (Keller Jordan, arXiv 2404.00498): a CNN whose first layer whitens patches, with
BatchNorm, GELU, Nesterov SGD, label smoothing of 0.2, alternating flips and lookahead.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.data.dataset import ArrayDataset


def tensor_batches(pixels: ArrayDataset, batch: int, pad: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Give batches forever: moved by up to `pad` pixels, and flipped in every other epoch."""
    flipped = torch.rand(len(pixels)) < 0.5
    while True:
        order = torch.randperm(len(pixels)).numpy()
        for start in range(0, len(order) - batch + 1, batch):
            rows = order[start : start + batch]
            images = torch.from_numpy(np.asarray(pixels.take(rows))).permute(0, 3, 1, 2)
            images = F.pad(images.float() / 127.5 - 1, (pad,) * 4, mode="reflect")
            down, across = torch.randint(2 * pad + 1, (2, batch))
            side = torch.arange(images.shape[2] - 2 * pad)
            lines = (down[:, None] + side)[:, :, None], (across[:, None] + side)[:, None]
            moved = images[torch.arange(batch)[:, None, None], :, *lines].permute(0, 3, 1, 2)
            moved = torch.where(flipped[rows][:, None, None, None], moved.flip(3), moved)
            yield moved.contiguous(), torch.from_numpy(pixels.labels[rows])
        flipped = ~flipped


class CCTBlock(nn.Module):
    """An encoder block of Compact Transformers: the second norm is of the residual stream."""

    def __init__(self, width: int, heads: int, mlp: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.output = nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, mlp), nn.GELU(), nn.Linear(mlp, width))

    def forward(self, x: Tensor) -> Tensor:
        """Mix the tokens of x (batch, tokens, width)."""
        qkv = self.qkv(self.norm1(x)).unflatten(2, (3, self.heads, -1))
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind()
        logits = query * query.shape[-1] ** -0.5 @ key.mT  # faster here than torch's fused kernel
        mixed = logits.softmax(-1) @ value
        x = self.norm2(x + self.output(mixed.transpose(1, 2).flatten(2)))
        return x + self.mlp(x)


class CCT(nn.Module):
    """CCT-depth/3x2 for 32 x 32 images: two 3x3 convolutions, then 64 tokens of width 128."""

    def __init__(self, depth: int, width: int = 128, heads: int = 2, mlp: int = 128) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, outputs in ((3, 64), (64, width)):
            conv = nn.Conv2d(inputs, outputs, 3, 1, 1, bias=False)
            nn.init.kaiming_normal_(conv.weight)
            layers += [conv, nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
        self.tokenizer = nn.Sequential(*layers)
        self.positions = nn.Parameter(0.2 * torch.randn(1, 64, width))
        self.blocks = nn.Sequential(*(CCTBlock(width, heads, mlp) for _ in range(depth)))
        self.norm, self.pool = nn.LayerNorm(width), nn.Linear(width, 1)
        self.head = nn.Linear(width, 10)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
        self.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]

    def forward(self, x: Tensor) -> Tensor:
        """Classify images (batch, 3, 32, 32)."""
        x = self.tokenizer(x.contiguous(memory_format=torch.channels_last))
        x = self.norm(self.blocks(x.flatten(2).mT + self.positions))
        return self.head((self.pool(x).softmax(1).mT @ x)[:, 0])


class AirbenchGroup(nn.Sequential):
    """Convolution, max-pool, norm; convolution, norm; GELU after each norm."""

    def __init__(self, inputs: int, outputs: int) -> None:
        def unit(inputs: int) -> tuple[nn.Conv2d, nn.BatchNorm2d]:
            conv = nn.Conv2d(inputs, outputs, 3, padding="same", bias=False)
            nn.init.dirac_(conv.weight.data[:inputs])
            norm = nn.BatchNorm2d(outputs, eps=1e-12, momentum=0.4)
            norm.weight.requires_grad = False
            return conv, norm

        first, norm1 = unit(inputs)
        second, norm2 = unit(outputs)
        super().__init__(first, nn.MaxPool2d(2), norm1, nn.GELU(), second, norm2, nn.GELU())


class Airbench(nn.Module):
    """The CNN of airbench94."""

    def __init__(self) -> None:
        super().__init__()
        self.whiten = nn.Conv2d(3, 24, 2)
        self.whiten.weight.requires_grad = False
        widths = ((24, 64), (64, 256), (256, 256))
        self.groups = nn.Sequential(*(AirbenchGroup(*pair) for pair in widths))
        self.head = nn.Linear(256, 10, bias=False)
        self.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]

    def forward(self, x: Tensor) -> Tensor:
        """Classify images (batch, 3, 32, 32)."""
        x = F.gelu(self.whiten(x.contiguous(memory_format=torch.channels_last)))
        return self.head(F.max_pool2d(self.groups(x), 3).flatten(1)) / 9

    @torch.no_grad()
    def whiten_by(self, images: Tensor) -> None:
        """Set the first filters to the whitened eigenvectors of patches, and their opposites."""
        patches = F.unfold(images, 2).mT.reshape(-1, 12).double()
        values, vectors = torch.linalg.eigh(patches.T @ patches / len(patches))
        filters = (vectors / (values + 5e-4).sqrt()).T.flip(0).float().view(12, 3, 2, 2)
        self.whiten.weight.copy_(torch.cat([filters, -filters]))
        nn.init.zeros_(self.whiten.bias)  # pyright: ignore[reportArgumentType]


def airbench_steps(
    model: nn.Module, pixels: ArrayDataset, steps: int, batch: int
) -> Iterator[float]:
    """Take airbench94's steps: Nesterov SGD in a triangle, and lookahead by a moving average."""
    assert isinstance(model, Airbench)
    batches, momentum, peak = tensor_batches(pixels, batch, pad=2), 0.85, 0.23
    model.train().whiten_by(next(tensor_batches(pixels, min(5000, len(pixels)), pad=0))[0])
    scale = 1024 * (1 + 1 / (1 - momentum))
    rate, decay = 11.5 / scale, 0.0153 * batch / scale
    biases = [p for name, p in model.named_parameters() if p.requires_grad and "bias" in name]
    others = [p for name, p in model.named_parameters() if p.requires_grad and "bias" not in name]
    groups = [
        {"params": group, "base": lr, "lr": lr, "weight_decay": decay / lr}
        for group, lr in ((biases, 64 * rate), (others, rate))
    ]
    optimizer = torch.optim.SGD(groups, momentum=momentum, nesterov=True)
    average = {name: value.clone() for name, value in model.state_dict().items()}
    for step in range(steps):
        done = step / steps
        height = 0.2 + 0.8 * done / peak if done < peak else 1 - 0.93 * (done - peak) / (1 - peak)
        for group in optimizer.param_groups:
            group["lr"] = height * group["base"]
        images, labels = next(batches)
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(images)
        loss = F.cross_entropy(logits.float(), labels, label_smoothing=0.2)
        (batch * loss).backward()  # rates are for the sum over images
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 5 == 4 or step + 1 == steps:
            _look_ahead(model, average, 1.0 if step + 1 == steps else 0.95**5 * done**3)
        yield loss.item()


@torch.no_grad()
def _look_ahead(model: nn.Module, average: dict[str, Tensor], decay: float) -> None:
    """Move the average towards the weights, and set the weights to it; the last time, only that."""
    for name, value in model.state_dict().items():
        if value.is_floating_point():
            average[name].lerp_(value, 1 - decay)
            value.copy_(average[name])
