"""The temperature against its closed form and scipy's minimum."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from vitrail.evaluation.metrics.calibration import measure_calibration
from vitrail.evaluation.uncertainty.fit_uncertainty import CHANCE, UNHELPFUL, fit_uncertainty
from vitrail.evaluation.uncertainty.temperature import fit_temperature


def test_two_classes_have_a_closed_form() -> None:
    """Three of four correct at one margin m: the best probability is 3/4, so T = m / log 3."""
    logits = torch.tensor([[2.5, 0.0]] * 4)
    labels = torch.tensor([0, 0, 0, 1])
    assert fit_temperature(logits, labels) == pytest.approx(2.5 / math.log(3), rel=1e-9)


def test_the_loss_has_its_minimum_there() -> None:
    from scipy.optimize import minimize_scalar

    rng = np.random.default_rng(0)
    labels = torch.from_numpy(rng.integers(5, size=300))
    logits = torch.from_numpy(rng.normal(size=(300, 5)) * 3)
    logits[torch.arange(300), labels] += 2

    def loss(log_t: float) -> float:
        scaled = logits / math.exp(log_t)
        return torch.nn.functional.cross_entropy(scaled, labels).item()

    found: Any = minimize_scalar(loss, bounds=(-5, 5), method="bounded", options={"xatol": 1e-9})
    assert math.log(fit_temperature(logits, labels)) == pytest.approx(found.x, abs=1e-6)


def test_scaled_logits_scale_the_temperature() -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(50, 4, generator=generator) * 2
    labels = (logits + torch.randn(50, 4, generator=generator)).argmax(1)
    once = fit_temperature(logits, labels)
    assert fit_temperature(7 * logits, labels) == pytest.approx(7 * once, rel=1e-6)


def test_three_correct_predictions_do_not_make_a_model_certain() -> None:
    """Each is another with 1/5 x 2/3, so the best probability is 13/15, and T = 1 / log 13."""
    fitted = fit_temperature(torch.eye(3), torch.arange(3))
    assert fitted == pytest.approx(1 / math.log(13), rel=1e-9)


def test_a_temperature_that_does_not_help_other_images_is_not_kept() -> None:
    """Six images that say nothing: fitted to five, it makes the sixth worse."""
    logits = torch.randn(6, 3, generator=torch.Generator().manual_seed(0)) / 50
    labels = torch.tensor([0, 0, 1, 1, 2, 2])
    assert abs(math.log(fit_temperature(logits, labels))) > 1
    facts = fit_uncertainty(logits, labels, data="photos").facts
    assert facts.temperature == 1
    assert facts.ece_after == facts.ece_before


def test_a_temperature_that_helps_is_kept() -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(200, 4, generator=generator) * 2
    labels = (logits + torch.randn(200, 4, generator=generator)).argmax(1)
    facts = fit_uncertainty(9 * logits, labels, data="photos").facts
    assert facts.temperature == fit_temperature(9 * logits, labels)
    assert facts.ece_after < facts.ece_before


def test_a_temperature_that_makes_the_error_worse_is_not_kept() -> None:
    """A few mistakes with great confidence weigh much in the cross-entropy, little in the error."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(600) % 3
    logits = torch.nn.functional.one_hot(labels, 3) * 5.0
    logits += torch.randn(600, 3, generator=generator) / 10
    wrong = torch.arange(600) % 60 == 7
    logits[wrong] = logits[wrong].roll(1, 1) * 6
    facts = fit_uncertainty(logits, labels, data="photos").facts
    scaled = (logits.double() / fit_temperature(logits, labels)).softmax(1)
    error = measure_calibration(
        scaled.amax(1).numpy(), (scaled.argmax(1) == labels).numpy()
    ).ece.value
    assert error > facts.ece_before + 0.02
    assert (facts.temperature, facts.ece_after, facts.why) == (1, facts.ece_before, UNHELPFUL)


def test_a_model_no_better_than_chance_has_no_temperature() -> None:
    """Confident at random: the flattest answer would be the best, and 1,000 is none."""
    logits = torch.randn(300, 4, generator=torch.Generator().manual_seed(3)) * 5
    labels = logits.argsort(1)[:, 1]  # never a likely one
    assert fit_temperature(logits, labels) > 990
    facts = fit_uncertainty(logits, labels, data="photos").facts
    assert (facts.temperature, facts.why) == (1, CHANCE)
    assert facts.ece_after == facts.ece_before > 0.3
