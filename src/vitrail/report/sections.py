"""The sections of a report: what is measured of a model, drawn, and written in numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from vitrail.config import InputError, to_dict
from vitrail.evaluation.features.neighbors import nearest
from vitrail.inspection.attention import attention_masks, head_masks
from vitrail.inspection.distance import attention_distance
from vitrail.inspection.embeddings import embedding_filters, position_similarity
from vitrail.inspection.hooks import attention_layers, choose_layers
from vitrail.inspection.overlay import place_mask
from vitrail.inspection.similarity import compare_layers
from vitrail.inspection.token_features import logit_lens, patch_colors, patch_tokens, token_norms
from vitrail.models import BiT, ViT, ViTSpec
from vitrail.models.cost.total import cost_of
from vitrail.plotting import inspection_plots as plots
from vitrail.plotting.tiles import hide_missing, stretch
from vitrail.report.attention_explorer import explorer_card
from vitrail.report.html_page import (
    ReportSection,
    format_image_count,
    prediction_card,
    table_card,
)
from vitrail.report.report_images import shrink
from vitrail.report.report_inputs import BATCH, ReportInputs

FILTERS = 28  # of Figure 7
_OF_OFFSETS = ("relative-2d", "relative-mlp")
NEAR, THUMB = 5, 96
"""Nearest images that are drawn, and the longer side of each in pixels."""


def check_layers(inputs: ReportInputs, layers: Sequence[int] | None) -> list[int]:
    """Return the layers whose heads are drawn; refuse those that the model does not have."""
    count = len(attention_layers(inputs.model))
    if layers is None:
        return np.linspace(0, count - 1, min(count, 4)).round().astype(int).tolist()
    if not isinstance(inputs.model, ViT):
        raise InputError(f"{inputs.name} has no attention heads to draw; leave out --layers")
    return choose_layers(layers, count, "attention layer", inputs.name)


def show_images(
    inputs: ReportInputs, layers: Sequence[int] | None, detail: int
) -> Iterator[ReportSection]:
    """Show each image with its prediction and attention, the first `detail` more closely."""
    model, predicted, masks = inputs.model, None, None
    if not inputs.shown:
        return
    if model.spec.classes:
        predicted = inputs.probabilities(inputs.run(model, inputs.shown))  # or numbers
    if isinstance(model, ViT):
        batches = inputs.batches(inputs.shown)
        masks = np.concatenate([attention_masks(model, batch).values for batch in batches])
    for number, image in enumerate(inputs.shown):
        section = ReportSection(image.name, data={"name": image.name}, group="Images")
        if predicted is not None:
            _show_prediction(section, inputs, number, predicted[number])
        if masks is None:
            plot = plots.draw_images([image.pixels], [image.short_name])
            section.draw(plot, f"image-{number}")
        else:
            height, width = image.pixels.shape[:2]
            mask = place_mask(stretch(masks[number]), height, width, inputs.preprocess)
            plot = plots.draw_overlays([image.pixels], [mask], [image.short_name])
            plot.how = "" if number else plot.how  # said once
            section.draw(plot, f"overlays-{number}")
            if number < detail:
                _look_closer(section, inputs, number, layers)
        yield section


def _show_prediction(
    section: ReportSection, inputs: ReportInputs, number: int, predicted: np.ndarray
) -> None:
    """List the most likely classes, or the numbers of a regression."""
    if inputs.loaded.activation == "none":
        values = dict(zip(inputs.classes, predicted.tolist(), strict=True))
        rows = {name: f"{value:.4g}" for name, value in values.items()}
        section.cards.append(table_card("Predicted numbers", rows))
        section.data |= {"values": values}
        return
    best = np.argsort(-predicted, kind="stable")[:5].tolist()
    top = [(inputs.classes[index], float(predicted[index])) for index in best]
    true = inputs.labels_of(inputs.shown[number])
    note = "" if true is None else f"Labeled {', '.join(true) or 'with no class'}."
    rows = [(name, probability, name in (true or ())) for name, probability in top]
    section.cards.append(prediction_card("Most likely classes", rows, note))
    listed = [
        {"index": index, "label": name, "probability": probability}
        for index, (name, probability) in zip(best, top, strict=True)
    ]
    section.data |= {"top": listed, "labels": true}


def _look_closer(
    section: ReportSection, inputs: ReportInputs, number: int, layers: Sequence[int] | None
) -> None:
    """Draw attention by layer and head, and the prediction after each layer."""
    model = inputs.model
    (x,) = inputs.batches([inputs.shown[number]])
    asked, image = check_layers(inputs, layers), inputs.shown[number]
    maps = head_masks(model, x)[:, 0]
    section.cards.append(explorer_card(number, image.input, maps, image.short_name))
    section.draw(plots.draw_heads(maps[asked], asked), f"heads-{number}", layers=asked)
    if model.spec.classes and inputs.loaded.activation != "none":
        lens = inputs.probabilities(torch.from_numpy(logit_lens(model, x).logits[:, 0]))
        first = [inputs.classes[index] for index in lens.argmax(-1)]
        section.draw(plots.draw_lens(lens, inputs.classes), f"lens-{number}", by_layer=first)


def show_attention(inputs: ReportInputs, against: ReportInputs | None) -> ReportSection:
    """Show how far the heads of one model, or of two, look."""
    section = ReportSection("Attention")
    models = (inputs, against) if inputs.measured else ()
    attending = [each for each in models if each and attention_layers(each.model)]
    found = [attention_distance(each.model, each.batches(each.measured)) for each in attending]
    if not found:
        return section
    names = [each.name for each in attending]
    if len(set(names)) < len(names):
        names = [f"{name}, {which}" for name, which in zip(names, ("first", "second"), strict=True)]
    pixels = dict(zip(names, (each.pixels for each in found), strict=True))
    section.note = f"Measured on {format_image_count(len(inputs.measured))}."
    numbers = {name: each.tolist() for name, each in pixels.items()}
    section.draw(plots.draw_distances(pixels), distances=numbers, images=len(inputs.measured))
    return section


def show_embeddings(inputs: ReportInputs) -> ReportSection:
    """Show the patch embedding's filters and the position embeddings."""
    section, model = ReportSection("Embeddings"), inputs.model
    root = (
        model.root.weight
        if isinstance(model, BiT)
        else (model.embedding.weight if model.stem is None else model.stem.conv.weight)
    )
    most = min(FILTERS, len(root) - 1, root[0].numel())
    if model.spec.channels in (1, 3) and most > 0:
        filters = embedding_filters(model, most)
        section.draw(plots.draw_filters(filters.tiles), filters=filters.variance.tolist())
    offsets = isinstance(model.spec, ViTSpec) and model.spec.position in _OF_OFFSETS
    if offsets:
        section.cards.append(
            '<div class="card"><h3>Positions</h3><p>The model has biases of attention for the '
            "offset between two patches, not position embeddings to compare.</p></div>"
        )
    if isinstance(model, ViT) and len(model.positions) and not offsets:
        size, stride = inputs.preprocess.size, model.spec.stride
        grid = size[0] // stride[0], size[1] // stride[1]
        tables = [position_similarity(model)]
        if grid != model.spec.grid:
            tables.append(position_similarity(model, grid=grid))
        section.draw(plots.draw_positions({table.name: table.tiles for table in tables}))
    return section


def show_features(inputs: ReportInputs, against: ReportInputs | None) -> ReportSection:
    """Show patch tokens, nearest images and the similarity of layers."""
    section, model = ReportSection("Features"), inputs.model
    few = [*inputs.shown, *inputs.measured][:BATCH]
    if isinstance(model, ViT) and few:
        (x,) = inputs.batches(few)
        tokens, grid = patch_tokens(model, x)
        shown = max(1, min(4, len(inputs.shown)))
        colors = patch_colors(tokens[:shown], grid, threshold=None).colors
        images = [image.input[..., :3] for image in few[:shown]]
        section.draw(plots.draw_components(images, list(hide_missing(colors))))
        norms = token_norms(model, x)
        middle = np.median(norms.norms[..., norms.prefix :], (1, 2))
        section.draw(plots.draw_norms(norms.norms, norms.prefix), norms=middle.tolist())
    if inputs.dataset is not None and len(inputs.measured) > NEAR:
        _show_neighbors(section, inputs)
    if against is not None and len(inputs.measured) >= 4:
        pairs = zip(inputs.batches(inputs.measured), against.batches(against.measured), strict=True)
        found = compare_layers(model, against.model, list(pairs))
        plot = plots.draw_similarity(found.cka, (inputs.name, against.name))
        section.draw(plot, similarity=found.cka.tolist())
    return section


def _show_neighbors(section: ReportSection, inputs: ReportInputs) -> None:
    """Draw the measured images that are nearest to the first few shown, without themselves."""
    queries = inputs.shown[:4]
    measured = inputs.measured
    asked, bank = (inputs.run(inputs.model.features, each) for each in (queries, measured))
    found, order = (each.numpy() for each in nearest(bank, asked, NEAR + 1))
    indices, cosines = np.empty((len(queries), NEAR), int), np.empty((len(queries), NEAR))
    for row, query in enumerate(queries):
        names = [measured[index].name for index in order[row]]
        others = [place for place, name in enumerate(names) if name != query.name][:NEAR]
        indices[row], cosines[row] = order[row, others], found[row, others]
    images = [[shrink(measured[index].pixels, THUMB) for index in row] for row in indices]
    names = [
        [", ".join(inputs.labels_of(measured[index]) or ()) for index in row] for row in indices
    ]
    shown = [shrink(query.pixels, THUMB) for query in queries]
    section.draw(plots.draw_neighbors(shown, images, cosines, names), neighbors=indices.tolist())


def show_card(inputs: ReportInputs) -> ReportSection:
    """Show what the model is, what it costs and where its weights come from."""
    spec, provenance = inputs.model.spec, inputs.loaded.provenance
    cost = cost_of(spec, image=inputs.preprocess.size)
    section = ReportSection("Model card")
    height, width = inputs.preprocess.size
    section.cards.append(
        table_card(
            "Model",
            {
                "name": inputs.name,
                "full name": str(spec),
                "family": spec.family,
                "parameters": f"{cost.parameters:,}",
                "targets" if inputs.loaded.activation == "none" else "classes": f"{spec.classes:,}",
                "tokens": f"{cost.tokens:,} for images of {height} x {width}",
                "forward": f"{cost.macs / 1e9:.3g} GMACs per image",
                "training": f"{cost.training_flops / 1e9:.3g} GFLOPs per image",
            },
        )
    )
    rows = {key: _plain(value) for key, value in to_dict(inputs.preprocess).items()}
    section.cards.append(table_card("Preprocessing", rows))
    if provenance is not None:
        said = to_dict(provenance)
        changes = {f"change {n}": text for n, text in enumerate(said.pop("changes"), 1)}
        known = {key: text for key, text in (said | changes).items() if text}
        section.cards.append(table_card("Provenance", known))
    numbers = ("parameters", "macs", "flops", "training_flops", "tokens")
    section.data = {
        "model": str(spec),
        **{key: getattr(cost, key) for key in numbers},
        "preprocess": to_dict(inputs.preprocess),
        "provenance": None if provenance is None else to_dict(provenance),
    }
    return section


def _plain(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
