"""All metrics of a model's predictions, with their confidence intervals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from vitrail.data.dataset import ImageDataset
from vitrail.evaluation.dataset_predictions import TOP_K, Predictions
from vitrail.evaluation.evaluation_result import ClassResult, EvaluationResult
from vitrail.evaluation.metrics.calibration import measure_calibration
from vitrail.evaluation.metrics.errors import score_targets
from vitrail.evaluation.metrics.intervals import Estimate, bootstrap, mean, wilson
from vitrail.evaluation.metrics.scores import (
    MacroScores,
    average_precision,
    count_confusion,
    f1,
    macro_scores,
    mean_of_known,
    micro_f1,
    predict_labels,
    rank_images,
)
from vitrail.evaluation.regression_result import RegressionResult

_FEWER = 200
"""Resamples of the mean average precision and F1, each of which goes over all scores."""


def score_predictions(
    predictions: Predictions,
    dataset: ImageDataset,
    *,
    real: Sequence[frozenset[int]] | None = None,
    thresholds: Sequence[float] | None = None,
    resamples: int = 1000,
) -> EvaluationResult:
    """Compute all metrics of predictions.

    `real` has the correct classes of each image of the dataset, `thresholds` the probability from
    which on an image has each label (0.5 unless given).
    """
    if dataset.regression:
        return _score_regression(predictions, dataset, resamples)
    if predictions.logits is not None:
        return _score_multilabel(predictions, dataset, thresholds, resamples)
    count = len(predictions.indices)
    first, in_top = predictions.correct(), predictions.correct(TOP_K)
    known = predictions.top[predictions.top[:, 0] >= 0, 0]
    predicted = np.bincount(known, minlength=len(dataset.classes))
    sets = [real[index] for index in predictions.indices.tolist()] if real is not None else []
    best = predictions.top[:, 0].tolist()

    def macro(part: Literal["accuracy", "f1"]) -> Estimate:
        return bootstrap(
            lambda weights: getattr(_macro(predictions, weights, len(dataset.classes)), part),
            count,
            resamples=min(_FEWER, resamples),
        )

    hits = [top in each for top, each in zip(best, sets, strict=False) if each]
    return EvaluationResult(
        dataset=dataset.name,
        images=count,
        skipped=len(predictions.unreadable),
        top1=wilson(int(first.sum()), count),
        top5=wilson(int(in_top.sum()), count),
        macro_accuracy=macro("accuracy"),
        macro_f1=macro("f1"),
        loss=mean(predictions.losses, resamples=resamples),
        calibration=measure_calibration(predictions.confidence, first, resamples=resamples),
        real=wilson(sum(hits), len(hits)) if real is not None else None,
        real_images=len(hits),
        classes=_score_classes(predictions.labels, first, in_top, predicted, dataset.classes),
        confusion=count_confusion(predictions.labels, predictions.top[:, 0], len(dataset.classes)),
        names=dataset.classes,
        predictions=predictions,
    )


def _score_regression(
    predictions: Predictions, dataset: ImageDataset, resamples: int
) -> RegressionResult:
    """Compute the errors of predicted numbers."""
    assert predictions.logits is not None
    names = dataset.classes
    return RegressionResult(
        dataset=dataset.name,
        images=len(predictions.indices),
        skipped=len(predictions.unreadable),
        loss=mean(predictions.losses, resamples=resamples),
        classes=(),
        names=names,
        targets=score_targets(predictions.logits, predictions.labels, names, resamples=resamples),
        predictions=predictions,
    )


def _macro(predictions: Predictions, weights: np.ndarray, classes: int) -> MacroScores:
    """Average over classes, with each image as often as its weight says."""
    best, correct = predictions.top[:, 0], predictions.correct()
    known = best >= 0  # others are the model's classes that the data does not have
    return macro_scores(
        np.bincount(predictions.labels, weights, classes),
        np.bincount(predictions.labels, weights * correct, classes),
        np.bincount(best[known], weights[known], classes),
    )


def _score_classes(
    labels: np.ndarray,
    first: np.ndarray,
    in_top: np.ndarray,
    predicted: np.ndarray,
    names: Sequence[str],
) -> tuple[ClassResult, ...]:
    total = np.bincount(labels, minlength=len(names)).tolist()
    correct = np.bincount(labels, weights=first, minlength=len(names)).tolist()
    near = np.bincount(labels, weights=in_top, minlength=len(names)).tolist()
    return tuple(
        ClassResult(
            name,
            count,
            wilson(correct[number], count),
            wilson(near[number], count),
            correct[number] / int(predicted[number]) if predicted[number] else None,
        )
        for number, (name, count) in enumerate(zip(names, total, strict=True))
        if count
    )


def _score_multilabel(
    predictions: Predictions,
    dataset: ImageDataset,
    thresholds: Sequence[float] | None,
    resamples: int,
) -> EvaluationResult:
    """Compute the metrics where an image may have several labels, or none."""
    logits, labels = predictions.logits, predictions.labels > 0
    assert logits is not None
    levels = np.full(labels.shape[1], 0.5) if thresholds is None else thresholds
    predicted = predict_labels(logits, thresholds)
    share = mean((predicted == labels).mean(1), resamples=resamples)
    order = rank_images(logits)

    def estimate(statistic: Callable[[np.ndarray], float]) -> Estimate:
        return bootstrap(statistic, len(logits), resamples=min(_FEWER, resamples))

    def mean_precision(weights: np.ndarray) -> float:
        return mean_of_known(average_precision(logits, labels, weights, order=order))

    each = average_precision(logits, labels, order=order)
    counts, f1_each = labels.sum(0).tolist(), f1(predicted, labels, np.ones(len(labels)))
    return EvaluationResult(
        dataset=dataset.name,
        images=len(logits),
        skipped=len(predictions.unreadable),
        label_accuracy=share,
        loss=mean(predictions.losses, resamples=resamples),
        mean_average_precision=estimate(mean_precision),
        macro_f1=estimate(lambda weights: mean_of_known(f1(predicted, labels, weights))),
        micro_f1=estimate(lambda weights: micro_f1(predicted, labels, weights)),
        classes=tuple(
            ClassResult(
                name,
                count,
                average_precision=None if np.isnan(ap) else float(ap),
                f1=None if np.isnan(score) else float(score),
                threshold=float(level),
            )
            for name, count, ap, score, level in zip(
                dataset.classes, counts, each, f1_each, levels, strict=True
            )
        ),
        names=dataset.classes,
        predictions=predictions,
    )
