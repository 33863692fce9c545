"""Mean attention distance against a loop over every pair of patches, and closed forms."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import vitrail
from tests.inspection.recorded_models import images, make
from tests.shelf import refusal
from vitrail.inspection import record
from vitrail.inspection.distance import attention_distance, grid_distances
from vitrail.models import ViT


@pytest.mark.parametrize("name", ["plain", "registers", "relative", "axial", "hybrid", "pooling"])
def test_distance_is_the_mean_over_all_pairs_of_patches(name: str) -> None:
    model = make(name)
    assert isinstance(model, ViT)
    x = images(model, 3)
    with torch.no_grad(), record(model, attention="all") as tape:
        model(x)
    (rows, columns), (down, across), prefix = model.spec.grid, model.spec.stride, model.spec.prefix
    sums = np.zeros((len(tape.attention), model.spec.heads))
    for layer, weights in tape.attention.items():
        patches = weights[:, :, prefix:, prefix:].double()
        patches = patches / patches.sum(-1, keepdim=True)
        for q in range(rows * columns):
            for k in range(rows * columns):
                dy, dx = q // columns - k // columns, q % columns - k % columns
                far = math.hypot(dy * down, dx * across)
                sums[layer] += far * patches[:, :, q, k].mean(0).numpy() / (rows * columns)
    found = attention_distance(model, [x[:2], x[2:]])
    np.testing.assert_allclose(found.pixels, sums, rtol=1e-5)
    assert (found.images, found.name) == (3, model.spec.name)


def test_heads_that_look_everywhere_have_the_grids_mean_distance() -> None:
    model = vitrail.build("ViT/8@16x32,depth=1,width=12,heads=3,mlp=8").eval()
    nn.init.zeros_(model.get_parameter("blocks.0.attention.qkv.weight"))
    far = attention_distance(model, [torch.randn(2, 3, 16, 32)]).pixels
    expected = float(grid_distances((2, 4), (8, 8)).mean())
    np.testing.assert_allclose(far, np.full((1, 3), expected), rtol=1e-6)


def test_differential_heads_that_look_everywhere_have_it_too_at_every_depth() -> None:
    """A second attention that is subtracted makes the weights smaller, not the distances."""
    name = "ViT/8@16x32,depth=6,width=12,heads=3,mlp=8,attention=differential"
    model = vitrail.build(name).eval()
    for block in range(6):
        nn.init.zeros_(model.get_parameter(f"blocks.{block}.attention.qkv.weight"))
    far = attention_distance(model, [torch.randn(2, 3, 16, 32)]).pixels
    expected = float(grid_distances((2, 4), (8, 8)).mean())
    np.testing.assert_allclose(far, np.full((6, 3), expected), rtol=1e-6)


def test_differential_distance_is_a_mean_of_distances() -> None:
    model = make("ViT/8@32,depth=2,width=16,heads=2,mlp=8,attention=differential,pool=gap")
    x = images(model, 3)
    with torch.no_grad(), record(model, attention="all") as tape:
        model(x)
    far = grid_distances((4, 4), (8, 8))
    sums = []
    for weights in (tape.attention[layer].abs().double() for layer in range(2)):
        sums.append((weights / weights.sum(-1, keepdim=True) * far).sum(-1).mean((0, 2)).numpy())
    found = attention_distance(model, [x]).pixels
    np.testing.assert_allclose(found, np.stack(sums), rtol=1e-5)
    assert (found > 0).all()
    assert (found < far.max().item()).all()


def test_every_image_counts_once_whatever_its_size_and_batch() -> None:
    model = make("plain")
    small, large = torch.randn(1, 3, 32, 32), torch.randn(2, 3, 48, 40)
    apart = [attention_distance(model, [x]).pixels for x in (small, large)]
    together = attention_distance(model, [small, large]).pixels
    np.testing.assert_allclose(together, (apart[0] + 2 * apart[1]) / 3, rtol=1e-6)


def test_axial_resnet_measures_pixels_at_every_stage() -> None:
    model = make("AxialResNet-50@32,stages=1-1,width=32,heads=2,classes=3")
    for parameter in model.parameters():
        nn.init.zeros_(parameter)  # each cell of a line looks at all of it alike
    far = attention_distance(model, [images(model)]).pixels
    line = np.abs(np.subtract.outer(np.arange(8), np.arange(8))).mean() * 4
    np.testing.assert_allclose(far, np.full((4, 2), line), rtol=1e-6)


def test_grid_distances_are_euclidean() -> None:
    table = grid_distances((2, 3), (16, 10))
    assert float(table[0, 5]) == pytest.approx(math.hypot(16, 20))
    assert float(table[3, 4]) == 10
    assert torch.equal(table, table.T)


def test_what_has_no_distance_is_refused() -> None:
    model = make("BiT-R50x1@32,stages=1,width=32,classes=3")
    assert "has no attention" in refusal(attention_distance, model, [images(model)])
    assert "no image" in refusal(attention_distance, make("plain"), [])


def test_a_model_in_training_is_measured_without_its_noise_and_left_as_it_was() -> None:
    model = vitrail.build("ViT/8@16,depth=2,width=12,heads=3,mlp=8,dropout=0.5,classes=4").train()
    x = torch.randn(2, 3, 16, 16)
    model.norm.training = False  # as of a part that is frozen
    found = attention_distance(model, [x]).pixels
    assert [name for name, part in model.named_modules() if not part.training] == ["norm"]
    np.testing.assert_array_equal(found, attention_distance(model.eval(), [x]).pixels)


def test_the_result_shows_itself_in_a_notebook() -> None:
    model = make("plain")
    shown = attention_distance(model, [images(model)])._repr_html_()
    assert shown is not None
    assert "<img" in shown


def test_autocast_is_the_models_not_the_measures() -> None:
    model = make("registers")
    x = images(model)
    with torch.autocast("cpu", torch.bfloat16):
        found = attention_distance(model, [x]).pixels
        with torch.no_grad(), record(model, attention="all") as tape:
            model(x)
    table = grid_distances((4, 4), (8, 8))
    for layer, weights in tape.attention.items():
        patches = weights[:, :, 3:, 3:].double()
        patches = patches / patches.sum(-1, keepdim=True)
        expected = (patches * table).sum(-1).mean((0, 2)).numpy()
        np.testing.assert_allclose(found[layer], expected, rtol=1e-6)
