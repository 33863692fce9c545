"""Drawings of what inspection finds: arrays in, a figure out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.ticker import LogFormatter, MaxNLocator

from vitrail.plotting.canvas import (
    COLORS,
    MAP,
    WIDTH,
    Plot,
    add_bar,
    add_legend,
    name_ticks,
    number_ticks,
    panes,
    shorten,
    show_array,
    styled,
)
from vitrail.plotting.tiles import by_row, hide_missing, light, middles, mosaic

Curves = Mapping[str, tuple[np.ndarray, np.ndarray]]
"""What a run measured, by name: the steps, and a value at each."""


@styled
def draw_overlays(
    images: Sequence[np.ndarray], masks: Sequence[np.ndarray], names: Sequence[str]
) -> Plot:
    """Draw images (height, width, 3) beside their masks (height, width) and lit by them."""
    tall = sum(image.shape[0] / image.shape[1] for image in images)
    alt = f"Image, attention mask and the image lit by it, for {', '.join(names)}"
    plot = Plot("overlays", alt, WIDTH / 3 * tall + 0.3 * len(images))
    for axes, image, mask, name in zip(
        panes(plot, len(images), 3), images, masks, names, strict=True
    ):
        show_array(axes[0], image, shorten(name, 20))
        show_array(axes[1], mask, "attention", cmap=MAP, vmin=0)
        show_array(axes[2], light(image, mask), "lit by it")
    return plot


@styled
def draw_images(images: Sequence[np.ndarray], names: Sequence[str]) -> Plot:
    """Draw images (height, width, 3) side by side, for models that have no attention."""
    plot = Plot("images", f"The images {', '.join(names)}", WIDTH / 2)
    for axes, image, name in zip(panes(plot, 1, len(images))[0], images, names, strict=True):
        show_array(axes, image, shorten(name))
    return plot


@styled
def draw_heads(maps: np.ndarray, layers: Sequence[int]) -> Plot:
    """Draw attention maps (layers, heads, rows, columns) as tiles, each to its own scale."""
    count, heads, rows, columns = maps.shape
    sheet = mosaic(maps / np.maximum(maps.max((2, 3), keepdims=True), 1e-12))
    alt = f"Tiles of attention: {heads} heads across, layers {', '.join(map(str, layers))} down"
    tile = min(0.75, (WIDTH - 0.6) / heads)
    tall = tile * heads * sheet.shape[0] / sheet.shape[1]
    plot = Plot("heads", alt, tall + 0.6, tile * heads + 0.6)
    axes = plot.add_subplot()
    show_array(axes, sheet, "", cmap=MAP, vmin=0, vmax=1)
    number_ticks(axes.xaxis, middles(heads, columns))
    name_ticks(axes.yaxis, middles(count, rows), layers)
    axes.set(xlabel="head", ylabel="layer")
    return plot


@styled
def draw_distances(distances: Mapping[str, np.ndarray]) -> Plot:
    """Draw the mean attention distances (layers, heads) of one or more models, by their names."""
    said = (
        f"{name} from {each.min():.0f} to {each.max():.0f} pixels, in layer 0 from "
        f"{each[0].min():.0f} to {each[0].max():.0f}"
        for name, each in distances.items()
    )
    plot = Plot("distances", f"Attention distance of each head by layer: {'; '.join(said)}", 3.4)
    axes = plot.add_subplot()
    for number, (name, each) in enumerate(distances.items()):
        color = COLORS[number % len(COLORS)]
        layers = np.arange(len(each)) + 0.25 * (number - (len(distances) - 1) / 2)
        axes.plot(layers, each.mean(1), color=color, linewidth=1, alpha=0.6)
        across = np.repeat(layers, each.shape[1])
        axes.scatter(across, each, s=16, color=color, linewidths=0, label=shorten(name, 40))
    top = 1.05 * max(each.max() for each in distances.values())
    axes.set(xlabel="layer", ylabel="mean attention distance (pixels)", ylim=(0, top))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    add_legend(axes, above=True)
    return plot


@styled
def draw_filters(filters: np.ndarray) -> Plot:
    """Draw filters (count, height, width, 3), from 0 to 1, as tiles in rows of 7, as Figure 7."""
    count, height, width, _ = filters.shape
    sheet = mosaic(by_row(filters, 7))
    alt = f"{count} colored tiles of {height} by {width} pixels, principal components of filters"
    plot = Plot("filters", alt, WIDTH * sheet.shape[0] / sheet.shape[1])
    show_array(plot.add_subplot(), hide_missing(sheet), "")
    return plot


@styled
def draw_positions(similarities: Mapping[str, np.ndarray]) -> Plot:
    """Draw cosine similarities (rows, columns, rows, columns), by names, one tile per patch.

    Several, for example before and after resizing, are drawn below each other.
    """
    sheets = {name: mosaic(each) for name, each in similarities.items()}
    grids = (f"{each.shape[0]} by {each.shape[1]}" for each in similarities.values())
    alt = f"{' and '.join(grids)} tiles of cosine similarity, each brightest at its own patch"
    tall = sum(sheet.shape[0] / sheet.shape[1] for sheet in sheets.values())
    plot = Plot("positions", alt, (WIDTH - 1.3) * tall + 0.8 * len(sheets))
    least = min(0.0, *(each.min() for each in similarities.values()))
    for axes, (name, sheet) in zip(panes(plot, len(sheets), 1)[:, 0], sheets.items(), strict=True):
        rows, columns, height, width = similarities[name].shape
        shown = show_array(axes, sheet, name, cmap="viridis", vmin=least, vmax=1)
        number_ticks(axes.xaxis, middles(columns, width))
        number_ticks(axes.yaxis, middles(rows, height))
        axes.set(xlabel="column of the patch", ylabel="row of the patch")
        add_bar(plot, shown, axes, "cosine similarity")
    return plot


@styled
def draw_components(images: Sequence[np.ndarray], colors: Sequence[np.ndarray]) -> Plot:
    """Draw images above the colors (rows, columns, 3 or 4) of their patch tokens."""
    count = max(2, len(images))
    tall = max(image.shape[0] / image.shape[1] for image in images)
    alt = f"{len(images)} images, and below each its patch tokens as colors"
    plot = Plot("components", alt, 2 * tall * WIDTH / count)
    grid = panes(plot, 2, count)
    for axes in grid[:, len(images) :].flat:
        axes.set_axis_off()
    for axes, image, color in zip(grid.T, images, colors, strict=False):
        show_array(axes[0], image, "")
        show_array(axes[1], color, "")
    return plot


@styled
def draw_neighbors(
    queries: Sequence[np.ndarray],
    neighbors: Sequence[Sequence[np.ndarray]],
    similarities: np.ndarray,
    labels: Sequence[Sequence[str]] = (),
) -> Plot:
    """Draw each query's image and its nearest ones, with similarities (queries, neighbors)."""
    count, near = similarities.shape
    alt = f"{count} images, each followed by the {near} that are nearest to it"
    plot = Plot("neighbors", alt, count * (WIDTH / (near + 1) + 0.4))
    for row, axes in enumerate(panes(plot, count, near + 1)):
        show_array(axes[0], queries[row], "image", size=7)
        for column in range(near):
            name = f"{shorten(labels[row][column], 14)}\n" if labels else ""
            title = f"{name}{similarities[row, column]:.2f}"
            show_array(axes[column + 1], neighbors[row][column], title, size=7)
    return plot


@styled
def draw_similarity(similarity: np.ndarray, names: tuple[str, str]) -> Plot:
    """Draw the similarity (layers, layers) of a first model's layers (rows) and a second's."""
    low, high = similarity.min(), similarity.max()
    alt = f"Similarity of the layers of {names[0]} and {names[1]}, from {low:.2f} to {high:.2f}"
    plot = Plot("similarity", alt, 4.0)
    axes = plot.add_subplot()
    shown = show_array(axes, similarity, "", cmap=MAP, vmin=0, vmax=1, origin="lower")
    for axis, name, count in zip((axes.yaxis, axes.xaxis), names, similarity.shape, strict=True):
        number_ticks(axis, np.arange(count))
        axis.set_label_text(f"layer of {shorten(name)}", parse_math=False)
    add_bar(plot, shown, axes, "CKA")
    return plot


@styled
def draw_norms(norms: np.ndarray, prefix: int) -> Plot:
    """Draw the norms (layers, images, tokens) of patch tokens, and of the `prefix` before."""
    patches = norms[..., prefix:].reshape(len(norms), -1)
    low, middle, high = np.quantile(patches, (0.05, 0.5, 0.95), axis=1)
    most, layers = patches.max(1), np.arange(len(norms))
    said = f"median {middle[-1]:.1f} and largest {most[-1]:.1f} after the last layer"
    plot = Plot("norms", f"Norms of patch tokens by layer: {said}", 3.2)
    axes = plot.add_subplot()
    axes.fill_between(layers, low, high, color=COLORS[0], alpha=0.25, linewidth=0)
    axes.plot(layers, middle, color=COLORS[0], label="patches: median, middle 90 %")
    axes.plot(layers, most, "--", color=COLORS[1], label="patches: largest")
    if prefix:
        before = norms[..., :prefix].reshape(len(norms), -1).mean(1)
        axes.plot(layers, before, ":", color=COLORS[2], label="tokens before the patches: mean")
    axes.set(xlabel="layer", ylabel="norm", yscale="log")
    axes.yaxis.set_major_formatter(LogFormatter())
    axes.yaxis.set_minor_formatter(LogFormatter())
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    add_legend(axes)
    return plot


@styled
def draw_lens(probabilities: np.ndarray, classes: Sequence[str], most: int = 5) -> Plot:
    """Draw by layer how likely (layers, classes) the last layer's first classes are."""
    best = np.argsort(-probabilities[-1], kind="stable")[:most]
    last = probabilities[-1, best[0]]
    alt = f"Probability of classes by layer; the last one's first is {classes[best[0]]}, {last:.0%}"
    plot = Plot("lens", alt, 3.0)
    axes = plot.add_subplot()
    for color, index in zip(COLORS, best, strict=False):
        label = shorten(classes[int(index)], 32)
        axes.plot(probabilities[:, index], ".-", color=color, label=label)
    axes.set(xlabel="layer", ylabel="probability", ylim=(-0.02, 1.02))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    add_legend(axes)
    return plot


@styled
def draw_curves(curves: Curves) -> Plot:
    """Draw what a run measured by step: a panel each for loss, accuracy and learning rate."""
    panels = {
        "loss": {"train/loss": "training", "val/loss": "validation"},
        "accuracy": {
            "val/top1": "top-1",
            "val/top5": "top-5",
            "val/macro_accuracy": "macro",
            "val/correct": "colors",
        },
        "mAP and F1": {
            "val/map": "mAP",
            "val/macro_f1": "macro F1",
            "val/micro_f1": "micro F1",
        },
        "few-shot accuracy": {
            name: f"{name.removeprefix('fewshot/')}-shot"
            for name in curves
            if name.startswith("fewshot/")
        },
        "learning rate": {"lr": "rate"},
    }
    known = {what: lines for what, lines in panels.items() if lines.keys() & curves.keys()}
    said = ", ".join(f"{name} ends at {values[-1]:.4g}" for name, (_, values) in curves.items())
    plot = Plot("curves", f"Curves by step: {said}", 1.6 * len(known) + 0.5)
    grid = panes(plot, len(known), 1, sharex=True)[:, 0]
    for axes, (what, lines) in zip(grid, known.items(), strict=True):
        for color, (name, label) in zip(COLORS, lines.items(), strict=False):
            if name in curves:
                steps, values = curves[name]
                mark = ".-" if len(steps) < 30 else "-"
                axes.plot(steps, values, mark, color=color, linewidth=1.2, label=label)
        axes.set_ylabel(what)
        if what not in ("loss", "learning rate"):  # no more than 1, not even as a margin
            bottom, top = axes.get_ylim()
            axes.set_ylim(max(-0.02, bottom), min(1.02, top))
        add_legend(axes)
    grid[-1].set_xlabel("step")
    grid[-1].xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    return plot


@styled
def draw_predictions(sheet: np.ndarray) -> Plot:
    """Draw a sheet of images, one per row: as it is, with masked patches, as predicted."""
    height, width = sheet.shape[:2]
    rows, tall = 3 * height // width, WIDTH * height / width
    alt = f"{rows} images, the patches of each that were masked, and what was predicted for them"
    plot = Plot("predictions", alt, tall + 0.3)
    axes = plot.add_subplot()
    show_array(axes, sheet, "")
    axes.xaxis.tick_top()
    places = (np.arange(3) + 0.5) * width / 3
    axes.set_xticks(places, ("image", "masked", "predicted"), size=9)
    axes.xaxis.set_tick_params(length=0)
    return plot
