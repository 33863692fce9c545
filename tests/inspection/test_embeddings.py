"""Embedding filters and position similarities against plain versions, for each kind there is."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import vitrail
from tests.inspection.recorded_models import PLAIN, make
from tests.shelf import refusal
from vitrail.inspection.embeddings import (
    embedding_filters,
    position_similarity,
    principal_components,
)
from vitrail.models import ViT, resize_positions
from vitrail.models.positions.absolute import sincos_2d


def test_components_are_eigenvectors_of_the_covariance() -> None:
    rows = torch.randn(40, 6, dtype=torch.float64) @ torch.randn(6, 6, dtype=torch.float64) + 3
    found, variance = principal_components(rows, 4)
    centerd = rows - rows.mean(0)
    values, vectors = torch.linalg.eigh(centerd.T @ centerd)
    torch.testing.assert_close(variance, values.flip(0)[:4] / values.sum())
    torch.testing.assert_close((found @ vectors.flip(1)[:, :4]).abs(), torch.eye(4).double())
    assert (found.gather(1, found.abs().argmax(1, keepdim=True)) > 0).all()


def test_filters_are_components_of_the_patch_embedding() -> None:
    """Filters that are mixtures of two patterns have these two as their components."""
    model = vitrail.build("ViT/4@16,depth=1,width=48,heads=3,mlp=8")
    assert isinstance(model, ViT)
    patterns, _ = torch.linalg.qr(torch.randn(48, 2))
    strong, weak = torch.randn(2, 48)
    strong = strong - strong.mean()
    weak = weak - weak.mean()
    weak = weak - strong * (weak @ strong) / (strong @ strong)
    mixed = 9 * torch.outer(strong, patterns[:, 0]) + torch.outer(weak, patterns[:, 1]) + 0.7
    with torch.no_grad():
        model.embedding.weight.copy_(mixed.view(48, 3, 4, 4))
    found = embedding_filters(model, count=2)
    assert found.tiles.shape == (2, 4, 4, 3)
    for tile, pattern in zip(found.tiles, patterns.T, strict=True):
        expected = pattern.view(3, 4, 4).permute(1, 2, 0).numpy()
        expected = expected / expected.flat[np.abs(expected).argmax()]
        np.testing.assert_allclose(2 * tile - 1, expected, atol=1e-4)
    assert found.variance.sum() == pytest.approx(1)


@pytest.mark.parametrize(
    ("name", "side"),
    [
        (PLAIN.replace("width=24", "width=48"), 8),
        ("R+ViT/2@32,depth=1,width=24,heads=3,mlp=8", 7),
        ("BiT-R50x1@32,stages=1", 7),
    ],
)
def test_what_sees_pixels_is_shown_for_every_family(name: str, side: int) -> None:
    found = embedding_filters(make(name))
    assert found.tiles.shape == (28, side, side, 3)
    assert (found.tiles.min(), found.tiles.max()) >= (0, 0)
    assert found.tiles.max() <= 1
    assert (np.diff(found.variance) <= 0).all()


def test_grey_filters_are_grey_and_other_channels_are_refused() -> None:
    gray = embedding_filters(make(f"{PLAIN},channels=1"), count=3).tiles
    assert (gray == gray[..., :1]).all()
    assert "takes 5 channels" in refusal(embedding_filters, make(f"{PLAIN},channels=5"))
    said = refusal(embedding_filters, make(PLAIN), count=24)
    assert said == "its 24 filters have 1 to 23 components, not 24"


def cosines(table: torch.Tensor) -> np.ndarray:
    rows = table.double().numpy()
    norms = np.linalg.norm(rows, axis=1)
    return rows @ rows.T / np.outer(norms, norms)


@pytest.mark.parametrize("more", ["", ",registers=2", ",pool=gap", ",class_position=false"])
def test_learned_positions_before_and_after_resizing(more: str) -> None:
    model: Any = make(PLAIN + more)
    spec, table = model.spec, model.positions[0].table.detach()
    found = position_similarity(model).tiles
    expected = cosines(table[spec.positioned :]).reshape(4, 4, 4, 4)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    larger = position_similarity(model, grid=(6, 5))
    resized = resize_positions(table, (4, 4), (6, 5), prefix=spec.positioned)
    expected = cosines(resized[spec.positioned :]).reshape(6, 5, 6, 5)
    np.testing.assert_allclose(larger.tiles, expected, atol=1e-6)
    assert larger.name == "learned-1d, 6 x 5"


def test_two_dimensional_and_fixed_positions() -> None:
    model: Any = make(f"{PLAIN.replace('8@32', '8@16x32')},position=learned-2d")
    found = position_similarity(model).tiles
    x, y = model.positions[0].x.detach(), model.positions[0].y.detach()
    table = torch.stack([torch.cat([x[c], y[r]]) for r in range(2) for c in range(4)])
    np.testing.assert_allclose(found.reshape(8, 8), cosines(table), atol=1e-6)
    fixed = position_similarity(make(f"{PLAIN},position=sincos-2d"), grid=(3, 5)).tiles
    table = sincos_2d((3, 5), 24, torch.empty(1))
    np.testing.assert_allclose(fixed.reshape(15, 15), cosines(table), atol=1e-6)


def test_relative_positions_compare_offsets_with_none() -> None:
    model: Any = make(f"{PLAIN},position=relative,position_at=every-layer")
    found = position_similarity(model, layer=-1).tiles.reshape(16, 16)
    table = model.positions[2].table.detach().double()  # offsets -16 to 16
    for q, k in [(0, 0), (3, 9), (15, 0), (0, 15)]:
        row = table[q - k + 16]
        cosine = float(row @ table[16] / math.sqrt(float(row @ row) * float(table[16] @ table[16])))
        assert found[q, k] == pytest.approx(cosine, abs=1e-6)


def test_half_precision_positions_are_compared_exactly() -> None:
    model: Any = make("plain").bfloat16()
    table = model.positions[0].table.detach()[1:]
    found = position_similarity(model).tiles.reshape(16, 16)
    np.testing.assert_allclose(found, cosines(table), atol=1e-6)


@pytest.mark.parametrize(
    ("name", "layer", "said"),
    [
        (f"{PLAIN},position=none", 0, "has no position embeddings"),
        ("BiT-R50x1@32,stages=1", 0, "has no position embeddings"),
        (PLAIN, 1, "has position embeddings 0 alone, not 1"),
        (f"{PLAIN},position_at=every-layer", 3, "has position embeddings 0 to 2, not 3"),
    ],
)
def test_what_has_no_positions_is_refused(name: str, layer: int, said: str) -> None:
    assert said in refusal(position_similarity, make(name), layer=layer)


def test_results_show_themselves_in_a_notebook() -> None:
    model = make("plain")
    nn.init.normal_(model.get_parameter("embedding.weight"))
    for result in (embedding_filters(model, 4), position_similarity(model)):
        shown = result._repr_html_()
        assert shown is not None
        assert "<img" in shown
