"""Nearest neighbors against brute force and scikit-learn."""

from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.evaluation.probes.problems import pets, problem
from vitrail.config import InputError
from vitrail.evaluation.features.neighbors import nearest
from vitrail.evaluation.probes.holdout import hold_out_features
from vitrail.evaluation.probes.knn import KNN, classify_by_neighbors, vote
from vitrail.machine import ASSUMED


@pytest.mark.parametrize("halves", [False, True])
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 2**32),
    references=st.integers(1, 3000),
    queries=st.integers(1, 20),
    part=st.floats(0, 1),
    data=st.data(),
)
def test_the_nearest_are_those_of_a_full_sort(
    monkeypatch: pytest.MonkeyPatch,
    halves: bool,
    seed: int,
    references: int,
    queries: int,
    part: float,
    data: st.DataObject,
) -> None:
    """By float32 alone, and where bfloat16 is quicker to exclude most of them."""
    monkeypatch.setenv(ASSUMED, "avx512_bf16" if halves else "")
    k = data.draw(st.integers(1, min(references, 60)))
    generator = np.random.default_rng(seed)
    x, q = (generator.normal(size=(n, 16)).astype(np.float32) for n in (references, queries))
    x[: int(part * references)] += 3 * q[0]  # crowds that float32 hardly tells apart
    cosines, indices = nearest(torch.from_numpy(x), torch.from_numpy(q), k)
    unit = [each / np.linalg.norm(each, axis=1, keepdims=True) for each in (x, q)]
    every = unit[1].astype(np.float64) @ unit[0].astype(np.float64).T
    best = -np.sort(-every, axis=1)[:, :k]
    np.testing.assert_allclose(cosines, best, rtol=0, atol=1e-5)
    np.testing.assert_allclose(np.take_along_axis(every, indices.numpy(), 1), best, atol=1e-5)
    assert all(len(set(row)) == k for row in indices.tolist())


@pytest.mark.parametrize("temperature", [0.07, None])
def test_votes_are_scikit_learns(temperature: float | None) -> None:
    from sklearn.neighbors import KNeighborsClassifier

    train, test = pets("train"), pets("test")

    def weigh(distances: np.ndarray) -> Any:
        return np.exp((1 - distances) / temperature) if temperature else np.ones_like(distances)

    k = (1, 3, 10, 40)
    found = classify_by_neighbors(train, test, k=k, temperature=temperature)
    for place, count in enumerate(k):
        theirs: Any = KNeighborsClassifier(count, metric="cosine", weights=cast(Any, weigh))
        score = theirs.fit(train.values, train.labels).score(test.values, test.labels)
        # Without weights neighbors may tie, and the places of equal distances are open.
        assert found.accuracy[place] == pytest.approx(score, abs=0 if temperature else 0.006)
    assert found.accuracy[2] == pytest.approx(0.87, abs=0.02)


def test_votes_count_by_hand() -> None:
    cosines, labels = torch.tensor([[0.9, 0.5, 0.5]]), torch.tensor([[2, 1, 1]])
    assert vote(cosines, labels, 3, None).tolist() == [1]
    assert vote(cosines, labels, 3, 0.07).tolist() == [2]
    assert vote(cosines, torch.tensor([[2, 1, 0]]), 3, None).tolist() == [0]


def test_held_out_images_choose_k() -> None:
    train, test = problem(2, shots=20, classes=4, width=12, noise=3.0)
    found = classify_by_neighbors(train, test, k=(1, 5, 20))
    assert found.held_out is not None
    rest, held = (part.numpy() for part in hold_out_features(train, 0))
    x = torch.from_numpy(train.values)
    for place, k in enumerate(found.k):
        cosines, indices = nearest(x[rest], x[held], k)
        labels = torch.from_numpy(train.labels[rest])[indices]
        right = vote(cosines, labels, 4, 0.07).numpy() == train.labels[held]
        assert found.held_out[place] == right.mean()
    same = KNN(k=(20, 5), accuracy=np.zeros(2), held_out=np.ones(2))
    assert same.best == 0
    assert KNN(k=(1, 5, 20), accuracy=np.zeros(3), held_out=np.array([1, 1, 0.9])).best == 1


def test_what_can_not_be_searched_is_refused() -> None:
    train, test = problem(0, shots=5, classes=3, width=5)
    with pytest.raises(InputError, match=r"expected k of 1 to 12 \(training images\)"):
        classify_by_neighbors(train, test, k=(1, 13))
    with pytest.raises(InputError, match="expected k of 1"):
        classify_by_neighbors(train, test, k=(0,))
    with pytest.raises(InputError, match="expected a temperature above 0"):
        classify_by_neighbors(train, test, k=(1,), temperature=0.0)
    with pytest.raises(InputError, match="9 nearest of 4: expected 1 to 4"):
        nearest(torch.ones(4, 2), torch.ones(1, 2), 9)


@pytest.mark.parametrize("temperature", [1e-30, 1e-3, 0.07])
def test_votes_of_a_low_temperature_do_not_overflow(temperature: float) -> None:
    cosines = torch.tensor([[0.99, 0.9, 0.9]])  # at 1e-3 a vote counts exp(990)
    assert vote(cosines, torch.tensor([[2, 0, 1]]), 3, temperature).tolist() == [2]
