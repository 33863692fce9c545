"""The mistakes of a classifier: the images themselves, and the classes that it confuses."""

from __future__ import annotations

import base64
import io

import numpy as np
from PIL import Image

from vitrail.data.batches import EvalBatches
from vitrail.data.dataset import ImageDataset, select
from vitrail.evaluation.dataset_predictions import (
    ClassMatching,
    Predictions,
    join_predictions,
    predict_dataset,
)
from vitrail.evaluation.metrics.errors import score_targets
from vitrail.evaluation.metrics.scores import (
    DRAWN,
    confusion_matrix,
    count_confusion,
    most_confused,
    predict_labels,
    sigmoid,
)
from vitrail.plotting.evaluation_plots import draw_confusion, draw_scatter
from vitrail.report.html_page import ReportSection, escape, format_image_count, table_card
from vitrail.report.report_images import ReportImage, even_indices, shrink, take_images
from vitrail.report.report_inputs import BATCH, ReportInputs

SHOWN, SIDE = 12, 200
"""Mistaken images that are shown, and the longer side of each in pixels."""
PAIRS = 10
"""Confused pairs of classes that are listed."""


def show_mistakes(inputs: ReportInputs, count: int) -> ReportSection:
    """Predict up to `count` images of a dataset that has the model's classes."""
    section, dataset = ReportSection("Mistakes", key="mistakes"), inputs.dataset
    if dataset is None or not inputs.classes:
        return section
    if dataset.regression and inputs.loaded.activation == "none":
        return _show_numbers(inputs, dataset, count)
    if dataset.regression or inputs.loaded.activation == "none":
        section.note = "One of model and data has numbers, the other classes."
        return section
    if dataset.multilabel and inputs.loaded.activation == "softmax":
        section.note = "The model gives each image one class, but images have several labels."
        return section
    if dataset.classes != inputs.classes:
        section.note = "The classes of the data are not the model's, so no prediction is a mistake."
        return section
    indices = even_indices(len(dataset), count)
    found = predict_inputs(inputs, select(dataset, indices))
    several = dataset.multilabel
    labels, predicted, confidence = (_several_labels if several else _one_class)(found, inputs)
    wrong = np.flatnonzero((predicted != labels).any(1))
    wrong = wrong[np.argsort(-confidence[wrong], kind="stable")]
    section.note = (
        f"{len(wrong):,} of {format_image_count(len(labels))} "
        f"{'have a wrong label or lack one' if several else 'are misclassified'}"
        f"{'' if len(indices) == len(dataset) else f', sampled evenly from {len(dataset):,}'}."
    )
    mistakes = [
        {
            "name": dataset.where(int(indices[found.indices[row]])),
            "label": _name_labels(labels[row], inputs.classes),
            "predicted": _name_labels(predicted[row], inputs.classes),
            "confidence": float(confidence[row]),
        }
        for row in wrong[:SHOWN]
    ]
    images = take_images(dataset, indices[found.indices[wrong[:SHOWN]]], inputs.preprocess)
    section.data |= {"images": len(labels), "mistakes": mistakes}
    if mistakes:
        cards = map(_image_card, images, mistakes)
        section.cards.append(
            '<div class="card wide">\n<h3>Mistaken images, the most confident first</h3>\n'
            f'<div class="images">\n{"".join(cards)}</div>\n</div>'
        )
    if several:
        section.cards.append(_list_labels(labels, predicted, inputs.classes))
        return section
    cells = count_confusion(found.labels, found.top[:, 0], len(inputs.classes))
    if mistakes:
        names, pairs = inputs.classes, most_confused(cells)[:PAIRS]
        section.data["confused"] = [
            (names[each.label], names[each.predicted], each.images) for each in pairs
        ]
        section.cards.append(_list_pairs(section.data["confused"]))
    if len(inputs.classes) <= DRAWN:
        counts = confusion_matrix(cells, len(inputs.classes))
        section.draw(draw_confusion(counts, inputs.classes), confusion=counts.tolist())
    return section


def _show_numbers(inputs: ReportInputs, dataset: ImageDataset, count: int) -> ReportSection:
    """Draw the numbers that a regression predicts over the true ones, with their errors."""
    section = ReportSection("Predicted numbers")
    if dataset.classes != inputs.classes:
        section.note = "The targets of the data are not the model's."
        return section
    found = predict_inputs(inputs, select(dataset, even_indices(len(dataset), count)))
    assert found.logits is not None
    scored = score_targets(found.logits, found.labels, dataset.classes)
    rows = {
        each.name: f"mean absolute error {each.mae.value:.4g} ({each.mae.low:.4g} to "
        f"{each.mae.high:.4g}), R2 {each.r2.value:.3f} ({each.r2.low:.3f} to {each.r2.high:.3f})"
        for each in scored
    }
    title = f"Errors on {format_image_count(len(found.labels))}, with 95 % intervals"
    section.cards.append(table_card(title, rows))
    drawn = draw_scatter(found.labels, found.logits, dataset.classes)
    section.draw(drawn, true=found.labels.tolist(), predicted=found.logits.tolist())
    return section


_Marked = tuple[np.ndarray, np.ndarray, np.ndarray]
"""True and predicted labels (images, classes), and how sure each image's prediction is."""


def _one_class(found: Predictions, inputs: ReportInputs) -> _Marked:
    every = np.arange(len(inputs.classes))
    return found.labels[:, None] == every, found.top[:, :1] == every, found.confidence


def _several_labels(found: Predictions, inputs: ReportInputs) -> _Marked:
    """Mark labels by the model's thresholds; it is as sure as of its surest wrong answer."""
    assert found.logits is not None
    labels, chances = found.labels > 0, sigmoid(found.logits)
    predicted = predict_labels(found.logits, inputs.loaded.thresholds)
    sure = np.where(predicted, chances, 1 - chances)
    return labels, predicted, np.where(predicted != labels, sure, 0).max(1)


def _name_labels(marked: np.ndarray, classes: tuple[str, ...]) -> str:
    return ", ".join(classes[number] for number in np.flatnonzero(marked)) or "none"


def predict_inputs(inputs: ReportInputs, dataset: ImageDataset) -> Predictions:
    """Predict the classes of a dataset's images."""
    batches = EvalBatches(dataset, inputs.preprocess, batch=BATCH)
    matching = ClassMatching(np.arange(len(inputs.classes)))
    found = predict_dataset(
        inputs.model,
        batches,
        matching,
        device=next(inputs.model.parameters()).device,
        activation=inputs.loaded.activation,
        temperature=inputs.loaded.temperature,
    )
    return join_predictions(found)


def _image_card(image: ReportImage, mistake: dict[str, str]) -> str:
    file = io.BytesIO()
    larger = max(1, SIDE // max(image.pixels.shape))  # of images as small as digits
    pixels = shrink(image.pixels, SIDE).repeat(larger, 0).repeat(larger, 1)
    Image.fromarray(pixels).save(file, "JPEG", quality=85)
    data = base64.b64encode(file.getvalue()).decode()
    label, predicted = (escape(mistake[key]) for key in ("label", "predicted"))
    confidence = f"{mistake['confidence']:.1%}"
    alt = f"{escape(image.short_name)}: {label}, predicted {predicted} with {confidence}"
    return (
        f'<figure><img src="data:image/jpeg;base64,{data}" alt="{alt}">\n<figcaption>'
        f"<p><b>{_breakable(predicted)}</b> {confidence}</p><p>true: {_breakable(label)}</p>"
        "</figcaption></figure>\n"
    )


def _breakable(text: str) -> str:
    """Let a long name break after its underscores."""
    return text.replace("_", "_<wbr>")


def _list_labels(labels: np.ndarray, predicted: np.ndarray, classes: tuple[str, ...]) -> str:
    """List the labels that are wrong most often."""
    missed, extra = (labels & ~predicted).sum(0), (predicted & ~labels).sum(0)
    order = np.argsort(-(missed + extra), kind="stable")
    rows = {
        classes[number]: f"{missed[number]:,} missed, {extra[number]:,} too many, "
        f"of {format_image_count(int(labels[:, number].sum()))}"
        for number in order[:PAIRS]
    }
    return table_card("Labels by mistakes", rows)


def _list_pairs(pairs: list[tuple[str, str, int]]) -> str:
    """List the pairs of classes that are confused most often."""
    rows = {f"{true} → {predicted}": format_image_count(count) for true, predicted, count in pairs}
    return table_card("Most often confused (true → predicted)", rows)
