"""Optimizers, parameter groups, learning rates and gradient clipping."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from vitrail.config import (
    InputError,
    NonNegativeFloat,
    PositiveFloat,
    Range,
    UsedIf,
    validate,
)
from vitrail.models.model import Model
from vitrail.training.checkpoints.dtensor import gather, is_sharded
from vitrail.training.optimization.matrices import find_filters, find_matrices
from vitrail.training.optimization.muon import Muon

_FUSED = ("cpu", "cuda")  # devices whose optimizers update all weights in one kernel
_Decay = Annotated[float, Range("[0, 1)")]


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """The optimizer and its settings."""

    kind: Literal["adamw", "adam", "sgd", "muon"] = "adamw"
    """`adamw` is what the paper calls Adam; `muon` is for the blocks' matrices."""
    lr: NonNegativeFloat = 1e-3
    """Base learning rate."""
    betas: Annotated[tuple[_Decay, _Decay], UsedIf("kind", "adamw", "adam", "muon")] = (0.9, 0.999)
    """Decay of Adam's two averages (Table 3); `muon` uses them for everything but its matrices."""
    eps: Annotated[NonNegativeFloat, UsedIf("kind", "adamw", "adam", "muon")] = 1e-8
    """Adam's epsilon."""
    momentum: Annotated[_Decay, UsedIf("kind", "sgd", "muon")] = 0.9
    """Momentum of `sgd` (Table 4) and `muon` (whose author takes 0.95, with nesterov)."""
    nesterov: Annotated[bool, UsedIf("kind", "sgd", "muon")] = False
    """Whether `sgd` and `muon` look ahead along their momentum."""
    weight_decay: NonNegativeFloat = 0.0
    """Weight decay of dense and convolution weights: decoupled for `adamw` and `muon`, as in the
    paper's code; added to the gradient for `adam` and `sgd`, for which Table 3's 0.1 and 0.3 are
    far too much."""
    layer_decay: Annotated[float, Range("(0, 1]")] = 1.0
    """Layer-wise learning rate decay: the factor from each layer to the one below it."""
    last_norm: Literal["head", "block"] = "head"
    """Whether `layer_decay` takes the last norm for a part of the head (BEiT, MAE), or of the last
    block (timm)."""
    decays: Literal["weights", "all"] = "weights"
    """What `weight_decay` is for: dense and convolution weights (big_vision, timm), or all
    parameters but biases and norms, so positions and class token too (Hugging Face's Trainer)."""
    clip: PositiveFloat | None = 1.0
    """Largest global norm of the gradient (Table 4, and Table 3 on ImageNet); null: no clipping."""

    def __post_init__(self) -> None:
        validate(self, "optim")
        if self.nesterov and self.momentum == 0:
            raise InputError("optim.nesterov requires an optim.momentum above 0")


def make_optimizer(
    model: Model,
    config: OptimConfig,
    own: Callable[[list[dict[str, Any]]], torch.optim.Optimizer] | None = None,
) -> torch.optim.Optimizer:
    """Make the optimizer of all parameters that are to be trained; `own` makes one of its own."""
    groups = _make_groups(model, config)
    if own is not None:
        made: Any = own(groups)
        if not isinstance(made, torch.optim.Optimizer):
            kind = type(made).__name__
            raise InputError(f"the optimizer must be a torch.optim.Optimizer, got {kind}")
        for group in made.param_groups:
            group.setdefault("lr_scale", 1.0)  # where it made groups of its own
        return made
    parameters = [parameter for group in groups for parameter in group["params"]]
    fused = all(parameter.device.type in _FUSED for parameter in parameters)
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
    """Group trainable parameters by layer, weight decay and, for Muon, number of matrices."""
    stacks = {}
    if config.kind == "muon":
        stacks = {found.layer.weight: len(found.roles) for found in find_matrices(model)}
        stacks |= dict.fromkeys(find_filters(model), 1)
    groups = []
    for group in model.parameter_groups(
        weight_decay=config.weight_decay,
        layer_decay=config.layer_decay,
        lr=config.lr,
        last_norm=config.last_norm,
        decays=config.decays,
    ):
        trained = [parameter for parameter in group["params"] if parameter.requires_grad]
        for stack in sorted({stacks.get(parameter, 0) for parameter in trained}):
            members = [parameter for parameter in trained if stacks.get(parameter, 0) == stack]
            options = {key: group[key] for key in ("weight_decay", "lr_scale", "lr")}
            options["stack"] = stack
            groups.append({"params": members, **options})
    return groups


def set_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set the learning rate; each group scales it by its `lr_scale`."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group["lr_scale"]


def step_unless(optimizer: torch.optim.Optimizer, held: Tensor) -> None:
    """Take an optimizer's step unless `held` is 1, a float32 on the device.

    Fused optimizers look at it there. Others ask the host, and so do the fused ones at their first
    step, which may leave a momentum unset when it is held back.
    """
    begun = bool(optimizer.state) or not any(g.get("momentum") for g in optimizer.param_groups)
    if begun and getattr(optimizer, "_step_supports_amp_scaling", False):
        optimizer.found_inf = held  # type: ignore[attr-defined]  # as GradScaler gives it to them
        optimizer.step()
        del optimizer.found_inf  # type: ignore[attr-defined]
    elif not held:
        optimizer.step()


def clip_gradients(parameters: Iterable[nn.Parameter], limit: float | None) -> Tensor:
    """Clip the gradients to a global norm of at most `limit`; return the norm they had."""
    parameters = list(parameters)
    norm = get_total_norm([p.grad for p in parameters if p.grad is not None])
    if limit is not None:
        clip_grads_with_norm_(parameters, limit, norm)
    return gather(norm)
