"""Parameter groups, the steps of each optimizer in closed form, rates and clipping."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from vitrail.config import InputError, from_dict
from vitrail.models import ViT, build
from vitrail.training.optimization.optim import (
    OptimConfig,
    clip_gradients,
    make_optimizer,
    set_rate,
)
from vitrail.training.peft import TuneConfig, adapt

NAME = "ViT/8@16,depth=2,width=12,heads=3,mlp=20,classes=5"
WEIGHT, BIAS = "blocks.1.mlp.hidden.weight", "blocks.1.mlp.hidden.bias"


def make() -> ViT:
    model = build(NAME).double()
    assert isinstance(model, ViT)
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    return model


def step_twice(config: OptimConfig) -> tuple[dict[str, list[Tensor]], dict[str, list[Tensor]]]:
    """Give every parameter before and after two steps, and the two gradients."""
    model = make()
    optimizer = make_optimizer(model, config)
    values = {name: [p.detach().clone()] for name, p in model.named_parameters()}
    gradients: dict[str, list[Tensor]] = {name: [] for name in values}
    for _ in range(2):
        for name, parameter in model.named_parameters():
            parameter.grad = torch.randn_like(parameter)
            gradients[name].append(parameter.grad.clone())
        optimizer.step()
        for name, parameter in model.named_parameters():
            values[name].append(parameter.detach().clone())
    return values, gradients


def adam(gradients: list[Tensor], beta1: float, beta2: float, eps: float) -> Tensor:
    """Give the direction of Adam's last step (arXiv 1412.6980)."""
    first, second, steps = 0.0, 0.0, len(gradients)
    for gradient in gradients:
        first = beta1 * first + (1 - beta1) * gradient
        second = beta2 * second + (1 - beta2) * gradient**2
    assert isinstance(second, Tensor)
    return first / (1 - beta1**steps) / ((second / (1 - beta2**steps)).sqrt() + eps)


def test_adamw_shrinks_weights_and_not_biases() -> None:
    config = OptimConfig(lr=0.1, betas=(0.8, 0.9), eps=1e-3, weight_decay=0.3)
    values, gradients = step_twice(config)
    for name, decay in {WEIGHT: 0.3, BIAS: 0.0, "class_token": 0.0}.items():
        expected = values[name][0]
        for steps in (1, 2):
            direction = adam(gradients[name][:steps], 0.8, 0.9, 1e-3)
            expected = expected * (1 - 0.1 * decay) - 0.1 * direction
            torch.testing.assert_close(values[name][steps], expected)


def test_adam_adds_the_decay_to_the_gradient() -> None:
    config = OptimConfig(kind="adam", lr=0.1, betas=(0.8, 0.9), eps=1e-3, weight_decay=0.3)
    values, gradients = step_twice(config)
    penalized = [g + 0.3 * v for g, v in zip(gradients[WEIGHT], values[WEIGHT], strict=False)]
    expected = values[WEIGHT][1] - 0.1 * adam(penalized, 0.8, 0.9, 1e-3)
    torch.testing.assert_close(values[WEIGHT][2], expected)


@pytest.mark.parametrize("nesterov", [False, True])
def test_sgd_of_table_4(nesterov: bool) -> None:
    config = OptimConfig(kind="sgd", lr=0.1, momentum=0.9, nesterov=nesterov)
    values, gradients = step_twice(config)
    for name in (WEIGHT, BIAS):
        first, second = gradients[name]
        velocity = 0.9 * first + second
        moved = second + 0.9 * velocity if nesterov else velocity
        torch.testing.assert_close(values[name][2], values[name][1] - 0.1 * moved)


@pytest.mark.parametrize("kind", ["adamw", "adam", "sgd", "muon"])
def test_every_trained_parameter_is_in_one_group(kind: str) -> None:
    model = make()
    adapt(model, TuneConfig(mode="last", blocks=1))
    config = {"kind": kind, "lr": 0.1, "layer_decay": 0.5, "weight_decay": 0.2}
    optimizer = make_optimizer(model, from_dict(OptimConfig, config))
    names = {parameter: name for name, parameter in model.named_parameters()}
    found: dict[str, Any] = {}
    for group in optimizer.param_groups:
        assert group["fused"]
        for parameter in group["params"]:
            assert names[parameter] not in found
            found[names[parameter]] = group
    assert found.keys() == {name for name, p in model.named_parameters() if p.requires_grad}
    for name, group in found.items():
        assert group["lr"] == (0.05 if name.startswith("blocks.") else 0.1)
        dense = name.endswith(".weight") and "norm" not in name
        assert group["weight_decay"] == (0.2 if dense else 0.0)


def test_rates_keep_the_layers_parts() -> None:
    model = make()
    optimizer = make_optimizer(model, OptimConfig(layer_decay=0.5))
    set_rate(optimizer, 0.8)
    rates = {p: group["lr"] for group in optimizer.param_groups for p in group["params"]}
    assert rates[model.embedding.weight] == pytest.approx(0.1)
    assert rates[model.get_parameter("blocks.0.mlp.hidden.weight")] == pytest.approx(0.2)
    assert rates[model.get_parameter("head.output.bias")] == pytest.approx(0.8)


def test_clipping_is_by_the_global_norm() -> None:
    first, second, idle = (nn.Parameter(torch.zeros(2, dtype=torch.float64)) for _ in range(3))
    first.grad = torch.tensor([3.0, 0.0], dtype=torch.float64)
    second.grad = torch.tensor([0.0, -4.0], dtype=torch.float64)
    for limit in (None, 6.0):
        assert clip_gradients([first, second, idle], limit).item() == 5
        assert first.grad.tolist() == [3, 0]
    assert clip_gradients(iter([first, second, idle]), 2.0).item() == 5
    assert first.grad.tolist() == pytest.approx([1.2, 0], rel=1e-6)
    assert second.grad.tolist() == pytest.approx([0, -1.6], rel=1e-6)
    first.grad[0] = math.nan
    assert math.isnan(clip_gradients([first, second], None).item())


@pytest.mark.parametrize(
    "wrong",
    [
        {"lr": -1.0},
        {"lr": math.nan},
        {"lr": math.inf},
        {"weight_decay": math.nan},
        {"betas": [0.9, 1.0]},
        {"momentum": 1.0},
        {"layer_decay": 0.0},
        {"clip": 0.0},
        {"clip": math.nan},
        {"nesterov": True, "momentum": 0.0},
    ],
)
def test_what_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(wrong))):
        from_dict(OptimConfig, wrong)
