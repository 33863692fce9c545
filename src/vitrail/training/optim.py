"""Optimizers of a model's parameter groups, their learning rate, and gradient clipping."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from vitrail.config import InputError
from vitrail.models.model import Model
from vitrail.training.dtensor import gather, is_sharded
from vitrail.training.matrices import find_matrices
from vitrail.training.muon import Muon


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """How gradients become changes of weights."""

    kind: Literal["adamw", "adam", "sgd", "muon"] = "adamw"
    """`adamw` is what the paper calls Adam; `muon` updates the blocks' matrices as a whole."""
    lr: float = 1e-3
    """Base learning rate."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay of Adam's two averages (Table 3); `muon` uses them outside its matrices."""
    eps: float = 1e-8
    """Adam's epsilon."""
    momentum: float = 0.9
    """Momentum of `sgd` (Table 4) and `muon` (whose author takes 0.95, with nesterov)."""
    nesterov: bool = False
    """Whether `sgd` and `muon` look ahead along their momentum."""
    weight_decay: float = 0.0
    """Decay of dense and convolution weights. `adamw` and `muon` shrink the weights by lr times
    it, as the paper's code does; `adam` and `sgd` add it to the gradient, so Table 3's 0.1 and
    0.3 are far too much for them."""
    layer_decay: float = 1.0
    """Factor of the learning rate from each layer to the one below it."""
    clip: float | None = 1.0
    """Largest global norm of the gradient (Table 4, and Table 3 on ImageNet); null: any."""

    def __post_init__(self) -> None:
        for name in ("lr", "eps", "weight_decay"):
            if not 0 <= getattr(self, name) < math.inf:
                raise InputError(f"{name} is at least 0, not {getattr(self, name)}")
        for name, values in {"betas": self.betas, "momentum": (self.momentum,)}.items():
            if not all(0 <= value < 1 for value in values):
                raise InputError(f"{name}: expected 0 to below 1, not {getattr(self, name)}")
        if not 0 < self.layer_decay <= 1:
            raise InputError(f"layer_decay is above 0 and at most 1, not {self.layer_decay}")
        if self.clip is not None and not self.clip > 0:
            raise InputError(f"clip is a norm above 0, or null, not {self.clip}")
        if self.nesterov and self.momentum == 0:
            raise InputError("nesterov needs a momentum above 0")


def make_optimizer(model: Model, config: OptimConfig) -> torch.optim.Optimizer:
    """Make the optimizer of all parameters that are to be trained."""
    groups = _make_groups(model, config)
    parameters = [parameter for group in groups for parameter in group["params"]]
    fused = all(parameter.device.type in ("cpu", "cuda") for parameter in parameters)
    adam: dict[str, Any] = {"betas": config.betas, "eps": config.eps, "fused": fused}
    sgd: dict[str, Any] = {"momentum": config.momentum, "nesterov": config.nesterov}
    match config.kind:
        case "adamw":
            return torch.optim.AdamW(groups, **adam)
        case "adam":
            return torch.optim.Adam(groups, **adam)
        case "sgd":
            whole = not any(map(is_sharded, parameters))  # torch's fused SGD takes no others
            return torch.optim.SGD(groups, **sgd, fused=fused and whole)
        case "muon":
            return Muon(groups, **sgd, **adam)


def _make_groups(model: Model, config: OptimConfig) -> list[dict[str, Any]]:
    """Group what is trained by layer, by whether it decays and, for Muon, by kind of matrix."""
    stacks = {}
    if config.kind == "muon":
        stacks = {found.layer.weight: len(found.roles) for found in find_matrices(model)}
    groups = []
    for group in model.parameter_groups(
        weight_decay=config.weight_decay, layer_decay=config.layer_decay
    ):
        trained = [parameter for parameter in group["params"] if parameter.requires_grad]
        for stack in sorted({stacks.get(parameter, 0) for parameter in trained}):
            members = [parameter for parameter in trained if stacks.get(parameter, 0) == stack]
            options = {"weight_decay": group["weight_decay"], "lr_scale": group["lr_scale"]}
            options |= {"lr": config.lr * group["lr_scale"], "stack": stack}
            groups.append({"params": members, **options})
    return groups


def set_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set the learning rate; each group takes its own part of it."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group["lr_scale"]


def clip_gradients(parameters: Iterable[nn.Parameter], limit: float | None) -> Tensor:
    """Scale the gradients down to a global norm of at most `limit`; give the norm they had."""
    parameters = list(parameters)
    norm = get_total_norm([p.grad for p in parameters if p.grad is not None])
    if limit is not None:
        clip_grads_with_norm_(parameters, limit, norm)
    return gather(norm)
