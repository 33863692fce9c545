"""Linear probes against scikit-learn, torch's own SGD, and choices made by hand."""

import warnings

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.evaluation.probes.problems import pets, problem
from vitrail.config import InputError
from vitrail.evaluation.probes.holdout import hold_out_features
from vitrail.evaluation.probes.linear_fits import Heads, fit_lbfgs, fit_sgd
from vitrail.evaluation.probes.linear_probe import probe_lbfgs, probe_sgd


def standardized(seed: int = 0) -> tuple[Tensor, Tensor]:
    train, _ = problem(seed, shots=20, classes=4, width=12, noise=2.0)
    x = train.values[:, 1:].astype(np.float64)
    return torch.from_numpy((x - x.mean(0)) / x.std(0)), torch.from_numpy(train.labels)


def test_lbfgs_finds_scikit_learns_minimum() -> None:
    from sklearn.linear_model import LogisticRegression

    x, y = standardized()
    decays = (1.0, 0.03, 0.001)
    heads = fit_lbfgs(x, y, 4, decays)
    for place, decay in enumerate(decays):
        theirs = LogisticRegression(C=1 / (len(x) * decay), tol=1e-9, max_iter=10_000).fit(x, y)
        weight = theirs.coef_.T - theirs.coef_.mean(0)[:, None]
        np.testing.assert_allclose(heads.weight[place], weight, rtol=0, atol=2e-4)
        ours = (x @ heads.weight[place] + heads.bias[place]).softmax(1)
        np.testing.assert_allclose(ours, theirs.predict_proba(x.numpy()), rtol=0, atol=1e-4)


def test_every_head_of_sgd_is_trained_as_if_alone() -> None:
    x, y = standardized()
    rates = (0.01, 0.3, 2.0)
    heads = fit_sgd(x, y, 4, rates, epochs=3, batch=32, seed=5)
    for place, rate in enumerate(rates):
        model = nn.Linear(x.shape[1], 4)
        for parameter in model.parameters():
            nn.init.zeros_(parameter)
        optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=9)
        generator = np.random.default_rng(5)
        for _ in range(3):
            for rows in torch.from_numpy(generator.permutation(80)).split(32):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x[rows].float()), y[rows]).backward()
                optimizer.step()
                schedule.step()
        torch.testing.assert_close(heads.weight[place].T, model.weight.data, rtol=0, atol=1e-5)
        torch.testing.assert_close(heads.bias[place], model.bias.data, rtol=0, atol=1e-5)


def test_a_fifth_of_each_class_is_held_out() -> None:
    train, _ = problem(0, shots=11, classes=3, width=4)
    rest, held = hold_out_features(train, seed=1)
    assert sorted([*rest.tolist(), *held.tolist()]) == list(range(33))
    assert np.bincount(train.labels[held]).tolist() == [2, 2, 2]
    pair, _ = problem(0, shots=2, classes=3, width=4)
    assert [len(part) for part in hold_out_features(pair, seed=1)] == [3, 3]
    lone, _ = problem(0, shots=1, classes=3, width=4)
    with pytest.raises(InputError, match=r"class 'c0', 'c1', 'c2' of train has fewer than 2"):
        hold_out_features(lone, seed=1)


def test_held_out_images_choose_and_the_test_images_do_not() -> None:
    train, test = problem(1, shots=20, classes=4, width=12, noise=3.0)
    found = probe_lbfgs(train, test, decays=(1e-4, 10.0, 0.1))
    assert found.settings == (10.0, 0.1, 1e-4)
    x = torch.from_numpy(train.values).double()
    mean, std = x.mean(0), x.std(0, correction=0)
    std[std == 0] = 1
    rest, held = hold_out_features(train, 0)
    x, y = (x - mean) / std, torch.from_numpy(train.labels)
    right = fit_lbfgs(x[rest], y[rest], 4, found.settings).predict(x[held]) == y[held]
    np.testing.assert_array_equal(found.held_out, right.double().mean(1))
    assert found.best == found.held_out.argmax()
    chosen = fit_lbfgs(x, y, 4, [found.settings[found.best]])
    asked = (torch.from_numpy(test.values).double() - mean) / std
    assert found.accuracy == (chosen.predict(asked)[0].numpy() == test.labels).mean()


def test_real_features_give_scikit_learns_accuracy() -> None:
    """On pets, at the decay that we choose, and with SGD about the same."""
    from sklearn.linear_model import LogisticRegression

    train, test = pets("train"), pets("test")
    found = probe_lbfgs(train, test, decays=(1.0, 0.1))
    mean, std = train.values.mean(0, dtype=np.float64), train.values.std(0, dtype=np.float64)
    x, x_test = ((each.values - mean) / std for each in (train, test))
    inverse = 1 / (len(x) * found.settings[found.best])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = LogisticRegression(C=inverse, tol=1e-6, max_iter=300).fit(x, train.labels)
    assert found.accuracy == theirs.score(x_test, test.labels)
    assert found.accuracy == pytest.approx(0.87, abs=0.02)
    trained = probe_sgd(train, test, rates=(0.001, 0.01), epochs=20)
    assert trained.accuracy == pytest.approx(found.accuracy, abs=0.05)


def test_heads_of_equal_logits_take_the_first_class() -> None:
    heads = Heads(torch.zeros(2, 3, 4), torch.zeros(2, 4))
    assert heads.predict(torch.ones(5, 3)).tolist() == [[0] * 5] * 2


def test_settings_that_can_not_be_are_refused() -> None:
    train, test = problem(0, shots=4, classes=3, width=5)
    with pytest.raises(InputError, match="expected decays above 0"):
        probe_lbfgs(train, test, decays=(0.0,))
    with pytest.raises(InputError, match="expected rates above 0"):
        probe_sgd(train, test, rates=())
    with pytest.raises(InputError, match="expected epochs and a batch of at least 1"):
        probe_sgd(train, test, epochs=0)
