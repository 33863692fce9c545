"""Feature distances by hand, and the rate of false alarms by simulation."""

import numpy as np
import pytest
import torch

from vitrail.evaluation.uncertainty.novelty import class_means, feature_distance, ood_score


def test_distances_by_hand() -> None:
    features = torch.tensor([[3.0, 0.0], [1.0, 0.0], [0.0, 2.0]])
    means = class_means(features, torch.tensor([0, 0, 1]), 3)
    assert means.tolist() == [[1, 0], [0, 1], [0, 0]]  # the third class has no image
    found = feature_distance(torch.tensor([[5.0, 0.0], [-1.0, 0.0], [1.0, 1.0]]), means)
    assert found.tolist() == pytest.approx([0, 1, 1 - 2**-0.5])


def test_the_score_counts_nearer_images() -> None:
    held_out = torch.tensor([0.1, 0.2, 0.3, 0.4])
    asked = torch.tensor([0.05, 0.25, 0.4, 9.0])
    assert ood_score(asked, held_out).tolist() == pytest.approx([0, 0.4, 0.6, 0.8])


def test_false_alarms_are_as_rare_as_said() -> None:
    rng = np.random.default_rng(0)
    alarms = [
        bool(ood_score(torch.from_numpy(draw[:1]), torch.from_numpy(draw[1:])) >= 0.95)
        for draw in rng.exponential(size=(4000, 60))
    ]
    # 60 exchangeable distances: the first is among the 3 largest with probability 3 / 60.
    assert np.mean(alarms) == pytest.approx(0.05, abs=3 * (0.05 * 0.95 / 4000) ** 0.5)
