"""Rollout, raw and gradient-weighted masks against versions that write every matrix out."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.inspection.recorded_models import (
    MODELS,
    compile_blocks,
    compile_in_place,
    compile_whole,
    images,
    make,
)
from tests.shelf import refusal
from vitrail.inspection import record
from vitrail.inspection.attention import attention_masks, gradient_maps, resize_masks, rollout
from vitrail.models import ViT
from vitrail.models.layers.self_attention import SelfAttention
from vitrail.models.positions.relative import RelativePositions
from vitrail.models.positions.rotary import Rotation

NAMES = sorted(MODELS)


def attention_of(model: ViT, x: Tensor) -> tuple[list[Tensor], Tensor | None]:
    with torch.no_grad(), record(model, attention="all") as tape:
        model(x)
    return list(tape.attention.values()), tape.pooling


def multiply_out(maps: list[Tensor]) -> Tensor:
    """Multiply (maps + identity), rows normalized, in the order of the layers."""
    product = torch.eye(maps[0].shape[-1], dtype=torch.float64).expand(maps[0].shape).clone()
    for weights in maps:
        mixed = weights.double() + torch.eye(weights.shape[-1], dtype=torch.float64)
        product = mixed / mixed.sum(-1, keepdim=True) @ product
    return product


def read_of(model: ViT, product: Tensor, pooling: Tensor | None) -> Tensor:
    """Take what the head reads of a product (batch, tokens, tokens): a row, or a mean of rows."""
    prefix = model.spec.prefix
    if model.spec.pool == "token":
        return product[:, 0, prefix:]
    mean = product[:, prefix:, prefix:].mean(1)
    if model.spec.pool == "token-gap":
        return (product[:, 0, prefix:] + mean) / 2
    if pooling is None:
        return mean
    weights = pooling.mean(1).double()
    return torch.einsum("np,npk->nk", weights, product[:, prefix:, prefix:])


@pytest.mark.parametrize("name", NAMES)
def test_rollout_multiplies_all_layers(name: str) -> None:
    model = make(name)
    assert isinstance(model, ViT)
    x = images(model)
    maps, pooling = attention_of(model, x)
    expected = read_of(model, multiply_out([each.mean(1) for each in maps]), pooling)
    found = attention_masks(model, x).values
    assert found.shape == (2, *model.spec.grid)
    np.testing.assert_allclose(found, expected.view(2, *model.spec.grid), atol=1e-6)


@pytest.mark.parametrize("name", ["plain", "axial", "pooling"])
def test_rollout_of_each_head_follows_that_head_alone(name: str) -> None:
    model = make(name)
    assert isinstance(model, ViT)
    x = images(model)
    maps, pooling = attention_of(model, x)
    found = attention_masks(model, x, by_head=True).values
    for head in range(model.spec.heads):
        expected = read_of(model, multiply_out([each[:, head] for each in maps]), pooling)
        np.testing.assert_allclose(found[:, head].reshape(2, -1), expected, atol=1e-6)


@pytest.mark.parametrize("name", ["registers", "every-layer", "pooling"])
@pytest.mark.parametrize("layer", [0, -1])
def test_raw_is_what_the_head_reads_of_one_layer(name: str, layer: int) -> None:
    model = make(name)
    assert isinstance(model, ViT)
    x = images(model)
    maps, pooling = attention_of(model, x)
    found = attention_masks(model, x, method="raw", layer=layer, by_head=True).values
    for head in range(model.spec.heads):
        product = maps[layer][:, head].double()
        if model.spec.pool == "token":
            expected = product[:, 0, model.spec.prefix :]
        else:
            weights = torch.full((2, 16), 1 / 16) if pooling is None else pooling.mean(1)
            expected = (weights.double()[:, None] @ product)[:, 0]
        np.testing.assert_allclose(found[:, head].reshape(2, -1), expected, atol=1e-6)


class ConversionResult(nn.Module):
    """Attention with its weights written out, so that autograd knows their gradient."""

    def __init__(self, site: SelfAttention) -> None:
        super().__init__()
        self.site = site
        self.weights = torch.empty(0)

    def forward(
        self,
        x: Tensor,
        relative: RelativePositions | None = None,
        rotation: Rotation | None = None,
    ) -> Tensor:
        query, key, value = self.site.project(x, rotation)
        logits = query @ key.mT * query.shape[-1] ** -0.5
        self.weights = (logits if relative is None else logits + relative(query)).softmax(-1)
        self.weights.retain_grad()
        mixed = (self.weights @ value).transpose(1, 2).reshape(x.shape)
        return self.site.output(self.site.sub_norm(mixed))


@pytest.mark.parametrize("name", ["plain", "relative", "pooling", "eva"])
@pytest.mark.parametrize("target", [None, 3, [1, 4]])
def test_gradient_is_autograds_of_weights_written_out(name: str, target: Any) -> None:
    model = make(name).double()
    assert isinstance(model, ViT)
    x = images(model).double()
    found, read = gradient_maps(model, x, target=target)
    assert all(parameter.grad is None for parameter in model.parameters())
    masks = attention_masks(model, x, method="gradient", target=target).values
    written = []
    for block in model.blocks:
        written.append(ConversionResult(block.get_submodule("attention")))  # type: ignore[arg-type]
        block.attention = written[-1]
    logits = model(x)
    classes = logits.argmax(1) if target is None else torch.tensor(target).expand(2)
    logits[torch.arange(2), classes].sum().backward()
    maps = [(each.weights * each.weights.grad).clamp(min=0).mean(1).detach() for each in written]
    for ours, expected in zip(found, maps, strict=True):
        torch.testing.assert_close(ours, expected)
    product = multiply_out(maps)
    expected = (read[:, None] @ product)[:, 0, model.spec.prefix :]
    np.testing.assert_allclose(masks.reshape(2, -1), expected, atol=1e-6)


def test_gradient_of_axial_blocks_is_numerical_ones() -> None:
    """The logit's change, when one weight of one layer is nudged, is weight times gradient."""
    model = make("axial").double()
    assert isinstance(model, ViT)
    x = images(model, 1).double()
    maps, _ = gradient_maps(model, x, target=2, by_head=True)
    site: Any = model.blocks[1].get_submodule("column").get_submodule("attention")
    with torch.no_grad():
        with record(model, attention=[3]) as tape:
            before = model(x)[0, 2]
        line, head, query, key, step = 1, 0, 1, 0, 1e-6  # a line is a column
        seen: dict[str, Tensor] = {}
        site.qkv.register_forward_hook(lambda _, inputs, output: seen.update(qkv=output))

        def nudge(_: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
            mixed = inputs[0].clone()  # (batch, columns, rows, width)
            value = seen["qkv"].chunk(3, dim=-1)[2][0, line, key, :12]
            mixed[0, line, query, head * 12 : head * 12 + 12] += step * value
            return (mixed,)

        hook = site.output.register_forward_pre_hook(nudge)
        after = model(x)[0, 2]
        hook.remove()
    columns = model.spec.grid[1]
    place = (query * columns + line, key * columns + line)
    slope = float((after - before) / step)
    weight = float(tape.attention[3][0, head, place[0], place[1]])
    assert float(maps[3][0, head, place[0], place[1]]) == pytest.approx(
        max(slope, 0) * weight, rel=1e-4, abs=1e-9
    )


def test_gradient_works_under_inference_and_leaves_the_model_as_it_was() -> None:
    model = make("plain").requires_grad_(requires_grad=False)
    x = images(model)
    expected = attention_masks(model, x, method="gradient").values
    with torch.no_grad():
        found = attention_masks(model, x, method="gradient").values
    np.testing.assert_array_equal(found, expected)
    assert not any(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("how", [compile_in_place, compile_blocks, compile_whole])
def test_gradient_of_a_compiled_model_is_that_of_the_model(how: Any) -> None:
    torch.compiler.reset()
    model = make("pooling")
    x = images(model)
    expected = attention_masks(model, x, method="gradient").values
    found = attention_masks(how(model), x, method="gradient").values
    np.testing.assert_array_equal(found, expected)
    torch.compiler.reset()


def test_masks_have_the_grid_of_a_image_of_any_size() -> None:
    model = make("registers")
    masks = attention_masks(model, torch.randn(1, 3, 24, 56))
    assert masks.values.shape == (1, 3, 7)
    large = masks.resized((24, 56))
    assert large.shape == (1, 24, 56)
    assert large.max() == 1


def test_resized_masks_are_bilinear_between_centres() -> None:
    mask = np.array([[[0.0, 2.0], [4.0, 6.0]]], np.float32)
    large = resize_masks(mask, (4, 4))[0] * 6
    np.testing.assert_allclose(large[0], [0, 0.5, 1.5, 2], atol=1e-6)
    np.testing.assert_allclose(large[:, 0], [0, 1, 3, 4], atol=1e-6)
    assert resize_masks(np.zeros((1, 2, 2), np.float32), (4, 4)).max() == 0


def test_rollout_of_no_attention_but_to_oneself_stays_where_it_was() -> None:
    read = torch.tensor([[0.25, 0.75]])
    torch.testing.assert_close(rollout([torch.eye(2)[None]] * 3, read), read)


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("plain", {"method": "rolout"}, "unknown method 'rolout'; expected one of rollout, gradi"),
        ("plain", {"method": "raw", "layer": 7}, "has no attention layer 7"),
        (
            "plain",
            {"method": "gradient", "target": 5},
            "target class 5 does not exist; expected 0 to 4",
        ),
        ("plain", {"method": "gradient", "target": [1]}, "1 target classes for 2 images"),
        (
            f"{MODELS['plain']},classes=0",
            {"method": "gradient"},
            "so there is no class",
        ),
        ("BiT-R50x1@32,stages=1,width=32", {}, "has no patches; use a ViT"),
    ],
)
def test_bad_requests_are_refused(name: str, options: dict[str, Any], said: str) -> None:
    model = make(name)
    assert said in refusal(attention_masks, model, images(model), **options)


@pytest.mark.parametrize("by_head", [False, True])
def test_masks_show_themselves_in_a_notebook(by_head: bool) -> None:
    model = make(f"{MODELS['plain']},channels=1")
    masks = attention_masks(model, torch.randn(2, 1, 32, 32), by_head=by_head)
    assert masks.inputs.shape == (2, 32, 32, 3)
    assert (masks.inputs.min(), masks.inputs.max()) == (0, 255)
    shown = masks._repr_html_()
    assert shown is not None
    assert "<img" in shown


@pytest.mark.parametrize("method", ["rollout", "gradient", "raw"])
def test_autocast_is_the_models_not_the_masks(method: Any) -> None:
    model = make("plain")
    x = images(model)
    exact = attention_masks(model, x, method=method).values
    with torch.autocast("cpu", torch.bfloat16):
        found = attention_masks(model, x, method=method).values
        maps, _ = attention_of(model, x)  # type: ignore[arg-type]
    assert np.abs(found - exact).max() > 1e-7  # the model's numbers are others
    np.testing.assert_allclose(found, exact, rtol=0.2, atol=0.02)
    if method == "rollout":
        expected = multiply_out([each.mean(1) for each in maps])[:, 0, 1:]
        np.testing.assert_allclose(found.reshape(2, -1), expected, atol=1e-6)
