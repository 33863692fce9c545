"""What is inside a trained ViT: attention distance, filters, positions (section 4.5, D.7)."""

from __future__ import annotations

import numpy as np
import torch

from vitrail.inspection.distance import attention_distance
from vitrail.inspection.embeddings import embedding_filters, position_similarity
from vitrail.models import build
from vitrail.plotting.canvas import Plot
from vitrail.plotting.study_plots import draw_lines
from vitrail.report.report_inputs import open_inputs
from vitrail.result import ResultTable
from vitrail.studies.claims import Claim, Finding, Rows, greater
from vitrail.studies.curves import curves
from vitrail.studies.small_runs import TINY_DATA, hybrid, vit
from vitrail.studies.study import DATA, WEIGHTS, Measurements, Setting, Study

SAMPLES = 4
"""Parts of the images, filters and patches, each measured alone: the seeds of this study."""
FILTERS = 28
"""Principal components, as many as in Figure 7."""
LOCAL, GLOBAL = 0.2, 0.35
"""Attention distance of a local and of a global head, as fractions of the image's side."""


def look_inside(weights: str, data: str, fresh: bool, count: int, seed: int) -> dict[str, float]:
    """Measure attention distance by depth, and structure in filters and positions.

    `fresh` takes `weights` for a model's name, and builds it untrained.
    """
    torch.manual_seed(0)
    inputs = open_inputs(build(weights) if fresh else weights, data=data, split="test", count=count)
    model, side = inputs.model, inputs.preprocess.size[0]
    far = attention_distance(model, inputs.batches(inputs.measured[seed::SAMPLES])).pixels / side
    layers, low = len(far), max(1, len(far) // 4)
    return {
        "distance_first": float(far[:low].mean()),
        "distance_last": float(far[-low:].mean()),
        "local_heads": float((far[:low] < LOCAL).mean()),
        "global_heads": float((far[:low] > GLOBAL).mean()),
        "chance": 0.0,
        "filters": _spectral_lead(embedding_filters(model, FILTERS).tiles[seed::SAMPLES]),
        "positions": _row_column_lead(position_similarity(model).tiles, seed),
        **{f"distance@{layer + 1}": float(far[layer].mean()) for layer in range(layers)},
    }


def _spectral_lead(tiles: np.ndarray) -> float:
    """Say how much more of filters' power is in few frequencies than if pixels were shuffled."""
    filters = tiles.mean(-1) - tiles.mean((1, 2, 3))[:, None, None]
    pixels = filters.reshape(len(filters), -1)
    shuffled = np.random.default_rng(0).permuted(pixels, axis=1).reshape(filters.shape)
    return _peak_power(filters) - _peak_power(shuffled)


def _peak_power(filters: np.ndarray) -> float:
    """Average the share of power in the strongest tenth of a filter's frequencies."""
    power = np.abs(np.fft.fft2(filters)).reshape(len(filters), -1) ** 2
    strongest = np.sort(power, axis=1)[:, -max(1, power.shape[1] // 10) :]
    return float((strongest.sum(1) / power.sum(1)).mean())


def _row_column_lead(tiles: np.ndarray, seed: int) -> float:
    """Subtract the similarity to other patches from that to the same row or column."""
    rows, columns = tiles.shape[:2]
    leads = []
    for place in range(seed, rows * columns, SAMPLES):
        row, column = divmod(place, columns)
        mine = np.zeros((rows, columns), bool)
        mine[row], mine[:, column] = True, True
        mine[row, column] = False
        others = ~mine
        others[row, column] = False
        tile = tiles[row, column]
        leads.append(tile[mine].mean() - tile[others].mean())
    return float(np.mean(leads))


def _plan(names: dict[str, str], count: int, *, fresh: bool = False) -> Measurements:
    words = {"data": DATA, "fresh": fresh, "count": count}
    cases = {name: {"weights": weights, **words} for name, weights in names.items()}
    return Measurements(look_inside, cases, seeds=range(SAMPLES))


def _compare(first: str, second: str, text: str, paper: str) -> Claim:
    """Compare two columns of the ViT's rows."""

    def check(rows: Rows, level: float) -> Finding:
        told = [
            {"seed": row["seed"], "what": name, "value": row.get(name)}
            for row in rows
            if row["case"] == "ViT"
            for name in (first, second)
        ]
        return greater("value", {"what": first}, {"what": second})(told, level)

    return Claim(text=text, paper=paper, check=check)


def _draw(rows: Rows) -> Plot:
    told = [
        {"case": row["case"], "layer": int(name.partition("@")[2]), "distance": value}
        for row in rows
        for name, value in row.items()
        if name.startswith("distance@")
    ]
    lines = curves(told, x="layer", y="distance", by="case")
    return draw_lines(lines, x="layer", y="attention distance / image side", log_x=False)


STUDY = Study(
    name="inspection",
    title="What is inside a ViT",
    where="Figures 7, 10 and 11, section 4.5, Appendix D.7",
    question="How far do heads look, and do filters and position embeddings have structure?",
    paper="Attention distance grows with depth; in the lowest layers some heads already attend to "
    "most of the image while others are local (less so in hybrids); filters resemble a basis of "
    "fine structure; positions are most similar to those of the same row and column.",
    published=ResultTable(
        ("ViT-L/16, Figure 7", "seen"),
        [
            ("mean attention distance, first layers", "local and global heads"),
            ("mean attention distance, last layers", "global heads"),
        ],
    ),
    settings={
        "smoke": Setting(
            plan=_plan(
                {
                    "ViT": vit(8, 2, 32, "classes=6"),
                    "hybrid": f"{hybrid('1', 2, 2, 32)},classes=6",
                },
                8,
                fresh=True,
            ),
            data=TINY_DATA,
            hours=0.001,
        ),
        "desk": Setting(
            plan=_plan({"ViT": WEIGHTS}, 128),
            data="pets",
            weights="timm:vit_tiny_patch16_224.augreg_in21k_ft_in1k",
            hours=0.05,
            why="128 images, as in Appendix D.7; timm's ViT-Ti/16, pre-trained on ImageNet-21k.",
        ),
        "gpu": Setting(
            plan=_plan({"ViT": WEIGHTS, "hybrid": "google:imagenet21k/R50+ViT-B_16"}, 512),
            data="imagenet:DIR",
            weights="google:imagenet21k/ViT-B_16",
            hours=0.1,
        ),
        "paper": Setting(
            plan=_plan({"ViT": WEIGHTS, "hybrid": "google:imagenet21k/R50+ViT-B_16"}, 128),
            data="imagenet:DIR",
            weights="google:imagenet21k/ViT-L_16",
            hours=0.2,
        ),
    },
    by=("case",),
    measures={
        "distance_first": "distance, first layers",
        "distance_last": "distance, last layers",
        "local_heads": "local heads below",
        "global_heads": "global heads below",
        "filters": "lead of filters' spectrum",
        "positions": "row and column lead",
    },
    claims=(
        _compare(
            "distance_last", "distance_first", "attention distance grows with depth", "Figure 7"
        ),
        _compare("local_heads", "chance", "the lowest layers have local heads", "some do"),
        _compare("global_heads", "chance", "the lowest layers have global heads", "some do"),
        Claim(
            text="the lowest layers of a hybrid have fewer local heads than those of a ViT",
            paper="'less pronounced' in hybrids",
            check=greater("local_heads", {"case": "ViT"}, {"case": "hybrid"}),
        ),
        _compare(
            "filters",
            "chance",
            "filters have structure: a spectrum of fewer frequencies than by chance",
            "Figure 7",
        ),
        _compare(
            "positions",
            "chance",
            "positions of a row or column are alike, above chance",
            "Figure 7",
        ),
    ),
    draw=_draw,
    notes="The seeds are four samples of one model's images, filters and patches: a verdict is "
    "about that model. By the same measures an untrained one has global heads alone.",
)
