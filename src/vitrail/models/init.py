"""Initial values, as the official code draws them from flax; tested by their statistics."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from vitrail.models.convolution import StdConv
from vitrail.models.layers import MLP, AttentionPool, Head, LayerScale, SelfAttention
from vitrail.models.positions import Positions, RelativePositions


@torch.no_grad()
def init_layers(root: nn.Module) -> None:
    """Fill every layer that the families share; a family fills what is its own."""
    for module in root.modules():
        match module:
            case nn.LayerNorm() | nn.GroupNorm():
                module.reset_parameters()  # ones and zeros
            case LayerScale():
                module.factor.fill_(module.initial)
            case StdConv():
                lecun_normal(module.weight)
            case Positions() | RelativePositions():
                for table in module.parameters():
                    normal(table, std=0.02)
            case SelfAttention():
                xavier(module.qkv, parts=3)
                xavier(module.output)
            case MLP():
                xavier(module.hidden, parts=2 if module.activation == "swiglu" else 1)
                xavier(module.output)
                normal(module.hidden.bias, std=1e-6)
                normal(module.output.bias, std=1e-6)
            case AttentionPool():
                with whole(module.probe) as probe:
                    nn.init.xavier_uniform_(probe[0])
                xavier(module.query)
                xavier(module.key_value, parts=2)
                xavier(module.output)
            case Head():
                if module.hidden is not None:
                    lecun_normal(module.hidden.weight)
                    nn.init.zeros_(module.hidden.bias)
                if module.output is not None:
                    for parameter in module.output.parameters():
                        nn.init.zeros_(parameter)
            case _:
                pass


def xavier(linear: nn.Linear, parts: int = 1) -> None:
    """Fill a dense layer uniformly, each of the matrices that it stacks by itself; its bias is 0.

    torch's own attention draws q, k and v as one matrix, which makes them smaller by sqrt(2).
    """
    with whole(linear.weight) as weight:
        for matrix in weight.chunk(parts):
            nn.init.xavier_uniform_(matrix)
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)


def lecun_normal(weight: Tensor) -> None:
    """Fill as flax's default does: a truncated normal of variance 1 / inputs."""
    inputs = weight.shape[1:].numel()
    # A normal cut at two stds has 0.8796 of its std left; JAX corrects for that.
    std = math.sqrt(1 / inputs) / 0.87962566103423978
    with whole(weight) as filled:
        nn.init.trunc_normal_(filled, std=std, a=-2 * std, b=2 * std)


def normal(parameter: Tensor, std: float) -> None:
    """Fill from a normal around 0."""
    with whole(parameter) as filled:
        nn.init.normal_(filled, std=std)


@contextmanager
def whole(parameter: Tensor) -> Iterator[Tensor]:
    """Give a tensor to fill in the parameter's place; each process keeps its part of a sharded one.

    All processes draw the whole, so that the values are those of an unsharded model. In place, a
    chunk of a DTensor would be filled that is a copy, and lost.
    """
    if not hasattr(parameter, "device_mesh"):
        yield parameter
        return
    from torch.distributed.tensor import DTensor, distribute_tensor  # slow to import

    assert isinstance(parameter, DTensor)
    full = torch.empty(parameter.shape, dtype=parameter.dtype, device=parameter.device)
    yield full
    parameter.copy_(distribute_tensor(full, parameter.device_mesh, parameter.placements))
