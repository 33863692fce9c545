"""The paper's few-shot accuracy: from frozen features to {-1, 1}^K by regularized least squares.

Section 4.1 of the paper; ridge.py solves it as big_vision does. Here shots are sampled, accuracies
computed, and l2 is chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch
from torch import Tensor

from vitrail.config import InputError
from vitrail.console import show_progress
from vitrail.data.dataset import ImageDataset
from vitrail.data.datasets.open import Data
from vitrail.data.split import sample_order
from vitrail.evaluation.features.compute import FeatureOptions, FeaturePair, features_of_pair
from vitrail.evaluation.features.image_features import Features, check_pair
from vitrail.evaluation.probes.probe_model import (
    LinearHead,
    calibrate_head,
    check_probe_out,
    write_probe,
)
from vitrail.evaluation.probes.probe_result import EvaluatedFeatures, evaluated_features
from vitrail.evaluation.probes.ridge import Ridge
from vitrail.result import ResultTable
from vitrail.text import quoted
from vitrail.weights.load import as_loaded
from vitrail.weights.loaded import AnyModel, LoadedModel

L2 = 2.0**10
"""The value of the paper's code."""
SHOTS = (1, 5, 10, 25)
SEEDS = 3
_HELD_OUT = 10  # images per class that choose l2, after those that were sampled


@dataclass(frozen=True, kw_only=True)
class Shots:
    """Accuracies at one number of shots."""

    shots: int
    l2: tuple[float, ...]
    accuracy: np.ndarray
    """(l2, seeds), on the test images."""
    held_out: np.ndarray | None
    """(l2, seeds), on training images that were not sampled; None if a class has none left."""

    @property
    def stds(self) -> list[float | None]:
        """The sample std (over n - 1) of the test accuracies, by l2; None of a single seed."""
        if self.accuracy.shape[1] < 2:
            return [None] * len(self.l2)
        return self.accuracy.std(axis=1, ddof=1).tolist()

    @property
    def best(self) -> int | None:
        """The l2 that is best on held-out images, the larger of equals; a single one needs none."""
        if len(self.l2) == 1:
            return 0
        if self.held_out is None:
            return None
        means = self.held_out.mean(axis=1)
        return max(range(len(self.l2)), key=lambda place: (means[place], self.l2[place]))


@dataclass(frozen=True, kw_only=True)
class FewShotResult(EvaluatedFeatures):
    """Few-shot accuracy of a model's features, by the number of shots."""

    seeds: int
    """Samples of the shots."""
    shots: tuple[Shots, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain data: mean and std over seeds of the chosen l2, and of each."""
        rows: dict[str, Any] = {}
        for each in self.shots:
            means, stds, best = each.accuracy.mean(1), each.stds, each.best
            rows[str(each.shots)] = {
                "mean": None if best is None else float(means[best]),
                "std": None if best is None else stds[best],
                "l2": None if best is None else each.l2[best],
                "each": [
                    {"l2": l2, "mean": float(mean), "std": std, "seeds": seeds.tolist()}
                    for l2, mean, std, seeds in zip(
                        each.l2, means, stds, each.accuracy, strict=True
                    )
                ],
            }
        return {**self.head(), "seeds": self.seeds, "shots": rows, **self.written()}

    def summary(self) -> Iterator[ResultTable | str]:
        """Give one row per number of shots and l2, then the datasets."""
        rows = []
        for each in self.shots:
            columns = zip(each.l2, each.accuracy, each.stds, strict=True)
            for place, (l2, seeds, std) in enumerate(columns):
                chosen = "chosen" if len(each.l2) > 1 and place == each.best else ""
                spread = "" if std is None else f"{std:.2%}"
                figures = f"{l2:g}", f"{seeds.mean():.2%}", spread, chosen
                rows.append((f"{each.shots}", *figures))
        yield ResultTable(("shots", "l2", "accuracy", "std", ""), rows)
        yield from self.datasets(f"{self.seeds} samples of the shots")
        if any(each.best is None for each in self.shots):
            yield "no l2 is chosen where all training images of a class were sampled"
        yield from self.next_commands()


def fewshot(
    model: AnyModel,
    data: Data,
    *,
    shots: Sequence[int] | None = None,
    seeds: int = SEEDS,
    l2: Sequence[float] = (L2,),
    test: str | None = None,
    out: str | Path | None = None,
    **options: Unpack[FeatureOptions],
) -> FewShotResult:
    """Evaluate few-shot accuracy as the paper does: least squares on frozen features.

    `shots` are by default those of 1, 5, 10, 25 that the data allows. If several values of `l2` are
    given, the best is chosen on held-out images. `test` is the split to evaluate on, by default
    test, or val if there is none. With `out`, a model folder is written: the backbone, and as its
    head the classifier of the most shots, of the first sample. `options` say how features are
    computed.
    """
    check_probe_out(out, options.get("features", "pre-logits"), data)
    loaded = as_loaded(model, patches=options.get("patches"))
    pair = features_of_pair(loaded, data, test, model, **options)
    least = np.bincount(pair[0].labels, minlength=len(pair[0].classes)).min()
    # The smallest in any case, to be refused with a message.
    chosen = shots or [count for count in SHOTS if count <= least] or SHOTS[:1]
    with show_progress("samples", len(chosen) * seeds) as report:
        found = fit_shots(*pair[:2], shots=chosen, seeds=seeds, l2=l2, report=report)
    if out is not None:
        _write(loaded, pair, max(found, key=lambda each: each.shots), Path(out))
    fields = evaluated_features(model, data, pair, options)
    place = None if out is None else Path(out)
    return FewShotResult(**fields, seeds=seeds, shots=tuple(found), out=place)


def _write(loaded: LoadedModel, pair: FeaturePair, found: Shots, out: Path) -> None:
    """Write the model of a number of shots, learned from the first sample of them."""
    train = pair[0]
    if found.best is None:
        raise InputError("--out requires one --l2: no image is left to choose among several")
    l2, classes = found.l2[found.best], len(train.classes)

    def fit(x: Tensor, y: Tensor) -> LinearHead:
        return Ridge(x, y, classes).head(l2)

    orders = sample_order(train.labels, classes, 0)
    rows = torch.from_numpy(np.concatenate([order[: found.shots] for order in orders]))
    features, labels = torch.from_numpy(train.values), torch.from_numpy(train.labels)
    head, uncertainty = calibrate_head(fit(features[rows], labels[rows]), train, rows, fit, 0)
    said = f"least squares (l2 {l2:g}) of {found.shots} images per class of {train.name}"
    write_probe(loaded, head, train, out, said, uncertainty, datasets=pair.datasets)


def fit_shots(
    train: Features,
    test: Features,
    *,
    shots: Sequence[int] = SHOTS,
    seeds: int = SEEDS,
    l2: Sequence[float] = (L2,),
    report: Callable[[int], None] = lambda done: None,
) -> list[Shots]:
    """Learn from `shots` images per class of `train`, sampled by each seed; evaluate on `test`.

    If several values of `l2` are given, the best is chosen on training images that were not
    sampled, if every class has some left. `report` is told how many samples are done.
    """
    check_pair(train, test)
    check_shots(train, shots, seeds, l2)
    found: list[Shots] = []
    for count in shots:
        samples = list(_sample(train, test, count, seeds, l2, len(found) * seeds, report))
        held = [chosen for _, chosen in samples if chosen is not None]
        found.append(
            Shots(
                shots=count,
                l2=tuple(l2),
                accuracy=np.stack([accuracy for accuracy, _ in samples], axis=1),
                held_out=np.stack(held, axis=1) if held else None,
            )
        )
    return found


def _sample(
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
        orders = sample_order(train.labels, len(train.classes), seed)
        sampled = torch.from_numpy(np.concatenate([order[:shots] for order in orders]))
        ridge = Ridge(features[sampled], labels[sampled], len(train.classes))
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
    return ridge.correct(features, labels, l2).double().mean(1).numpy()


def check_shots(
    train: Features | ImageDataset,
    shots: Sequence[int],
    seeds: int = SEEDS,
    l2: Sequence[float] = (L2,),
) -> None:
    """Refuse samples that can't be taken."""
    if seeds < 1 or not shots or min(shots) < 1:
        raise InputError(f"expected shots and seeds of at least 1, got {[*shots]} and {seeds}")
    if not l2 or not all(0 < value < float("inf") for value in l2):
        raise InputError(f"expected l2 above 0, got {[*l2]}")
    if train.labels.ndim == 2:
        has = "numbers" if train.labels.dtype.kind == "f" else "several labels"
        raise InputError(f"{train.name} has {has} per image; expected one class each")
    counts = np.bincount(train.labels, minlength=len(train.classes))
    if counts.min() < max(shots):
        least = int(counts.argmin())
        fits = [count for count in shots if count <= counts.min()]
        hint = f"; give --shots {' '.join(map(str, fits))}" if fits else ""
        raise InputError(
            f"class {quoted([train.classes[least]])} of {train.name} has {counts[least]:,} usable "
            f"images, fewer than {max(shots)} shots{hint}"
        )
