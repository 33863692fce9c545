"""The paper's few-shot accuracy: from frozen features to {-1, 1}^K by regularized least squares.

Section 4.1 of the paper; ridge.py solves it as big_vision does. Here shots are drawn, accuracies
counted, and l2 is chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vitrail.config import InputError
from vitrail.data.split import members
from vitrail.evaluation.features.extract import Features, check_pair
from vitrail.evaluation.probes.ridge import Ridge
from vitrail.text import quoted

L2 = 2.0**10
"""The value of the paper's code."""
SHOTS = (1, 5, 10, 25)
SEEDS = 3
_HELD_OUT = 10  # images a class that choose l2, behind those that were drawn


@dataclass(frozen=True, kw_only=True)
class FewShot:
    """Accuracies at one number of shots."""

    shots: int
    l2: tuple[float, ...]
    accuracy: np.ndarray
    """(l2, seeds), of the test images."""
    held_out: np.ndarray | None
    """(l2, seeds), of training images that were not drawn; None where a class has none left."""

    @property
    def best(self) -> int | None:
        """Say which l2 held-out images choose, the larger of equals; the only one needs none."""
        if len(self.l2) == 1:
            return 0
        if self.held_out is None:
            return None
        means = self.held_out.mean(axis=1)
        return max(range(len(self.l2)), key=lambda place: (means[place], self.l2[place]))


def permute(labels: np.ndarray, classes: int, seed: int) -> list[np.ndarray]:
    """Put each class's images in the order in which a seed draws them.

    A class's draw does not depend on which other classes there are.
    """
    return [np.random.default_rng(seed).permutation(each) for each in members(labels, classes)]


def few_shot(
    train: Features,
    test: Features,
    *,
    shots: Sequence[int] = SHOTS,
    seeds: int = SEEDS,
    l2: Sequence[float] = (L2,),
    report: Callable[[int], None] = lambda done: None,
) -> list[FewShot]:
    """Learn from so many shots a class of `train`, drawn by each seed; measure on all of `test`.

    Of several values of `l2` training images that were not drawn choose, where all classes have
    some left. `report` is told how many draws are done.
    """
    check_pair(train, test)
    _check(train, shots, seeds, l2)
    found: list[FewShot] = []
    for count in shots:
        draws = list(_draw(train, test, count, seeds, l2, len(found) * seeds, report))
        held = [chosen for _, chosen in draws if chosen is not None]
        found.append(
            FewShot(
                shots=count,
                l2=tuple(l2),
                accuracy=np.stack([accuracy for accuracy, _ in draws], axis=1),
                held_out=np.stack(held, axis=1) if held else None,
            )
        )
    return found


def _draw(
    train: Features,
    test: Features,
    shots: int,
    seeds: int,
    l2: Sequence[float],
    done: int,
    report: Callable[[int], None],
) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
    """Solve for each seed's shots: accuracies for every l2, on test and on held-out images."""
    features, labels = torch.from_numpy(train.values), torch.from_numpy(train.labels)
    for seed in range(seeds):
        orders = permute(train.labels, len(train.classes), seed)
        drawn = torch.from_numpy(np.concatenate([order[:shots] for order in orders]))
        ridge = Ridge(features[drawn], labels[drawn], len(train.classes))
        asked = torch.from_numpy(test.values), torch.from_numpy(test.labels)
        accuracy = _accuracy(ridge, *asked, l2)
        left = [order[shots : shots + _HELD_OUT] for order in orders]
        held = None
        if len(l2) > 1 and min(map(len, left)):
            rest = torch.from_numpy(np.concatenate(left))
            held = _accuracy(ridge, features[rest], labels[rest], l2)
        report(done + seed + 1)
        yield accuracy, held


def _accuracy(ridge: Ridge, features: Tensor, labels: Tensor, l2: Sequence[float]) -> np.ndarray:
    return ridge.right(features, labels, l2).double().mean(1).numpy()


def _check(train: Features, shots: Sequence[int], seeds: int, l2: Sequence[float]) -> None:
    """Refuse draws that can't be made."""
    if seeds < 1 or not shots or min(shots) < 1:
        raise InputError(f"expected shots and seeds of at least 1, got {[*shots]} and {seeds}")
    if not l2 or not all(0 < value < float("inf") for value in l2):
        raise InputError(f"expected l2 above 0, got {[*l2]}")
    counts = np.bincount(train.labels, minlength=len(train.classes))
    if counts.min() < max(shots):
        least = int(counts.argmin())
        fits = [count for count in shots if count <= counts.min()]
        hint = f"; give --shots {' '.join(map(str, fits))}" if fits else ""
        raise InputError(
            f"class {quoted([train.classes[least]])} of {train.name} has {counts[least]:,} usable "
            f"images, fewer than {max(shots)} shots{hint}"
        )
