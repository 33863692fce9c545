"""The dense layer: the same numbers, whichever library multiplies."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from vitrail.machine import ASSUMED
from vitrail.models import build
from vitrail.models.layers import linear as module
from vitrail.models.layers.linear import Linear, linear, suits_onednn

pytestmark = pytest.mark.skipif(
    not hasattr(torch.ops.mkldnn, "_linear_pointwise"), reason="this torch has no oneDNN"
)


@pytest.fixture(autouse=True)
def any_processor() -> Iterator[None]:
    """Take oneDNN on every processor, since its numbers are right on all of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(ASSUMED, "AuthenticAMD avx512f")
        yield


def count_products(run: object) -> int:
    """Count the products that oneDNN computed in a call."""
    assert callable(run)
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        run()
    return sum(event.name == "mkldnn::_linear_pointwise" for event in seen.events() or ())


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@settings(max_examples=40)
@given(
    lead=st.lists(st.integers(1, 12), min_size=1, max_size=3),
    inputs=st.integers(1, 200),
    outputs=st.integers(1, 200),
    biased=st.booleans(),
    trained=st.sampled_from(["all", "input", "weight", "bias", "none"]),
    turned=st.booleans(),
)
def test_values_and_gradients_equal_torchs(
    lead: list[int], inputs: int, outputs: int, biased: bool, trained: str, turned: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_LEAST_PRODUCTS", 0)
        patch.setattr(module, "_LEAST_ROWS", 0)
        x = draw(inputs, *lead).movedim(0, -1) if turned else draw(*lead, inputs)
        leaves = {"input": x, "weight": draw(outputs, inputs, seed=1)}
        if biased:
            leaves["bias"] = draw(outputs, seed=2)
        assert suits_onednn(x, leaves["weight"])
        results = []
        for dtype, function in ((torch.float32, linear), (torch.float64, F.linear)):
            own = {
                name: leaf.to(dtype).detach().requires_grad_(trained in ("all", name))
                for name, leaf in leaves.items()
            }
            y = function(*own.values())
            assert y.dtype == dtype
            if y.requires_grad:
                y.backward(draw(*y.shape, seed=3).to(dtype))
            results.append([y.detach()] + [leaf.grad for leaf in own.values()])
    for ours, exact in zip(*results, strict=True):
        assert (ours is None) == (exact is None)
        if ours is not None:
            torch.testing.assert_close(
                ours.double(), exact, rtol=0, atol=1e-5 * float(exact.square().mean().sqrt()) + 1e-5
            )


def test_a_training_step_multiplies_by_onednn_and_by_nothing_else() -> None:
    model = build("ViT-Ti/16@64,depth=2")  # 4 layers a block; each has 3 products in training
    images = draw(8, 3, 64, 64)
    with torch.inference_mode():
        assert count_products(lambda: model(images)) == 2 * 4
    seen = profile(activities=[ProfilerActivity.CPU])
    with seen:
        model(images).sum().backward()
    names = [event.name for event in seen.events() or ()]
    assert names.count("mkldnn::_linear_pointwise") == 2 * 4 * 3
    assert names.count("aten::addmm") == 1  # the head's eight rows are too few


def test_a_model_of_either_library_has_the_same_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("ViT-Ti/16@64,depth=2").eval()
    nn.init.normal_(model.head.output.weight, std=0.02)  # type: ignore[union-attr]
    images = draw(8, 3, 64, 64)
    ours = model(images)
    monkeypatch.setenv(ASSUMED, "GenuineIntel avx512f")
    assert count_products(lambda: model(images)) == 0
    torch.testing.assert_close(ours, model(images), rtol=1e-5, atol=1e-5)


def test_small_and_other_products_are_torchs() -> None:
    weight = draw(256, 256)
    assert suits_onednn(draw(32, 256), weight)
    assert not suits_onednn(draw(31, 256), weight)
    assert not suits_onednn(draw(7, 1024), draw(1024, 1024))
    assert not suits_onednn(draw(32, 256).double(), weight.double())
    assert not suits_onednn(draw(32, 256).to("meta"), weight.to("meta"))
    with torch.autocast("cpu", torch.bfloat16):
        assert not suits_onednn(draw(32, 256), weight)
        assert linear(draw(32, 256), weight).dtype == torch.bfloat16


def test_a_gradient_of_a_gradient() -> None:
    def second(dtype: torch.dtype) -> tuple[Tensor, ...]:
        x, weight = (draw(n, 256, seed=n).to(dtype).requires_grad_() for n in (32, 256))
        y = linear(x, weight, draw(256).to(dtype))
        (first,) = torch.autograd.grad((y**3).sum() / 1e3, x, create_graph=True)
        return torch.autograd.grad((first**2).sum() / 1e6, [x, weight])

    for ours, exact in zip(second(torch.float32), second(torch.float64), strict=True):
        torch.testing.assert_close(
            ours.double(), exact, rtol=1e-4, atol=1e-4 * float(exact.abs().max())
        )


@pytest.mark.filterwarnings("ignore:`torch.jit.script`")  # torch's own, for jvp
def test_readers_of_graphs_see_torchs_operators() -> None:
    layer, x = Linear(256, 256), draw(64, 256)
    with FlopCounterMode(display=False) as counter:
        layer(x).sum().backward()
    assert counter.get_total_flops() == 2 * 2 * 64 * 256 * 256
    graph = torch.export.export(layer, (x,)).graph
    called = [str(node.target) for node in graph.nodes if node.op == "call_function"]
    assert called == ["aten.linear.default"]
    expected = F.linear(x, layer.weight, layer.bias)
    torch.testing.assert_close(torch.func.vmap(layer)(x.view(2, 32, 256)).flatten(0, 1), expected)
    tangent = torch.func.jvp(layer, (x,), (x,))[1]
    torch.testing.assert_close(tangent, expected - layer.bias)


def test_parameters_keep_their_names_and_hooks_their_layers() -> None:
    layer, seen = Linear(256, 128), []
    assert isinstance(layer, nn.Linear)
    assert list(layer.state_dict()) == ["weight", "bias"]
    layer.register_forward_hook(lambda *told: seen.append(told[2].shape))
    layer(draw(80, 256))
    assert seen == [(80, 128)]


@pytest.mark.parametrize("lead", [(32,), (4, 8), (2, 4, 4)], ids=str)
def test_the_result_may_be_changed_in_place(lead: tuple[int, ...]) -> None:
    """As LoRA does."""
    x, weight = draw(*lead, 256), draw(512, 256, seed=1).requires_grad_()
    assert suits_onednn(x, weight)
    result = linear(x, weight)
    result.narrow(-1, 0, 256).add_(1)
    result.sum().backward()
    assert torch.allclose(result, F.linear(x, weight) + (torch.arange(512) < 256), atol=1e-3)
    assert weight.grad is not None
    assert torch.allclose(weight.grad, x.reshape(-1, 256).sum(0).expand(512, 256), atol=1e-3)
