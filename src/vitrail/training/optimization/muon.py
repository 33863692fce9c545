"""Muon: orthogonalized momentum for hidden matrices, AdamW for everything else.

Keller Jordan's optimizer with updates of AdamW's size (arXiv 2502.16982, section 2.2), so that its
learning rate and weight decay carry over.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from vitrail.machine import has_bfloat16
from vitrail.training.checkpoints.dtensor import gather, local_part, shard_like

_ADAMW_RMS = 0.2  # of AdamW's usual update (arXiv 2502.16982, section 2.2)
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # steepest at 0, as singular values are mostly small
_ITERATIONS = 5
_ASKED = ("cpu",)  # devices that can be asked, before a step, whether to take it


def orthogonalize(matrix: Tensor) -> Tensor:
    """Bring the singular values of matrices (…, rows, columns) near 1, to about 0.7 to 1.2.

    Newton-Schulz iterations, in bfloat16 on CUDA and on processors that multiply it; others would
    take 60 times as long in that.
    """
    a, b, c = _COEFFICIENTS
    wide = torch.promote_types(matrix.dtype, torch.float32)
    on_cpu = matrix.device.type == "cpu" and wide == torch.float32
    halves = matrix.is_cuda or (on_cpu and has_bfloat16())
    x = matrix.to(torch.bfloat16 if halves else wide)
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(_ITERATIONS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """Muon and AdamW in one: the parameters of a group with `stack` n are n matrices stacked.

    A group with `stack` 0 is AdamW's. Each process computes all of a sharded matrix.
    """

    def __init__(
        self,
        groups: list[dict[str, Any]],
        *,
        momentum: float,
        nesterov: bool,
        betas: tuple[float, float],
        eps: float,
        fused: bool,
    ) -> None:
        """Take groups with `params`, `lr`, `weight_decay` and `stack`."""
        defaults = {"momentum": momentum, "nesterov": nesterov, "betas": betas, "eps": eps}
        super().__init__(groups, defaults | {"fused": fused})
        self._step_supports_amp_scaling = fused  # a step is held back on the device

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Update all parameters that have a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        held: Tensor | None = getattr(self, "found_inf", None)
        if held is not None and held.device.type in _ASKED:
            if held:
                return loss
            held = None
        for group in self.param_groups:
            moving = [p for p in group["params"] if p.grad is not None]
            update = self._update_matrices if group["stack"] else self._update_others
            update(moving, group, held)
        return loss

    def _update_matrices(
        self, parameters: list[Tensor], group: dict[str, Any], held: Tensor | None
    ) -> None:
        for parameter in parameters:
            state = self.state[parameter]
            if not state:
                state["momentum_buffer"] = torch.zeros_like(parameter)
            changed = [local_part(each) for each in (parameter, state["momentum_buffer"])]
            before = [] if held is None else [each.clone() for each in changed]
            self._update_matrix(parameter, group)
            if held is not None:  # also where the gradient was not finite
                for now, old in zip(changed, before, strict=True):
                    now.copy_(torch.where(held > 0, old, now))

    def _update_matrix(self, parameter: Tensor, group: dict[str, Any]) -> None:
        lr, momentum, stack = group["lr"], group["momentum"], group["stack"]
        state = self.state[parameter]
        assert parameter.grad is not None
        average = state["momentum_buffer"].lerp_(parameter.grad, 1 - momentum)
        update = parameter.grad.lerp(average, momentum) if group["nesterov"] else average
        whole = gather(update)
        matrices = orthogonalize(whole.flatten(1).unflatten(0, (stack, -1)))
        update = shard_like(matrices.reshape(whole.shape).to(parameter.dtype), parameter)
        size = _ADAMW_RMS * math.sqrt(max(matrices.shape[-2:]))
        parameter.mul_(1 - lr * group["weight_decay"]).add_(update, alpha=-lr * size)

    def _update_others(
        self, parameters: list[Tensor], group: dict[str, Any], held: Tensor | None
    ) -> None:
        for parameter in parameters:
            state = self.state[parameter]
            if not state:
                device = parameter.device if group["fused"] else None
                state["step"] = torch.zeros((), dtype=torch.float32, device=device)
                state["exp_avg"] = torch.zeros_like(parameter)
                state["exp_avg_sq"] = torch.zeros_like(parameter)
        states = [self.state[parameter] for parameter in parameters]
        adamw(
            parameters,
            [parameter.grad for parameter in parameters if parameter.grad is not None],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            fused=group["fused"],
            found_inf=held,
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )
