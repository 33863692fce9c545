"""Planted label errors, found by `vitrail clean`'s rule and by cleanlab on the same features.

    python benchmarks/label_noise.py DATA --model WEIGHTS --flip 0.1 --draws 3

The labels of a tenth of the images are replaced by another class. The first rows judge by the same
cross-validated probabilities; the last one lets scikit-learn's logistic regression give its own.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

import numpy as np

from vitrail import open_data
from vitrail.data.dataset import ImageDataset
from vitrail.evaluation.cleaning.label_errors import (
    cross_validate_probabilities,
    find_label_errors,
)
from vitrail.evaluation.features.compute import features_of
from vitrail.weights.load import load

FILTERS = ("low_self_confidence", "prune_by_noise_rate", "confident_learning")
"""Of cleanlab; its default is the second."""


def find_flagged(features: np.ndarray, labels: np.ndarray, seed: int) -> Mapping[str, np.ndarray]:
    """Give the images that each side thinks are labelled wrong."""
    cleanlab: Any = __import__("cleanlab.filter").filter
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold, cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    classes = int(labels.max()) + 1
    blocks = cross_validate_probabilities(features, labels, classes, seed=seed)
    probabilities = np.zeros((len(labels), classes), np.float32)
    for rows, each in blocks():
        probabilities[rows] = each
    found = {"vitrail clean": find_label_errors(blocks, labels, classes).rows}
    for rule in FILTERS:
        found[f"cleanlab, {rule}"] = np.flatnonzero(
            cleanlab.find_label_issues(labels, probabilities, filter_by=rule)
        )
    theirs = cross_val_predict(
        make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)),
        features,
        labels,
        cv=StratifiedKFold(5, shuffle=True, random_state=seed),
        method="predict_proba",
    )
    found["cleanlab, scikit-learn"] = np.flatnonzero(cleanlab.find_label_issues(labels, theirs))
    return found


def main() -> None:
    """Plant errors, look for them, and show how many were found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data")
    parser.add_argument("--model", required=True)
    parser.add_argument("--split", default="all")
    parser.add_argument("--flip", type=float, default=0.1)
    parser.add_argument("--draws", type=int, default=3)
    args = parser.parse_args()
    dataset = open_data(args.data, split=args.split)
    assert isinstance(dataset, ImageDataset)
    (found,) = features_of(load(args.model), [dataset])
    features, true = np.asarray(found.values), np.asarray(found.labels)
    rows: dict[str, list[tuple[int, float, float]]] = {}
    classes, count = int(true.max()) + 1, round(args.flip * len(true))
    for seed in range(args.draws):
        draw = np.random.default_rng(seed)
        wrong = draw.choice(len(true), count, replace=False)
        labels = true.copy()
        labels[wrong] = (true[wrong] + draw.integers(1, classes, count)) % classes
        for side, flagged in find_flagged(features, labels, seed).items():
            right = len(np.intersect1d(flagged, wrong))
            score = (len(flagged), right / max(1, len(flagged)), right / count)
            rows.setdefault(side, []).append(score)
    print(f"{len(true)} images, {count} wrong, mean of {args.draws} draws")
    print("| | flagged | precision | recall |\n|---|--:|--:|--:|")
    for side, scores in rows.items():
        flagged, precision, recall = np.mean(scores, axis=0)
        print(f"| {side} | {flagged:.0f} | {precision:.2f} | {recall:.2f} |")


if __name__ == "__main__":
    main()
