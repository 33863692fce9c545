"""Figures: what is drawn is the arrays' own values, twice the same bytes, and any name is safe."""

import io
import re
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from vitrail.plotting import inspection_plots as plots
from vitrail.plotting.canvas import INK, Plot
from vitrail.plotting.captions import CAPTIONS
from vitrail.plotting.choosing_plots import draw_pareto
from vitrail.plotting.evaluation_plots import draw_confusion, draw_reliability, draw_scatter
from vitrail.plotting.inspection_plots import Curves
from vitrail.plotting.study_plots import draw_lines
from vitrail.plotting.tiles import by_row, hide_missing, light, middles, mosaic

BINS = [(0.0, 0, None, None), (0.5, 8, 0.7, 0.6)]
WILD = ("<script>alert(1)</script>", "$\\frac{", "日本\n猫", "a & b")
"""Names that break HTML, mathematics, fonts and lines."""


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).random(shape)


def image(height: int = 20, width: int = 30) -> np.ndarray:
    return (255 * noise(height, width, 3)).astype(np.uint8)


def curves() -> Curves:
    steps = np.arange(4.0)
    return {"train/loss": (steps, 4 - steps), "val/top1": (steps[1:3], steps[1:3] / 4)}


def shown_on(axes: Axes) -> np.ndarray:
    return np.asarray(axes.images[0].get_array())


def heights(line: Any) -> list[float]:
    return np.asarray(line.get_ydata()).tolist()


EXAMPLES: dict[str, Callable[[], Plot]] = {
    "overlays": lambda: plots.draw_overlays([image()], [noise(20, 30)], WILD[:1]),
    "images": lambda: plots.draw_images([image()], WILD[:1]),
    "heads": lambda: plots.draw_heads(noise(2, 3, 4, 5), [0, 7]),
    "distances": lambda: plots.draw_distances({WILD[1]: 100 * noise(4, 3), "b": noise(3, 2)}),
    "filters": lambda: plots.draw_filters(noise(10, 4, 4, 3)),
    "positions": lambda: plots.draw_positions({"3 x 4": noise(3, 4, 3, 4)}),
    "components": lambda: plots.draw_components([image()], [noise(4, 5, 3)]),
    "neighbors": lambda: plots.draw_neighbors(
        [image()], [[image(), image()]], noise(1, 2), [WILD[1:3]]
    ),
    "similarity": lambda: plots.draw_similarity(noise(3, 4), (WILD[0], WILD[1])),
    "norms": lambda: plots.draw_norms(1 + noise(3, 2, 6), 1),
    "lens": lambda: plots.draw_lens(noise(3, 4), WILD),
    "curves": lambda: plots.draw_curves(curves()),
    "predictions": lambda: plots.draw_predictions(np.tile(image(), (2, 3, 1))),
    "confusion": lambda: draw_confusion(np.eye(4, dtype=int), WILD),
    "scatter": lambda: draw_scatter(np.eye(4)[:, :3], np.ones((4, 3)), WILD[:3], "$x$\nset"),
    "reliability": lambda: draw_reliability(BINS, (0.1, 0.05, 0.2), "$x$\nset"),
    "study": lambda: draw_lines({WILD[0]: [(1, 0.2, 0.1, 0.3), (8, 0.5, 0.4, 0.6)]}, x="x", y="y"),
    "pareto": lambda: draw_pareto(WILD[:2], [10, 90], [(0.9, 0.8, 0.95)] * 2, [True, False], 0),
}


def test_every_figure_has_an_example() -> None:
    assert EXAMPLES.keys() == CAPTIONS.keys()


@pytest.mark.parametrize("name", EXAMPLES)
def test_figures_are_whole_and_the_same_twice(name: str) -> None:
    plot, again = EXAMPLES[name](), EXAMPLES[name]()
    assert isinstance(plot, Figure)
    assert (plot.name, plot.title, plot.see, plot.how) == (name, *CAPTIONS[name])
    assert re.fullmatch(r"[^.]+(\(arXiv [\d.]+\))?\.", plot.see), "one sentence on what to see"
    svg, png = plot.svg(), plot.png()
    assert (svg, png) == (plot.svg(), again.png())
    root = ET.fromstring(svg)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert INK not in svg.replace(f"color:{INK}", "")
    with Image.open(io.BytesIO(png)) as opened:
        assert opened.mode == "RGBA"
        corner = opened.getpixel((0, opened.height - 1))
    assert corner == (255, 255, 255, 0), "the background is to shine through"


@pytest.mark.parametrize("name", ["overlays", "lens", "similarity"])
def test_figures_show_themselves_in_a_notebook(name: str) -> None:
    shown = EXAMPLES[name]()._repr_html_()
    (source,) = re.findall(r'<img src="(data:image/svg\+xml;base64,[A-Za-z0-9+/=]+)"', shown)
    (alt,) = re.findall(r' alt="([^"]+)"', shown)
    assert len(source) > 1000
    assert len(alt) > 20
    assert "<script" not in shown
    assert "\n" not in alt


def test_distances_are_a_dot_a_head_and_a_line_for_their_mean() -> None:
    first, second = np.array([[10.0, 60], [80, 90], [90, 100]]), np.array([[70.0, 80], [90, 91]])
    plot = plots.draw_distances({"ViT": first, "hybrid": second})
    (axes,) = plot.axes
    dots = [np.asarray(each.get_offsets()) for each in axes.collections]
    assert np.array_equal(dots[0][:, 1], first.ravel())
    assert np.array_equal(dots[1][:, 1], second.ravel())
    assert np.array_equal(np.rint(dots[0][:, 0]), [0, 0, 1, 1, 2, 2])
    assert heights(axes.lines[0]) == [35, 85, 95]
    assert "ViT from 10 to 100 pixels, in layer 0 from 10 to 60" in plot.alt


def test_overlays_show_image_mask_and_both() -> None:
    shown, mask = image(4, 6), np.zeros((4, 6))
    mask[1, 2] = 0.5
    plot = plots.draw_overlays([shown], [mask], ["a"])
    first, second, third = map(shown_on, plot.axes)
    assert np.array_equal(first, shown)
    assert np.array_equal(second, mask)
    assert np.array_equal(third[1, 2], shown[1, 2])
    assert np.array_equal(third[0, 0], np.round(0.2 * shown[0, 0]))


def test_the_lens_follows_the_last_layers_first_classes() -> None:
    probabilities = np.array([[0.5, 0.2, 0.1, 0.2], [0.1, 0.6, 0.0, 0.3]])
    plot = plots.draw_lens(probabilities, ["a", "b", "c", "d"], most=2)
    (axes,) = plot.axes
    assert [line.get_label() for line in axes.lines] == ["b", "d"]
    assert heights(axes.lines[0]) == [0.2, 0.6]
    assert "first is b, 60%" in plot.alt


def test_confusion_is_a_fraction_of_each_true_class() -> None:
    plot = draw_confusion(np.array([[3, 1], [0, 0]]), ["a", "b"])
    assert np.array_equal(shown_on(plot.axes[0]), [[0.75, 0.25], [0, 0]])
    assert "75.0% of 4 correct" in plot.alt


def test_norms_take_the_patches_alone() -> None:
    norms = np.ones((2, 3, 5))
    norms[..., 0] = 100  # the class token
    norms[1, 0, 4] = 7
    plot = plots.draw_norms(norms, 1)
    assert [*map(heights, plot.axes[0].lines)] == [[1, 1], [1, 7], [100, 100]]


def test_curves_are_drawn_where_they_are() -> None:
    plot = plots.draw_curves(curves())
    assert [axes.get_ylabel() for axes in plot.axes] == ["loss", "accuracy"]
    assert np.array_equal(plot.axes[1].lines[0].get_xdata(), [1, 2])
    named = [axes.get_legend_handles_labels()[1] for axes in plot.axes]
    assert named == [["training"], ["top-1"]]


def test_a_panel_of_accuracies_ends_at_1() -> None:
    perfect = np.array([1.0, 2.0]), np.ones(2)
    plot = plots.draw_curves({"val/top1": perfect, "val/map": perfect})
    assert [axes.get_ylim()[1] for axes in plot.axes] == [1.02, 1.02]


def test_all_dots_of_distances_are_inside() -> None:
    (axes,) = plots.draw_distances({"alike": np.full((2, 3), 16.0)}).axes
    assert axes.get_ylim() == (0, pytest.approx(16.8))


@pytest.mark.parametrize(
    "plot",
    [
        plots.draw_distances({"one layer": np.ones((1, 2))}),
        plots.draw_curves({"lr": (np.array([1.0, 2.0]), np.ones(2))}),
    ],
)
def test_layers_and_steps_are_whole_numbers(plot: Plot) -> None:
    ticks = plot.axes[-1].get_xticks()
    assert np.array_equal(ticks, np.round(ticks)), ticks


def test_a_mosaic_keeps_its_tiles() -> None:
    tiles = np.arange(24.0).reshape(2, 3, 2, 2)
    sheet = mosaic(tiles)
    assert sheet.shape == (5, 8)
    assert np.array_equal(sheet[3:5, 6:8], tiles[1, 2])
    assert np.isnan(sheet[2]).all()
    assert np.isnan(sheet[:, 2]).all()
    assert list(middles(3, 2)) == [0.5, 3.5, 6.5]
    rows = by_row(np.ones((5, 2, 2, 3)), 3)
    assert rows.shape == (2, 3, 2, 2, 3)
    assert np.isnan(rows[1, 2]).all()
    assert hide_missing(rows)[1, 1:, 0, 0, 3].tolist() == [1, 0]


def test_light_of_no_attention_is_dark() -> None:
    assert light(np.full((1, 1, 3), 100, np.uint8), np.zeros((1, 1))).tolist() == [[[20, 20, 20]]]
