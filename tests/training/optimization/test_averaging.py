"""Soups against plain means, and the greedy choice against a score whose answer is known."""

import pytest
import torch
from torch import Tensor

from vitrail.config import InputError
from vitrail.training.optimization.averaging import greedy_soup, uniform_soup


def test_uniform_soup_is_the_mean() -> None:
    models = [{"a": torch.randn(3, 2), "b": torch.randn(4).bfloat16()} for _ in range(5)]
    before = models[0]["a"].clone()
    soup = uniform_soup(iter(models))
    assert {name: tensor.dtype for name, tensor in soup.items()} == {
        "a": torch.float32,
        "b": torch.bfloat16,
    }
    for name, found in soup.items():
        mean = torch.stack([model[name].double() for model in models]).mean(0)
        assert torch.equal(found, mean.to(found.dtype))
    assert torch.equal(models[0]["a"], before)


def test_one_model_is_its_own_soup() -> None:
    model = {"a": torch.randn(3, dtype=torch.float64)}
    soup = uniform_soup([model])
    assert torch.equal(soup["a"], model["a"])
    assert soup["a"] is not model["a"]


def test_misfits_are_named() -> None:
    first = {"a": torch.zeros(3, 2), "b": torch.zeros(1)}
    with pytest.raises(
        InputError, match=r"model 2 of the soup: a has shape \(2, 3\), the first's \(3,"
    ):
        uniform_soup([first, first | {"a": torch.zeros(2, 3)}])
    with pytest.raises(InputError, match="model 3 of the soup lacks b"):
        uniform_soup([first, first, {"a": torch.zeros(3, 2)}])
    with pytest.raises(InputError, match="model 2 of the soup adds c"):
        greedy_soup(
            [first, first | {"c": torch.zeros(1)}], lambda tensors: float("c" not in tensors)
        )
    with pytest.raises(InputError, match="at least one model"):
        uniform_soup([])
    with pytest.raises(InputError, match="at least one model"):
        greedy_soup([], lambda tensors: 0.0)


def test_greedy_soup_keeps_what_does_not_lower_the_score() -> None:
    """The score is minus the distance to 0, so each choice can be worked out by hand."""
    tried: list[float] = []

    def score(tensors: dict[str, Tensor]) -> float:
        tried.append(tensors["x"].item())
        return -abs(tensors["x"].item())

    candidates = [{"x": torch.tensor(value)} for value in (5.0, -1.0, 2.0, -4.0)]
    # Alone: 5, -1, 2, -4. Order -1, 2, -4, 5. With 2: mean 0.5, better. With -4: mean -1, worse.
    # With 5: mean 2, worse.
    soup = greedy_soup(candidates, score)
    assert tried == [5, -1, 2, -4, 0.5, -1, 2]
    assert (soup.chosen, soup.alone, soup.score) == ([1, 2], [-5, -1, -2, -4], -0.5)
    assert soup.tensors["x"].item() == 0.5


def test_greedy_soup_takes_equals() -> None:
    candidates = [{"x": torch.tensor(1.0)}, {"x": torch.tensor(1.0)}]
    assert greedy_soup(candidates, lambda tensors: tensors["x"].item()).chosen == [0, 1]
