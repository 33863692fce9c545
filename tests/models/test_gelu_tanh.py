"""GELU's tanh form by a sigmoid: its values and gradients, and who sees torch's operator."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint

from vitrail.models import build
from vitrail.models.layers import mlp
from vitrail.models.layers.mlp import gelu_tanh

LARGE = (3, 160, 150)  # more numbers than go to torch's kernel, of an odd number of blocks


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mlp, "_BLOCK", 10_000)


def by_hand(x: Tensor) -> Tensor:
    """Compute the paper's formula (arXiv 1606.08415, section 2) in float64."""
    x = x.double()
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


@settings(max_examples=30)
@given(
    seed=st.integers(0, 2**32),
    spread=st.sampled_from([0.01, 1.0, 10.0, 1000.0]),
    count=st.integers(1, 40_000),
    trained=st.booleans(),
)
def test_values_and_gradients_are_those_of_the_formula(
    seed: int, spread: float, count: int, trained: bool
) -> None:
    generator = torch.Generator().manual_seed(seed)
    x, grad = torch.randn(2, count, generator=generator)
    x = (x * spread).requires_grad_(trained)
    exact = x.detach().double().requires_grad_()
    by_hand(exact).backward(grad.double())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mlp, "_LEAST", 1)
        y = gelu_tanh(x)
    torch.testing.assert_close(y.double(), by_hand(x), rtol=1e-6, atol=1e-6)
    if trained:
        y.backward(grad)
        assert x.grad is not None
        assert exact.grad is not None
        torch.testing.assert_close(x.grad.double(), exact.grad, rtol=1e-5, atol=1e-5)


def test_bfloat16_is_computed_in_float32_and_rounded_once() -> None:
    x = (3 * torch.randn(LARGE)).bfloat16().requires_grad_()
    y, exact = gelu_tanh(x), x.detach().float().requires_grad_()
    wanted = F.gelu(exact, approximate="tanh")
    assert y.dtype == torch.bfloat16
    assert (y.float() - wanted).abs().max() <= 2**-8 * wanted.abs().max()
    grad = torch.randn(LARGE).bfloat16()
    y.backward(grad)
    wanted.backward(grad.float())
    assert x.grad is not None
    assert exact.grad is not None
    assert x.grad.dtype == torch.bfloat16
    # Two roundings: of the derivative, and of its product with the gradient.
    torch.testing.assert_close(x.grad.float(), exact.grad, rtol=2**-7, atol=1e-5)


def operators(x: Tensor) -> set[str]:
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        gelu_tanh(x)
    return {event.name for event in seen.events() or ()}


def test_only_large_dense_ones_are_computed_so() -> None:
    x = torch.randn(LARGE)
    assert "aten::gelu" not in operators(x)
    assert "aten::gelu" in operators(x[:1])
    assert "aten::gelu" in operators(x.double())
    assert "aten::gelu" in operators(x.half())
    assert "aten::gelu" in operators(x.transpose(1, 2))
    assert gelu_tanh(torch.empty(LARGE, device="meta")).shape == LARGE


@pytest.mark.filterwarnings("ignore:`torch.jit.script`")  # torch's own, for jvp
def test_readers_of_graphs_see_torchs_operator() -> None:
    x = torch.randn(LARGE)
    expected = F.gelu(x, approximate="tanh")

    class Model(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return gelu_tanh(x)

    graph = torch.export.export(Model(), (x,)).graph
    called = [str(node.target) for node in graph.nodes if node.op == "call_function"]
    assert called == ["aten.gelu.default"]
    torch.testing.assert_close(torch.vmap(gelu_tanh)(x), expected)
    torch.testing.assert_close(torch.func.jvp(gelu_tanh, (x,), (x,))[0], expected)
    second = torch.func.grad(lambda x: torch.func.grad(lambda x: gelu_tanh(x).sum())(x).sum())(x)
    assert second.isfinite().all()
    small = torch.randn(30, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(gelu_tanh, small)


def test_a_second_derivative_is_refused_not_wrong() -> None:
    x = torch.randn(LARGE, requires_grad=True)
    with pytest.raises(RuntimeError, match=r"take it by torch\.func, or in float64"):
        torch.autograd.grad(gelu_tanh(x).sum(), x, create_graph=True)


@pytest.mark.parametrize("autocast", [False, True])
def test_a_model_computes_as_with_torchs_kernel(
    monkeypatch: pytest.MonkeyPatch, autocast: bool
) -> None:
    model, images = build("ViT-Ti/16@64,depth=2,classes=3"), torch.randn(8, 3, 64, 64)
    torch.nn.init.normal_(model.head.output.weight, std=0.02)  # type: ignore[union-attr]

    def gradient() -> list[Tensor]:
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            y = checkpoint(model, images, use_reentrant=False)
        assert isinstance(y, Tensor)
        y.float().square().sum().backward()
        return [y.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]

    ours = gradient()
    monkeypatch.setattr(mlp, "_LEAST", 2**40)
    for found, torchs in zip(ours, gradient(), strict=True):
        off = float((found - torchs).float().norm() / torchs.float().norm().clamp(min=1e-9))
        assert off < (0.03 if autocast else 1e-5)
