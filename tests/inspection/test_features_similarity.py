"""CKA against its definition, and what it must not depend on."""

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.inspection.recorded_models import PLAIN, make
from tests.shelf import refusal
from vitrail.inspection import record
from vitrail.inspection.similarity import compare_layers, covariances


def unbiased(x: Tensor, y: Tensor) -> float:
    """Estimate HSIC by its definition: means over all tuples of different images."""
    k, m = (part.double() @ part.double().T for part in (x, y))
    n = len(k)
    pairs = triples = quads = 0.0
    for i in range(n):
        for j in range(n):
            for q in range(n):
                for r in range(n):
                    if len({i, j, q, r}) == 4:
                        quads += float(k[i, j] * m[q, r])
                if len({i, j, q}) == 3:
                    triples += float(k[i, j] * m[i, q])
            if i != j:
                pairs += float(k[i, j] * m[i, j])
    two, three = n * (n - 1), n * (n - 1) * (n - 2)
    return pairs / two + quads / (three * (n - 3)) - 2 * triples / three


def test_covariance_is_the_mean_over_different_images() -> None:
    x, y = torch.randn(6, 3) + 1, torch.randn(6, 4) - 2
    grams = [(part.double() @ part.double().T)[None] for part in (x, y)]
    assert float(covariances(grams[0], grams[1])) == pytest.approx(unbiased(x, y), rel=1e-9)
    cka = unbiased(x, y) / (unbiased(x, x) * unbiased(y, y)) ** 0.5
    assert linear_cka(x, y) == pytest.approx(cka, rel=1e-9)


def test_cka_is_one_for_what_is_turned_scaled_and_moved() -> None:
    x = torch.randn(30, 8).double()
    turn, _ = torch.linalg.qr(torch.randn(8, 8).double())
    assert linear_cka(x, 5 * x @ turn + 3) == pytest.approx(1, abs=1e-9)
    other = torch.stack([linear_cka_of(seed) for seed in range(40)])
    assert abs(float(other.mean())) < 0.05  # unbiased: near 0 for what has nothing in common


def linear_cka(x: Tensor, y: Tensor) -> float:
    """Give the unbiased linear CKA of two sets of features (images, size) of one batch."""
    first, second = ((part.double() @ part.double().T)[None] for part in (x, y))
    both = covariances(first, second)
    return float(both / (covariances(first, first) * covariances(second, second)).sqrt())


def linear_cka_of(seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    x, y = (torch.randn(16, 64, generator=generator) for _ in range(2))
    return torch.tensor(linear_cka(x, y))


def test_layers_of_two_models_are_compared_batch_by_batch() -> None:
    first = make("plain")
    second = make(PLAIN.replace("depth=3", "depth=2").replace("8@32", "16@48"))
    batches = [(torch.randn(5, 3, 32, 32), torch.randn(5, 3, 48, 48)) for _ in range(2)]
    found = compare_layers(first, second, batches)
    sums = np.zeros((3, 2, 3))  # both, the first's own, the second's own
    for batch in batches:
        features = []
        for model, x in zip((first, second), batch, strict=True):
            with torch.no_grad(), record(model, tokens="all") as tape:
                model(x)
            features.append([tokens.flatten(1) for tokens in tape.tokens.values()])
        for i, x in enumerate(features[0]):
            for j, y in enumerate(features[1]):
                sums[i, j] += unbiased(x, y), unbiased(x, x), unbiased(y, y)
    expected = sums[..., 0] / np.sqrt(sums[..., 1] * sums[..., 2])
    np.testing.assert_allclose(found.cka, expected, rtol=1e-3, atol=1e-4)
    assert found.names == (first.spec.name, second.spec.name)


def test_a_model_is_like_itself_and_stages_of_any_width_compare() -> None:
    model, other = make("plain"), make("BiT-R50x1@32,stages=1-1,width=32")
    x = torch.randn(6, 3, 32, 32)
    own = compare_layers(model, model, [x]).cka
    np.testing.assert_allclose(np.diag(own), 1, rtol=1e-5)
    np.testing.assert_allclose(own, own.T, rtol=1e-5)
    assert compare_layers(model, other, [x]).cka.shape == (3, 2)


def test_too_few_or_different_images_are_refused() -> None:
    model = make("plain")
    said = refusal(compare_layers, model, model, [torch.randn(3, 3, 32, 32)])
    assert "at least four images" in said
    pair = (torch.randn(4, 3, 32, 32), torch.randn(5, 3, 32, 32))
    assert "4 images for the first, 5 for the second" in refusal(
        compare_layers, model, model, [pair]
    )
    assert "four images, not 3" in refusal(linear_cka, torch.randn(3, 2), torch.randn(3, 2))


def test_the_result_shows_itself_in_a_notebook() -> None:
    model = make("plain")
    shown = compare_layers(model, model, [torch.randn(4, 3, 32, 32)])._repr_html_()
    assert shown is not None
    assert "<img" in shown
