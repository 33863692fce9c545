"""Class token or global average pooling: each needs its own learning rate (Figure 9)."""

from __future__ import annotations

from dataclasses import replace

from vitrail.plotting.study_plots import draw_lines
from vitrail.result import ResultTable
from vitrail.studies.claims import (
    Claim,
    Finding,
    Rows,
    alike,
    best_of,
    differences,
    judge_sign,
    rows_where,
)
from vitrail.studies.curves import curves
from vitrail.studies.engine.sweep_plan import Sweep
from vitrail.studies.plans import NO_JFT, plan_few_shots
from vitrail.studies.small_runs import SHORT, TINY, TINY_DATA, vit
from vitrail.studies.study import Setting, Study

RATES = [3e-4, 1e-3, 3e-3, 1e-2, 3e-2]
MEASURE, GAP, TOKEN = "fewshot_10", {"model.pool": "gap"}, {"model.pool": "token"}


def _own_rates(rows: Rows) -> Rows:
    """Keep each pooling's runs at the learning rate that is best on held-out images."""
    return best_of(rows, "lr", by="top1", per=["model.pool"])


def _check_alike(rows: Rows, level: float) -> Finding:
    return alike(MEASURE, GAP, TOKEN, within=0.03)(_own_rates(rows), level)


def _check_other_rate(rows: Rows, level: float) -> Finding:
    """Compare GAP at its own learning rate with GAP at the class token's."""
    own = {(row["model.pool"], row["seed"]): row["lr"] for row in _own_rates(rows)}
    told = [
        {**row, "at": pool}
        for row in rows_where(rows, GAP)
        for pool in ("gap", "token")
        if row["lr"] == own.get((pool, row["seed"]))
    ]
    found = differences(told, MEASURE, {"at": "gap"}, {"at": "token"})
    if found.any() or not len(found):
        return judge_sign(found, level)
    note = f"the same learning rate, {own['gap', rows[0]['seed']]}, is best for both"
    return replace(judge_sign(found, level), note=note)


def _plan(words: dict[str, object], rates: list[float], seeds: int) -> Sweep:
    axes = {"model.pool": ["token", "gap"], "lr": rates}
    return plan_few_shots({"hold_out": 0.1, **words}, axes, seeds)


STUDY = Study(
    name="figure9",
    title="Class token or global average pooling",
    where="Figure 9, Appendix D.3",
    question="Is the class token needed, or does the mean of the patches do as well?",
    paper="GAP at the class token's learning rate looked very poor; that was 'fully explained by "
    "the requirement for a different learning-rate': with its own it is as good "
    "(3e-4 instead of 8e-4, quoted from memory).",
    published=ResultTable(
        ("pooling", "learning rate", "5-shot ImageNet"),
        [("class token", "8e-4", "works"), ("GAP", "8e-4", "very poor"), ("GAP", "3e-4", "alike")],
    ),
    settings={
        "smoke": Setting(
            plan=_plan({**TINY, "model": vit(16, 1, 32)}, [1e-3, 1e-2], 2),
            data=TINY_DATA,
            hours=0.001,
        ),
        "desk": Setting(
            plan=_plan({**SHORT, "steps": 300, "model": vit(8)}, RATES, 3),
            data="shapes:medium",
            hours=0.04,
            why="Learning rates a factor of 3 apart, on both sides of the best for 300 steps of "
            "64 images.",
        ),
        "gpu": Setting(
            plan=_plan(
                {"recipe": "augreg", "epochs": 30, "model": "ViT-S/16"}, [3e-4, 8e-4, 2e-3], 3
            ),
            data="imagenet:DIR",
            hours=24,
        ),
        "paper": Setting(
            plan=_plan({"recipe": "pretrain:jft", "model": "ViT-B/16"}, [3e-4, 8e-4], 1),
            hours=5600,
            why=NO_JFT,
        ),
    },
    by=("model.pool", "lr"),
    measures={MEASURE: "10-shot accuracy", "top1": "held-out accuracy"},
    claims=(
        Claim(
            text="each with its own learning rate, class token and GAP are within 3 points",
            paper="alike",
            check=_check_alike,
        ),
        Claim(
            text="GAP is worse at the class token's best learning rate than at its own",
            paper="very poor at 8e-4, alike at 3e-4",
            check=_check_other_rate,
        ),
    ),
    draw=lambda rows: draw_lines(
        curves(rows, x="lr", y=MEASURE, by="model.pool"),
        x="learning rate",
        y="10-shot accuracy",
    ),
)
