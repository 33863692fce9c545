"""Claims on made-up tables whose answer is known, and how often they are wrong by chance."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats

from vitrail.evaluation.metrics.intervals import student_t, t_quantile
from vitrail.studies.claims import (
    LEVEL,
    Check,
    Claim,
    Finding,
    alike,
    all_of,
    best_of,
    crosses,
    gains_more,
    gap_closes,
    greater,
    ordered,
)
from vitrail.studies.scaling import fit_power_laws, saves_compute

A, B, C = {"model": "a"}, {"model": "b"}, {"model": "c"}
SMALL, LARGE = {"images": 100}, {"images": 1000}

Table = list[dict[str, Any]]


def table(**groups: list[float]) -> Table:
    """Make a table: one row for each model and seed."""
    return [
        {"model": model, "seed": seed, "top1": value}
        for model, values in groups.items()
        for seed, value in enumerate(values)
    ]


def grid(values: dict[tuple[str, int], list[float]]) -> Table:
    """Make a table: one row for each model, number of images, and seed."""
    return [
        {"model": model, "images": images, "seed": seed, "top1": value}
        for (model, images), of in values.items()
        for seed, value in enumerate(of)
    ]


def judge(check: Check, rows: Table) -> Finding:
    return Claim(text="", check=check).judge(rows)


def test_greater_is_a_paired_t_interval() -> None:
    """The seeds differ far more than the two models: only pairs see the difference."""
    first, second = [0.50, 0.60, 0.70], [0.48, 0.585, 0.68]
    found = judge(greater("top1", A, B), table(a=first, b=second))
    assert found.verdict == "holds"
    expected = stats.ttest_rel(first, second).confidence_interval(1 - LEVEL)
    assert found.effect == pytest.approx(100 * np.mean(np.subtract(first, second)))
    assert (found.low, found.high) == pytest.approx((100 * expected.low, 100 * expected.high))
    assert found.n == 3
    assert judge(greater("top1", B, A), table(a=first, b=second)).verdict == "fails"


@pytest.mark.parametrize(
    ("rows", "note"),
    [
        (table(a=[0.5, 0.6, 0.4], b=[0.4, 0.7, 0.3]), ""),
        (table(a=[0.9], b=[0.1]), "1 pair of runs; 2 are needed"),
        (table(a=[0.9, 0.8]), "0 pairs of runs; 2 are needed"),
        (table(a=[0.9, 0.8, math.nan], b=[math.nan, 0.1, 0.2]), "1 pair of runs; 2 are needed"),
    ],
)
def test_too_little_is_undecided(rows: Table, note: str) -> None:
    found = judge(greater("top1", A, B), rows)
    assert found.verdict == "undecided"
    assert found.note == note
    assert str(found)


def test_a_failed_cell_is_left_out() -> None:
    rows = [*table(a=[0.5, 0.6, 0.7], b=[0.4, 0.51, 0.6]), {"model": "a", "seed": 3, "top1": None}]
    assert judge(greater("top1", A, B), rows).n == 3


def test_greater_by_a_margin() -> None:
    rows = table(a=[0.5, 0.6, 0.7], b=[0.47, 0.571, 0.67])  # about 3 points
    assert judge(greater("top1", A, B, by=0.02), rows).verdict == "holds"
    assert judge(greater("top1", A, B, by=0.05), rows).verdict == "fails"
    found = judge(greater("top1", A, B, by=0.02), rows)
    assert found.effect == pytest.approx(2.9667, abs=1e-3)
    assert found.low < found.effect < found.high


@pytest.mark.parametrize(
    ("other", "verdict"),
    [
        ([0.501, 0.602, 0.699], "holds"),
        ([0.55, 0.651, 0.749], "fails"),
        ([0.45, 0.65, 0.72], "undecided"),
    ],
)
def test_alike(other: list[float], verdict: str) -> None:
    rows = table(a=[0.5, 0.6, 0.7], b=other)
    assert judge(alike("top1", A, B, within=0.02), rows).verdict == verdict


def test_seeds_that_differ_by_the_same_decide_nothing() -> None:
    """Of few images, equal differences are chance; computed sizes differ by the same rightly."""
    rows = table(a=[0.6, 0.7], b=[0.5, 0.6])
    for check in (greater("top1", A, B), greater("top1", B, A), alike("top1", A, B, within=0.2)):
        found = judge(check, rows)
        assert found.verdict == "undecided"
        assert (found.low, found.high) == (-100, 100)
        assert "differ by the same" in str(found)
    again = table(a=[0.6, 0.7], b=[0.6, 0.7])
    assert judge(greater("top1", A, B), again).verdict == "undecided"
    sizes = [{**row, "flops": 1e9 * row["top1"]} for row in rows]
    assert judge(greater("flops", A, B), sizes).verdict == "holds"


def test_ordered() -> None:
    rows = table(a=[0.5, 0.51, 0.52], b=[0.6, 0.612, 0.62], c=[0.7, 0.71, 0.722])
    assert judge(ordered("top1", A, B, C), rows).verdict == "holds"
    found = judge(ordered("top1", A, C, B), rows)
    assert found.verdict == "fails"
    assert found.note == "comparison 2 of 2"
    assert found.effect == pytest.approx(-10, abs=0.3)
    noisy = table(a=[0.5, 0.51, 0.52], b=[0.6, 0.4, 0.62], c=[0.7, 0.71, 0.722])
    assert judge(ordered("top1", A, B, C), noisy).verdict == "undecided"


def test_crosses() -> None:
    rows = grid(
        {
            ("a", 100): [0.20, 0.21, 0.22],
            ("b", 100): [0.30, 0.311, 0.32],
            ("a", 1000): [0.60, 0.61, 0.62],
            ("b", 1000): [0.50, 0.509, 0.52],
        }
    )
    assert judge(crosses("top1", A, B, SMALL, LARGE), rows).verdict == "holds"
    assert judge(crosses("top1", B, A, SMALL, LARGE), rows).verdict == "fails"
    assert judge(crosses("top1", A, B, SMALL, SMALL), rows).verdict == "fails"
    assert judge(gap_closes("top1", B, A, SMALL, LARGE), rows).verdict == "holds"
    assert judge(gap_closes("top1", A, B, SMALL, LARGE), rows).verdict == "fails"
    gains = judge(gains_more("top1", A, B, SMALL, LARGE), rows)
    assert (gains.verdict, gains.effect) == ("holds", pytest.approx(20, abs=0.2))
    assert judge(gains_more("top1", B, A, SMALL, LARGE), rows).verdict == "fails"


def test_a_gap_that_never_was_does_not_close() -> None:
    """A leader that is behind, and falls further behind, is no leader."""
    rows = grid(
        {
            ("a", 100): [0.20, 0.21, 0.22],
            ("b", 100): [0.30, 0.311, 0.32],
            ("a", 1000): [0.20, 0.21, 0.22],
            ("b", 1000): [0.40, 0.411, 0.42],
        }
    )
    found = judge(gap_closes("top1", A, B, SMALL, LARGE), rows)
    assert (found.verdict, found.note) == ("fails", "comparison 1 of 2")


def test_gains_are_of_seeds_that_have_all_four_runs() -> None:
    values = {(model, n): [0.1, 0.2, 0.4] for model in "ab" for n in (100, 1000)}
    rows = grid(values | {("a", 1000): [0.2, 0.3, 0.6]})
    left = [row for row in rows if (row["model"], row["images"], row["seed"]) != ("b", 100, 1)]
    found = judge(gains_more("top1", A, B, SMALL, LARGE), left)
    assert (found.n, found.effect) == (2, pytest.approx(15))


def test_best_of_chooses_by_the_mean_over_the_other_seeds() -> None:
    rows = [
        {"pool": pool, "lr": lr, "seed": seed, "val": val, "top1": lr}
        for pool, lr, vals in (
            ("gap", 1e-3, [0.5, 0.9, 0.6]),
            ("gap", 3e-3, [0.8, 0.8, 0.6]),
            ("token", 1e-3, [0.6, 0.6, 0.6]),
            ("token", 3e-3, [0.1, 0.2, 0.9]),
        )
        for seed, val in enumerate(vals)
    ]
    kept = {(row["pool"], row["seed"]): row["lr"] for row in best_of(rows, "lr", "val", ["pool"])}
    assert kept == {
        ("gap", 0): 1e-3,  # 0.75 of the others against 0.7, though its own is worse
        ("gap", 1): 3e-3,
        ("gap", 2): 3e-3,
        ("token", 0): 1e-3,
        ("token", 1): 1e-3,
        ("token", 2): 1e-3,
    }
    alone = best_of([row for row in rows if row["seed"] == 0], "lr", "val", ["pool"])
    assert {(row["pool"], row["lr"]) for row in alone} == {("gap", 3e-3), ("token", 1e-3)}


def power_law(
    rng: np.random.Generator, ratio: float = 1.0, noise: float = 0.02, models: int = 4
) -> Table:
    """Make two families whose errors fall as compute ** -0.2; the second needs `ratio` times it."""
    rows = []
    for family, factor in (("vit", 1.0), ("bit", ratio)):
        for size in range(models):
            compute = 1e12 * 4.0**size * (1.0 if family == "vit" else 1.5)
            error = 0.8 * (compute / factor / 1e12) ** -0.2 * math.exp(rng.normal(0, noise))
            rows.append({"family": family, "model": f"{family}-{size}", "seed": 0,
                         "flops": compute, "top1": 1 - error})  # fmt: skip
    return rows


SAVES = saves_compute("top1", "flops", "model", {"family": "vit"}, {"family": "bit"})


def test_compute_ratio_of_known_power_laws() -> None:
    found = judge(SAVES, power_law(np.random.default_rng(0), ratio=3.0))
    assert found.verdict == "holds"
    assert found.low < 3 < found.high
    assert judge(SAVES, power_law(np.random.default_rng(0), ratio=1 / 3)).verdict == "fails"
    noisy = power_law(np.random.default_rng(0), ratio=1.2, noise=0.2)
    assert judge(SAVES, noisy).verdict == "undecided"
    assert judge(SAVES, power_law(np.random.default_rng(0), models=2)).verdict == "undecided"
    rising = [{**row, "top1": 1 - row["top1"]} for row in power_law(np.random.default_rng(0))]
    assert judge(SAVES, rising).note == "the error of a family does not fall with compute"


def test_a_power_law_is_recovered_with_its_band() -> None:
    rows = power_law(np.random.default_rng(1), noise=0.01, models=6)
    laws = fit_power_laws(rows, "top1", "flops", "model", [{"family": "vit"}, {"family": "bit"}])
    assert laws is not None
    assert laws[0].slope == pytest.approx(-0.2, abs=0.01)
    low, high = laws[0].band(np.array([1e13]))
    assert low[0] < 0.8 * 10**-0.2 < high[0]
    assert laws[0].error(np.array([1e13]))[0] == pytest.approx(0.8 * 10**-0.2, rel=0.02)


def equal_pair(rng: np.random.Generator) -> Table:
    return table(a=list(rng.normal(0.5, 0.01, 3)), b=list(rng.normal(0.5, 0.01, 3)))


def equal_grid(rng: np.random.Generator) -> Table:
    return grid({(model, n): list(rng.normal(0.5, 0.01, 3)) for model in "ab" for n in (100, 1000)})


def at_the_margin(rng: np.random.Generator) -> Table:
    return table(a=list(rng.normal(0.52, 0.003, 3)), b=list(rng.normal(0.5, 0.003, 3)))


@pytest.mark.parametrize(
    ("check", "make", "runs"),
    [
        (greater("top1", A, B), equal_pair, 4000),
        (alike("top1", A, B, within=0.02), at_the_margin, 4000),
        (crosses("top1", A, B, SMALL, LARGE), equal_grid, 2000),
        (gap_closes("top1", A, B, SMALL, LARGE), equal_grid, 2000),
        (gains_more("top1", A, B, SMALL, LARGE), equal_grid, 2000),
        (all_of(*[greater("top1", A, B)] * 3), equal_pair, 2000),
        (SAVES, power_law, 1000),
    ],
    ids=[
        "greater",
        "alike",
        "crosses",
        "gap_closes",
        "gains_more",
        "all_of",
        "saves_compute",
    ],
)
def test_a_verdict_is_wrong_by_chance_no_more_often_than_stated(
    check: Check, make: Callable[[np.random.Generator], Table], runs: int
) -> None:
    """Where nothing differs (or exactly by the margin), any verdict is a wrong one."""
    rng = np.random.default_rng(0)
    wrong = sum(judge(check, make(rng)).verdict != "undecided" for _ in range(runs))
    chance = 3 * math.sqrt(LEVEL * (1 - LEVEL) / runs)  # of the simulation itself
    assert wrong / runs <= LEVEL + chance


def test_a_clear_effect_is_found() -> None:
    """At three seeds and an effect of ten standard deviations, nearly always."""
    rng = np.random.default_rng(0)
    rows = [table(a=list(rng.normal(0.6, 0.01, 3)), b=list(rng.normal(0.5, 0.01, 3)))
            for _ in range(500)]  # fmt: skip
    held = sum(judge(greater("top1", A, B), each).verdict == "holds" for each in rows)
    assert held / len(rows) > 0.9


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 7, 10, 31])
def test_quantiles_of_students_t(freedom: int) -> None:
    for probability in (0.6, 0.95, 0.975, 0.9999):
        expected = stats.t.ppf(probability, freedom)
        assert t_quantile(probability, freedom) == pytest.approx(expected, rel=1e-9)


def test_an_interval_of_one_value_is_everything() -> None:
    assert student_t(np.array([0.5])) == (0.5, -math.inf, math.inf)
