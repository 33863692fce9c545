"""Initial values, distributed as the official code draws them with flax."""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.models.convolution import StdConv
from vitrail.models.layers.differential import DifferentialMix
from vitrail.models.layers.heads import AttentionPool, Head
from vitrail.models.layers.mlp import MLP
from vitrail.models.layers.norms import LayerScale
from vitrail.models.layers.self_attention import QueryValueBias, SelfAttention
from vitrail.models.positions.absolute import Positions
from vitrail.models.positions.relative import RelativeBias, RelativeMLP, RelativePositions

_drawing = threading.RLock()


@contextmanager
def seeded(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """Seed torch's, NumPy's and Python's global generators for a block, then put them back.

    A process has one of each, so one thread at a time is inside: others would draw in between.
    """
    gpus = [device] if device is not None and device.type == "cuda" else []
    with _drawing, torch.random.fork_rng(gpus):
        numpy_state, python_state = np.random.get_state(), random.getstate()
        try:
            torch.manual_seed(seed)
            np.random.seed(seed % 2**32)
            random.seed(seed)
            yield
        finally:
            np.random.set_state(numpy_state)
            random.setstate(python_state)


@torch.no_grad()
def init_layers(root: nn.Module) -> None:
    """Fill every layer that the model families share; each family fills its own."""
    for module in root.modules():
        match module:
            case nn.LayerNorm() | nn.GroupNorm() | nn.RMSNorm():
                module.reset_parameters()  # ones and zeros
            case LayerScale():
                module.factor.fill_(module.initial)
            case StdConv():
                lecun_normal(module.weight)
            case RelativeBias():
                nn.init.zeros_(module.table)
            case RelativeMLP():
                xavier(module.hidden)
                xavier(module.output)
            case Positions() | RelativePositions():
                for table in module.parameters():
                    normal(table, std=0.02)
            case QueryValueBias():
                nn.init.zeros_(module.bias)
            case SelfAttention():
                if module.query is None:
                    xavier(module.qkv, parts=3)
                else:
                    xavier(module.query)
                    xavier(module.key_value, parts=2)
                xavier(module.output)
            case DifferentialMix():
                normal(module.lambdas, std=0.1)  # arXiv 2410.05258, section 3.8
            case MLP():
                xavier(module.hidden, parts=1 + module.gated)
                xavier(module.output)
                for layer in (module.hidden, module.output):
                    if layer.bias is not None:
                        normal(layer.bias, std=1e-6)
            case AttentionPool():
                with whole(module.probe) as probe:
                    nn.init.xavier_uniform_(probe[0])
                if isinstance(module.query, nn.Linear):
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
    """Fill a dense layer uniformly, each of its stacked matrices separately; the bias is 0.

    torch's MultiheadAttention draws q, k and v as one matrix, which scales them by 1 / sqrt(2).
    """
    with whole(linear.weight) as weight:
        for matrix in weight.chunk(parts):
            nn.init.xavier_uniform_(matrix)
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)


def lecun_normal(weight: Tensor) -> None:
    """Fill with flax's default: a truncated normal of variance 1 / inputs."""
    inputs = weight.shape[1:].numel()
    # A normal truncated at two stds has 0.8796 of its std; JAX corrects for that.
    std = math.sqrt(1 / inputs) / 0.87962566103423978
    with whole(weight) as filled:
        nn.init.trunc_normal_(filled, std=std, a=-2 * std, b=2 * std)


def normal(parameter: Tensor, std: float) -> None:
    """Fill from a normal with mean 0."""
    with whole(parameter) as filled:
        nn.init.normal_(filled, std=std)


@contextmanager
def whole(parameter: Tensor) -> Iterator[Tensor]:
    """Yield a tensor to fill; of a sharded parameter (DTensor), each process then keeps its shard.

    All processes draw the full tensor, so that the values are those of an unsharded model. Chunks
    of a DTensor are copies: filling them in place would be lost.
    """
    if not hasattr(parameter, "device_mesh"):
        yield parameter
        return
    from torch.distributed.tensor import DTensor, distribute_tensor  # slow to import

    assert isinstance(parameter, DTensor)
    full = torch.empty(parameter.shape, dtype=parameter.dtype)  # a GPU draws other numbers
    yield full
    spread = distribute_tensor(
        full.to(parameter.device), parameter.device_mesh, parameter.placements
    )
    parameter.copy_(spread)
