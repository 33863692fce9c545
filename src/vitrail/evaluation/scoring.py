"""All metrics of a model's predictions, with their confidence intervals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vitrail.data.dataset import ImageDataset
from vitrail.evaluation.accuracy import TOP_K
from vitrail.evaluation.dataset_predictions import Predictions
from vitrail.evaluation.evaluation_result import ClassResult, EvaluationResult
from vitrail.evaluation.metrics.calibration import measure_calibration
from vitrail.evaluation.metrics.errors import mean_r2, score_targets
from vitrail.evaluation.metrics.intervals import clustered, positive_mean, wilson
from vitrail.evaluation.metrics.scores import (
    average_precision,
    count_confusion,
    estimate_labels,
    estimate_macro,
    f1,
    predict_labels,
)
from vitrail.evaluation.regression_result import RegressionResult


def score_predictions(
    predictions: Predictions,
    dataset: ImageDataset,
    *,
    real: Sequence[frozenset[int]] | None = None,
    thresholds: Sequence[float] | None = None,
) -> EvaluationResult:
    """Compute all metrics of predictions.

    `real` has the correct classes of each image of the dataset, `thresholds` the probability from
    which on an image has each label (0.5 unless given).
    """
    if dataset.regression:
        return _score_regression(predictions, dataset)
    if predictions.logits is not None:
        return _score_multilabel(predictions, dataset, thresholds)
    count, classes = len(predictions.indices), len(dataset.classes)
    first = predictions.correct()
    in_top = predictions.correct(TOP_K) if predictions.ranked > TOP_K else None
    known = predictions.top[predictions.top[:, 0] >= 0, 0]
    predicted = np.bincount(known, minlength=classes)
    total = np.bincount(predictions.labels, minlength=classes)
    macro = estimate_macro(
        total, np.bincount(predictions.labels[first], minlength=classes), predicted
    )
    sets = [real[index] for index in predictions.indices.tolist()] if real is not None else []
    best = predictions.top[:, 0].tolist()
    hits = [top in each for top, each in zip(best, sets, strict=False) if each]
    return EvaluationResult(
        dataset=dataset.name,
        images=count,
        skipped=len(predictions.unreadable),
        top1=wilson(int(first.sum()), count),
        top5=None if in_top is None else wilson(int(in_top.sum()), count),
        macro_accuracy=macro[0],
        macro_f1=macro[1],
        loss=positive_mean(predictions.losses),
        calibration=measure_calibration(predictions.confidence, first),
        real=wilson(sum(hits), len(hits)) if real is not None else None,
        real_images=len(hits),
        classes=_score_classes(predictions.labels, first, in_top, predicted, dataset.classes),
        confusion=count_confusion(predictions.labels, predictions.top[:, 0], len(dataset.classes)),
        names=dataset.classes,
        predictions=predictions,
    )


def _score_regression(predictions: Predictions, dataset: ImageDataset) -> RegressionResult:
    """Compute the errors of predicted numbers."""
    assert predictions.logits is not None
    names = dataset.classes
    return RegressionResult(
        dataset=dataset.name,
        images=len(predictions.indices),
        skipped=len(predictions.unreadable),
        loss=positive_mean(predictions.losses),
        classes=(),
        names=names,
        targets=score_targets(predictions.logits, predictions.labels, names),
        r2=mean_r2(predictions.logits, predictions.labels),
        predictions=predictions,
    )


def _score_classes(
    labels: np.ndarray,
    first: np.ndarray,
    in_top: np.ndarray | None,
    predicted: np.ndarray,
    names: Sequence[str],
) -> tuple[ClassResult, ...]:
    total = np.bincount(labels, minlength=len(names)).tolist()
    correct = np.bincount(labels, weights=first, minlength=len(names)).tolist()
    near = None
    if in_top is not None:
        near = np.bincount(labels, weights=in_top, minlength=len(names)).tolist()
    return tuple(
        ClassResult(
            name,
            count,
            wilson(correct[number], count),
            near and wilson(near[number], count),
            correct[number] / int(predicted[number]) if predicted[number] else None,
        )
        for number, (name, count) in enumerate(zip(names, total, strict=True))
        if count
    )


def _score_multilabel(
    predictions: Predictions,
    dataset: ImageDataset,
    thresholds: Sequence[float] | None,
) -> EvaluationResult:
    """Compute the metrics where an image may have several labels, or none."""
    logits, labels = predictions.logits, predictions.labels > 0
    assert logits is not None
    levels = np.full(labels.shape[1], 0.5) if thresholds is None else thresholds
    predicted = predict_labels(logits, thresholds)
    agreed = (predicted == labels).sum(1).astype(float)
    precision, macro, micro = estimate_labels(logits, labels, predicted)
    each, f1_each = average_precision(logits, labels), f1(predicted, labels)
    counts = labels.sum(0).tolist()
    return EvaluationResult(
        dataset=dataset.name,
        images=len(logits),
        skipped=len(predictions.unreadable),
        label_accuracy=clustered(agreed, np.full(len(labels), float(labels.shape[1]))),
        loss=positive_mean(predictions.losses),
        mean_average_precision=precision,
        macro_f1=macro,
        micro_f1=micro,
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
