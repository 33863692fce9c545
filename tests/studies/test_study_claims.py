"""The claims of the paper's studies, on made-up tables of their own cells whose answer is known."""

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from vitrail.studies.claims import LEVEL
from vitrail.studies.engine.sweep_plan import Sweep
from vitrail.studies.study import Scale
from vitrail.studies.study_list import NAMES, load_study

Score = Callable[[dict[str, Any]], float]
TRAINED = [name for name in NAMES if name not in ("inspection", "figure12")]


def made_up(
    name: str,
    score: Score,
    rng: np.random.Generator,
    noise: float = 1e-4,
    scale: Scale = "desk",
) -> list[dict[str, Any]]:
    """Fill a study's table: what a cell scores, and noise."""
    study = load_study(name)
    plan = study.settings[scale].plan
    assert isinstance(plan, Sweep)
    rows = []
    for cell in plan.cells():
        row: dict[str, Any] = {choice.axis: choice.label for choice in cell.choices}
        value = score(row)
        row |= {measure: value + rng.normal(0, noise) for measure in study.measures}
        rows.append({**row, "flops": 1e12 * _size(row), "seed": cell.seed, "state": "done"})
    return rows


def _size(row: dict[str, Any]) -> float:
    """Four times the compute from each model of a family to the next, in figure5."""
    place = str(row.get("size", "")).split()[-1:]
    return 4.0 ** int(place[0]) if place and place[0].isdigit() else 1.0


def verdicts(name: str, score: Score) -> list[str]:
    rows = made_up(name, score, np.random.default_rng(0))
    return [claim.judge(rows).verdict for claim in load_study(name).claims]


def by_value(axis: str, values: dict[str, float], other: float = 0.3) -> Score:
    return lambda row: values.get(row[axis], other)


def rate(best: dict[str, float]) -> Score:
    """Score a learning rate by its distance from the best one of a pooling."""
    return lambda row: 0.3 - 0.02 * abs(math.log(row["lr"] / best[row["model.pool"]]))


def images(many: float, few: float) -> Score:
    """Let ViTs, the large one most, gain on BiTs between the fewest and the most images."""

    def score(row: dict[str, Any]) -> float:
        lead = few if row["data.take"] == 100 else many
        large = 1.5 if "large" in row["family"] else 1.0
        return 0.3 + (large * lead if row["family"].startswith("ViT") else 0.0)

    return score


def compute(vit: float, bit: float, hybrid: float) -> Score:
    """Let the error fall with compute, times a family's factor."""
    factors = {"ViT": vit, "BiT": bit, "hybrid": hybrid}
    return lambda row: 1 - factors[row["size"].split()[0]] * 0.9 * _size(row) ** -0.1


HOLD, FAIL = "holds", "fails"
MARGIN = re.compile(r"more than \d+ point")


@pytest.mark.parametrize(
    ("name", "score", "expected"),
    [
        ("figure9", rate({"token": 1e-3, "gap": 1e-3}), [HOLD, "undecided"]),
        ("figure9", rate({"token": 3e-3, "gap": 1e-3}), [HOLD, HOLD]),
        ("figure9", by_value("model.pool", {"token": 0.4, "gap": 0.2}), [FAIL, None]),
        ("table8", by_value("positions", {"none": 0.25, "rotary": 0.4, "sin-cos": 0.2}),
         [HOLD, HOLD, HOLD, HOLD, HOLD, FAIL]),
        ("table8", by_value("positions", {"relative": 0.4, "1-D, shared": 0.2}),
         [FAIL, FAIL, FAIL, HOLD, None, None]),
        ("figure8", by_value("shape", {"depth doubled": 0.4, "patch halved": 0.35}),
         [HOLD, HOLD, HOLD]),
        ("figure8", by_value("shape", {"width doubled": 0.4, "depth doubled": 0.35,
                                       "patch halved": 0.2}), [HOLD, FAIL, FAIL]),
        ("selfsupervision", by_value("pretraining", {"scratch": 0.2, "masked patches": 0.4,
                                                     "supervised": 0.5}),
         [HOLD, HOLD, HOLD, HOLD, FAIL]),
        ("selfsupervision", by_value("pretraining", {"scratch": 0.4, "masked patches": 0.2}),
         [FAIL, FAIL, FAIL, FAIL, HOLD]),
        ("figure4", images(many=0.05, few=-0.05), [HOLD] * 5),
        ("figure4", images(many=-0.05, few=0.05), [FAIL] * 5),
        ("figure5", compute(vit=0.8, bit=1.0, hybrid=0.7), [HOLD, HOLD, HOLD, HOLD, HOLD]),
        ("figure5", compute(vit=1.0, bit=0.8, hybrid=1.1), [FAIL, FAIL, FAIL, FAIL, HOLD]),
    ],
)  # fmt: skip
def test_verdicts_on_tables_whose_answer_is_known(
    name: str, score: Score, expected: list[str | None]
) -> None:
    """None stands where chance alone decides."""
    found = verdicts(name, score)
    shown = [
        None if wanted is None else verdict for verdict, wanted in zip(found, expected, strict=True)
    ]
    assert shown == expected


@pytest.mark.parametrize("scale", ["desk", "gpu", "paper"])
@pytest.mark.parametrize("name", TRAINED)
def test_every_claim_finds_its_cells_at_every_scale(name: str, scale: Scale) -> None:
    rows = made_up(name, lambda row: 0.5, np.random.default_rng(0), 0.01, scale)
    for claim in load_study(name).claims:
        found = claim.judge(rows)
        assert found.n or "does not fall" in found.note, claim.text


@pytest.mark.parametrize("name", TRAINED)
def test_where_nothing_differs_a_claim_is_seldom_decided(name: str) -> None:
    """Any verdict is wrong there, but that what is alike holds, and that a margin fails."""
    rng, study, runs = np.random.default_rng(0), load_study(name), 300
    wrong = np.zeros(len(study.claims))
    for _ in range(runs):
        rows = made_up(name, lambda row: 0.5, rng, noise=0.01)
        for place, claim in enumerate(study.claims):
            true = HOLD if "within" in claim.text else FAIL if MARGIN.search(claim.text) else None
            wrong[place] += claim.judge(rows).verdict not in ("undecided", true)
    chance = 3 * math.sqrt(LEVEL * (1 - LEVEL) / runs)  # of the simulation itself
    assert (wrong / runs <= LEVEL + chance).all(), wrong / runs


def test_choosing_learning_rates_by_runs_that_are_judged_misleads_no_more_than_stated() -> None:
    """A lucky run is better on held-out images too, and so its learning rate is chosen."""
    rng, runs = np.random.default_rng(0), 1000
    claim = load_study("figure9").claims[1]
    wrong = 0
    for _ in range(runs):
        rows = made_up("figure9", lambda row: 0.5, rng, noise=0.01)
        luck = [row | {"top1": 0.8 * row["fewshot_10"] + 0.2 * row["top1"]} for row in rows]
        wrong += claim.judge(luck).verdict != "undecided"
    assert wrong / runs <= LEVEL + 3 * math.sqrt(LEVEL * (1 - LEVEL) / runs)
