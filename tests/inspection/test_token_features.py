"""Colors of patches, token norms and the logit lens against plain versions."""

import io

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import vitrail
from tests.inspection.recorded_models import MODELS, PLAIN, images, make
from tests.shelf import refusal
from vitrail.inspection.token_features import (
    logit_lens,
    otsu,
    patch_colors,
    patch_tokens,
    token_norms,
)
from vitrail.models import ViT


def blobs(images: int, side: int) -> tuple[Tensor, np.ndarray]:
    """Make tokens whose middle differs from their edge, and among itself; and say where it is."""
    inside = torch.zeros(side, side, dtype=torch.bool)
    inside[2:-2, 2:-2] = True
    tokens = 0.1 * torch.randn(images, side * side, 20)
    tokens[:, inside.flatten(), 0] += 10
    tokens[:, inside.flatten(), 1:4] += 1.0 * torch.randn(images, int(inside.sum()), 3)
    return tokens, np.broadcast_to(inside.numpy(), (images, side, side))


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("threshold", ["otsu", 0.5])
def test_foreground_is_what_differs_from_the_edges(sign: int, threshold: float) -> None:
    tokens, inside = blobs(2, 8)
    found = patch_colors(sign * tokens, (8, 8), threshold=threshold)
    np.testing.assert_array_equal(found.foreground, inside)
    assert np.isnan(found.colors[~inside]).all()
    np.testing.assert_allclose(found.colors[inside].min(0), 0)
    np.testing.assert_allclose(found.colors[inside].max(0), 1)


def test_colors_are_the_foregrounds_own_components() -> None:
    tokens, inside = blobs(3, 8)
    found = patch_colors(tokens, (8, 8)).colors[inside]
    rows = tokens.view(3, 8, 8, -1)[torch.from_numpy(inside.copy())].double()
    centerd = rows - rows.mean(0)
    _, vectors = torch.linalg.eigh(centerd.T @ centerd)
    places = (centerd @ vectors[:, -3:].flip(1)).numpy()
    for component in range(3):
        expected, color = places[:, component], found[:, component]
        correlation = np.corrcoef(expected, color)[0, 1]
        assert abs(correlation) == pytest.approx(1, abs=1e-6)


def test_a_token_has_one_color_in_whichever_image() -> None:
    tokens = torch.randn(2, 12, 8)
    tokens[1] = tokens[0].flip(0)
    found = patch_colors(tokens, (3, 4), threshold=None)
    assert found.foreground.all()
    np.testing.assert_allclose(found.colors[1], found.colors[0][::-1, ::-1], atol=1e-6)


def test_colors_show_themselves_in_a_notebook() -> None:
    tokens, inside = blobs(2, 8)
    shown = np.array(Image.open(io.BytesIO(patch_colors(tokens, (8, 8))._repr_png_())))
    assert shown.shape == (64, 8 * 17, 4)
    np.testing.assert_array_equal(shown[4::8, 4:64:8, 3] > 0, inside[0])
    assert shown[:, 64:72, 3].max() == 0  # between the images


def test_otsu_is_the_best_of_all_thresholds() -> None:
    values = torch.cat([torch.randn(30), 6 + 2 * torch.randn(20)]).double()
    ordered = values.sort().values
    inside = [
        len(low) * low.var(correction=0) + len(high) * high.var(correction=0)
        for low, high in ((ordered[:n], ordered[n:]) for n in range(1, 50))
    ]
    best = int(torch.stack(inside).argmin()) + 1
    assert otsu(values) == pytest.approx(float(ordered[best - 1] + ordered[best]) / 2)


def test_colors_of_what_is_no_grid_are_refused() -> None:
    said = refusal(patch_colors, torch.randn(1, 17, 8), (4, 4))
    assert said == "17 tokens are not a 4 x 4 grid; leave out the class token and registers"
    said = refusal(patch_colors, torch.randn(1, 16, 8), (4, 4), threshold=1.0)
    assert "only 0 patches are foreground" in said


@pytest.mark.parametrize("name", ["plain", "registers", "axial"])
def test_patch_tokens_are_the_models_own(name: str) -> None:
    model = make(name)
    assert isinstance(model, ViT)
    x = images(model)
    tokens, grid = patch_tokens(model, x)
    assert grid == model.spec.grid
    with torch.no_grad():
        expected = model.tokens(x)[:, model.spec.prefix :]
    torch.testing.assert_close(tokens, expected)
    assert patch_tokens(model, x, layer=0)[0].shape == expected.shape


def test_norms_are_of_each_token_after_each_block() -> None:
    model = make("registers")
    assert isinstance(model, ViT)
    x = images(model)
    found = token_norms(model, x)
    with torch.no_grad():
        last = model.encode(x).norm(dim=-1).numpy()
    np.testing.assert_allclose(found.norms[-1], last, rtol=1e-5)
    assert found.norms.shape == (3, 2, 19)
    assert (found.prefix, found.grid) == (3, (4, 4))


def test_outliers_are_patches_far_above_the_median() -> None:
    model = make("plain")
    found = token_norms(model, images(model))
    found.norms[:] = 1
    found.norms[-1, 1, 1 + 6] = 5
    found.norms[-1, :, 0] = 100  # the class token is none
    expected = np.zeros((2, 4, 4), bool)
    expected[1, 1, 2] = True
    np.testing.assert_array_equal(found.outliers(), expected)
    assert not found.outliers(times=6).any()
    assert not found.outliers(layer=0).any()


@pytest.mark.parametrize("name", ["plain", "registers", "pooling", "axial", "hybrid", "distilled"])
def test_lens_ends_with_the_models_own_answer(name: str) -> None:
    model = make({"distilled": f"{PLAIN},distilled=true"}.get(name, name))
    assert isinstance(model, ViT)
    x = images(model)
    found = logit_lens(model, x)
    with torch.no_grad():
        np.testing.assert_array_equal(found.logits[-1], model(x).numpy())
    assert found.logits.shape == (model.spec.depth, 2, 5)
    np.testing.assert_allclose(found.probabilities.sum(-1), 1, rtol=1e-5)


def test_lens_after_a_layer_is_the_answer_of_a_model_that_ends_there() -> None:
    model = make("plain")
    assert isinstance(model, ViT)
    x = images(model)
    found = logit_lens(model, x, ["a", "b", "c", "d", "e"])
    short = vitrail.build(MODELS["plain"].replace("depth=3", "depth=2")).eval()
    short.load_state_dict({k: v for k, v in model.state_dict().items() if "blocks.2." not in k})
    with torch.no_grad():
        np.testing.assert_array_equal(found.logits[1], short(x).numpy())
    assert found.classes == ("a", "b", "c", "d", "e")


def test_lens_of_what_has_no_common_head_is_refused() -> None:
    model = make("BiT-R50x1@32,stages=1-1,width=32")
    assert "other widths than its head" in refusal(logit_lens, model, images(model))
    model = make(f"{PLAIN},classes=0")
    assert "has no head" in refusal(logit_lens, model, images(model))


def test_results_show_themselves_in_a_notebook() -> None:
    model = make("plain")
    x = images(model)
    for result in (token_norms(model, x), logit_lens(model, x)):
        shown = result._repr_html_()
        assert shown is not None
        assert "<img" in shown
