"""The parts of a report: what is measured of a model, drawn, and said in numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vitrail.config import InputError, to_dict
from vitrail.inspection.attention import attention_masks
from vitrail.inspection.distance import attention_distance
from vitrail.inspection.embeddings import embedding_filters, position_similarity
from vitrail.inspection.hooks import attention_layers, choose_layers
from vitrail.inspection.overlay import place_mask
from vitrail.inspection.similarity import compare_layers
from vitrail.inspection.token_features import (
    logit_lens,
    nearest,
    patch_colors,
    patch_tokens,
    token_norms,
)
from vitrail.models import BiT, ViT
from vitrail.models.cost.total import cost_of
from vitrail.plotting import inspection_plots as plots
from vitrail.plotting.canvas import Plot
from vitrail.plotting.tiles import hide_missing, stretch
from vitrail.report.page import Section, answer_card, table_card
from vitrail.report.subjects import ReportImage, shrink
from vitrail.report.view import FEW, ReportInputs

FILTERS = 28  # of Figure 7
NEAR, THUMB = 5, 96
"""Nearest images that are drawn, and the longer side of each in pixels."""


@dataclass
class ReportSection:
    """A section of the page as it grows: cards, figures, and the same in numbers."""

    title: str
    note: str = ""
    cards: list[Plot | str] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)

    def draw(self, plot: Plot, key: str | None = None, **data: Any) -> None:
        """Add a figure, and what it shows in numbers."""
        plot.key = key or plot.name
        self.cards.append(plot)
        self.data |= data

    @property
    def plots(self) -> list[Plot]:
        """List the figures."""
        return [card for card in self.cards if isinstance(card, Plot)]

    def section(self) -> Section:
        """Give the section."""
        return Section(self.title, self.cards, self.note)


def check_layers(view: ReportInputs, layers: Sequence[int] | None) -> list[int]:
    """Give the numbers of the layers whose heads are drawn; refuse what the model does not have."""
    count = len(attention_layers(view.model))
    if layers is None:
        return np.linspace(0, count - 1, min(count, 4)).round().astype(int).tolist()
    if not isinstance(view.model, ViT):
        raise InputError(
            f"{view.name} has no tokens that heads could be drawn of; leave out layers"
        )
    return choose_layers(layers, count, "attention layer", view.name)


def show_images(
    view: ReportInputs, layers: Sequence[int] | None, detail: int
) -> Iterator[ReportSection]:
    """Show each image: what the model answers, and what it looks at; some in detail."""
    model, answers = view.model, None
    if not view.shown:
        return
    if model.spec.classes:
        answers = view.run(model, view.shown).softmax(-1).numpy()
    masks = None
    if isinstance(model, ViT):
        batches = view.batches(view.shown)
        masks = np.concatenate([attention_masks(model, batch).values for batch in batches])
    for number, subject in enumerate(view.shown):
        part = ReportSection(subject.name, data={"name": subject.name})
        if answers is not None:
            _answer(part, view, number, answers[number])
        if masks is None:
            part.draw(plots.draw_images([subject.shown], [subject.short]), f"image-{number}")
        else:
            height, width = subject.shown.shape[:2]
            mask = place_mask(stretch(masks[number]), height, width, view.preprocess)
            plot = plots.draw_overlays([subject.shown], [mask], [subject.short])
            part.draw(plot, f"overlays-{number}")
            if number < detail:
                _look_closer(part, view, number, layers)
        yield part


def _answer(part: ReportSection, view: ReportInputs, number: int, answer: np.ndarray) -> None:
    """List the most likely classes."""
    best = np.argsort(-answer, kind="stable")[:5].tolist()
    top = [(view.classes[index], float(answer[index])) for index in best]
    true = view.label_of(view.shown[number])
    note = "" if true is None else f"It is labeled {true}."
    rows = [(name, probability, name == true) for name, probability in top]
    part.cards.append(answer_card("Most likely classes", rows, note))
    listed = [
        {"index": index, "label": name, "probability": probability}
        for index, (name, probability) in zip(best, top, strict=True)
    ]
    part.data |= {"top": listed, "label": true}


def _look_closer(
    part: ReportSection, view: ReportInputs, number: int, layers: Sequence[int] | None
) -> None:
    """Draw attention by layer and head, and the answer after each layer."""
    model = view.model
    (x,) = view.batches([view.shown[number]])
    asked = check_layers(view, layers)
    raw = [attention_masks(model, x, method="raw", by_head=True, layer=each) for each in asked]
    maps = np.stack([masks.values[0] for masks in raw])
    part.draw(plots.draw_heads(maps, asked), f"heads-{number}", layers=asked)
    if model.spec.classes:
        lens = logit_lens(model, x, view.classes).probabilities[:, 0]
        first = [view.classes[index] for index in lens.argmax(-1)]
        part.draw(plots.draw_lens(lens, view.classes), f"lens-{number}", by_layer=first)


def show_attention(view: ReportInputs, other: ReportInputs | None) -> ReportSection:
    """Show how far the heads look, of one model or of two."""
    part = ReportSection("Attention")
    both = (view, other) if view.measured else ()
    views = [each for each in both if each and attention_layers(each.model)]
    found = [attention_distance(each.model, each.batches(each.measured)) for each in views]
    if not found:
        return part
    names = [each.name for each in views]
    if len(set(names)) < len(names):  # two of one kind
        names = [f"{name}, {which}" for name, which in zip(names, ("first", "second"), strict=True)]
    pixels = dict(zip(names, (each.pixels for each in found), strict=True))
    part.note = f"Measured on {_count(view.measured)}."
    numbers = {name: each.tolist() for name, each in pixels.items()}
    part.draw(plots.draw_distances(pixels), distances=numbers, images=len(view.measured))
    return part


def show_embeddings(view: ReportInputs) -> ReportSection:
    """Show what is looked for in a patch, and what is known of places."""
    part, model = ReportSection("Embeddings"), view.model
    root = (
        model.root.weight
        if isinstance(model, BiT)
        else (model.embedding.weight if model.stem is None else model.stem.conv.weight)
    )
    most = min(FILTERS, len(root) - 1, root[0].numel())
    if model.spec.channels in (1, 3) and most > 0:
        filters = embedding_filters(model, most)
        part.draw(plots.draw_filters(filters.tiles), filters=filters.variance.tolist())
    if isinstance(model, ViT) and len(model.positions):
        size, stride = view.preprocess.size, model.spec.stride
        grid = size[0] // stride[0], size[1] // stride[1]
        tables = [position_similarity(model)]
        if grid != model.spec.grid:
            tables.append(position_similarity(model, grid=grid))
        part.draw(plots.draw_positions({table.name: table.tiles for table in tables}))
    return part


def show_features(view: ReportInputs, other: ReportInputs | None) -> ReportSection:
    """Show what the tokens hold."""
    part, model = ReportSection("Features"), view.model
    few = [*view.shown, *view.measured][:FEW]
    if isinstance(model, ViT) and few:
        (x,) = view.batches(few)
        tokens, grid = patch_tokens(model, x)
        shown = max(1, min(4, len(view.shown)))
        colors = patch_colors(tokens[:shown], grid, threshold=None).colors
        inputs = [subject.input[..., :3] for subject in few[:shown]]
        part.draw(plots.draw_components(inputs, list(hide_missing(colors))))
        norms = token_norms(model, x)
        middle = np.median(norms.norms[..., norms.prefix :], (1, 2))
        part.draw(plots.draw_norms(norms.norms, norms.prefix), norms=middle.tolist())
    if view.labels is not None and len(view.measured) > NEAR:
        _find_neighbors(part, view)
    if other is not None and len(view.measured) >= 4:
        pairs = zip(view.batches(view.measured), other.batches(other.measured), strict=True)
        found = compare_layers(model, other.model, list(pairs))
        part.draw(
            plots.draw_similarity(found.cka, (view.name, other.name)), similarity=found.cka.tolist()
        )
    return part


def _find_neighbors(part: ReportSection, view: ReportInputs) -> None:
    """Draw the measured images that are nearest to the first few shown, without themselves."""
    queries = view.shown[:4]
    asked, bank = (view.run(view.model.features, each) for each in (queries, view.measured))
    found = nearest(asked, bank, NEAR + 1)
    indices, near = np.empty((len(queries), NEAR), int), np.empty((len(queries), NEAR))
    for row, query in enumerate(queries):
        names = [view.measured[index].name for index in found.indices[row]]
        others = [place for place, name in enumerate(names) if name != query.name][:NEAR]
        indices[row], near[row] = found.indices[row, others], found.similarities[row, others]
    images = [[shrink(view.measured[index].shown, THUMB) for index in row] for row in indices]
    names = [[view.label_of(view.measured[index]) or "" for index in row] for row in indices]
    shown = [shrink(query.shown, THUMB) for query in queries]
    part.draw(plots.draw_neighbors(shown, images, near, names), neighbors=indices.tolist())


def show_mistakes(view: ReportInputs) -> ReportSection:
    """Count which classes are taken for which, where the data has the model's classes."""
    part, labels, count = ReportSection("Mistakes"), view.labels, len(view.classes)
    true = [subject.label for subject in view.measured if subject.label is not None]
    if labels is None or not count or len(true) < len(view.measured):
        return part
    if tuple(labels) != view.classes:
        part.note = "The data's classes are not the model's, so none is right or wrong."
        return part
    given = view.run(view.model, view.measured).argmax(-1).numpy()
    counts = np.bincount(np.array(true) * count + given, minlength=count**2)
    counts = counts.reshape(count, count)
    part.note = f"{np.trace(counts) / counts.sum():.1%} of {_count(view.measured)} are right."
    part.draw(plots.draw_confusion(counts, labels), confusion=counts.tolist())
    return part


def show_card(view: ReportInputs) -> ReportSection:
    """Say what the model is, what it costs and where it comes from."""
    spec, provenance = view.model.spec, view.loaded.provenance
    cost = cost_of(spec, image=view.preprocess.size)
    part = ReportSection("Model card")
    height, width = view.preprocess.size
    part.cards.append(
        table_card(
            "Model",
            {
                "name": view.name,
                "in full": str(spec),
                "family": spec.family,
                "parameters": f"{cost.parameters:,}",
                "classes": f"{spec.classes:,}",
                "tokens": f"{cost.tokens:,} of images of {height} x {width}",
                "forward": f"{cost.macs / 1e9:.3f} GMACs an image",
                "training": f"{cost.training_flops / 1e9:.3f} GFLOPs an image",
            },
        )
    )
    rows = {key: _plain(value) for key, value in to_dict(view.preprocess).items()}
    part.cards.append(table_card("Preprocessing", rows))
    if provenance is not None:
        said = to_dict(provenance)
        changes = {f"change {n}": text for n, text in enumerate(said.pop("changes"), 1)}
        part.cards.append(table_card("Provenance", {**said, **changes}))
    numbers = ("parameters", "macs", "flops", "training_flops", "tokens")
    part.data = {
        "model": str(spec),
        **{key: getattr(cost, key) for key in numbers},
        "preprocess": to_dict(view.preprocess),
        "provenance": None if provenance is None else to_dict(provenance),
    }
    return part


def _plain(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _count(subjects: Sequence[ReportImage]) -> str:
    return f"{len(subjects):,} images" if len(subjects) != 1 else "1 image"
