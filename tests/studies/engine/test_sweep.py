"""Sweeps: cells and runs of a plan, the queue, and the table."""

import json
from pathlib import Path

import pytest

from vitrail.config import InputError
from vitrail.studies.engine.jobs import plan_jobs
from vitrail.studies.engine.stage_words import resolve_stage, stage_flops
from vitrail.studies.engine.sweep import sweep
from vitrail.studies.engine.sweep_plan import FewShot, Sweep

TINY = "ViT/4@8,depth=1,width=16,heads=2,mlp=32,channels=1"
BASE = {"data": "digits", "model": TINY, "batch": 16, "steps": 2, "eval_every": "2 steps"}


def test_a_cell_for_each_combination_and_seed() -> None:
    plan = Sweep(
        BASE,
        {
            "lr": [0.1, 0.2],
            "head": {"token": {"model.pool": "token"}, "gap": {"model.pool": "gap"}},
        },
        seeds=(3, 4),
    )
    cells = list(plan.cells())
    assert [str(cell) for cell in cells[:3]] == [
        "lr=0.1, head=token, seed=3",
        "lr=0.1, head=token, seed=4",
        "lr=0.1, head=gap, seed=3",
    ]
    assert len(cells) == 8
    assert cells[-1].words == {**BASE, "lr": 0.2, "model.pool": "gap"}


def test_runs_that_cells_share_are_made_once() -> None:
    plan = Sweep(
        {**BASE, "then.data": "digits"},
        {"model.depth": [1, 2], "then.steps": [1, 2, 3]},
        seeds=(0, 1),
        best={"then.lr": [0.1, 0.2]},
    )
    jobs, cells = plan_jobs(plan)
    assert len(cells) == 12
    assert len({each.first for each in cells}) == 4
    assert len({each.then for each in cells}) == 12
    trials = [job for name, job in jobs.items() if name.startswith("trial")]
    assert len(trials) == 2 * 3 * 2  # depths x lengths x rates, with the first seed only
    assert {job.seed for job in trials} == {0}
    assert len(jobs) == 4 + 12 + 12


def test_a_second_run_with_weights_of_its_own_needs_no_first() -> None:
    plan = Sweep(
        {**BASE, "then.data": "digits", "then.steps": 1},
        {"start": {"scratch": {"then.weights": None, "then.model": TINY}, "pre-trained": {}}},
    )
    jobs, cells = plan_jobs(plan)
    assert cells[0].first is None
    assert cells[1].first is not None
    assert len(jobs) == 3


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"axes": {"optim.lrr": [1]}}, "'optim.lrr' is not a setting; did you mean 'optim.lr'"),
        (
            {"axes": {"model.dept": [1]}},
            "'model.dept' is not a setting; did you mean 'model.depth'",
        ),
        ({"axes": {"lr": []}}, "lr has no values, so there is nothing to run; give one or more"),
        ({"axes": {"lr": [1, 1]}}, "lr: a value is there twice in 1, 1"),
        ({"axes": {"seed": [1]}}, "seed can't be varied or set: give seeds"),
        ({"axes": {"lr": [1]}, "best": {"lr": [1, 2]}}, "lr is set by best and by lr"),
        ({"axes": {}, "best": {"lr": [1]}}, "best lr needs two or more values, got 1"),
        ({"axes": {}, "seeds": ()}, "expected seeds, each once, got []"),
        ({"axes": {}, "measures": ["fewshot"]}, "unknown measure 'fewshot'; expected fewshot:DATA"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(change: dict, said: str) -> None:
    with pytest.raises(InputError) as error:
        Sweep(BASE, **change)
    assert said in str(error.value)


def test_a_sweep_from_plan_to_table(tmp_path: Path) -> None:
    """Budget in FLOPs, chosen rates, a second run, few-shot accuracy; a failed cell is a row."""
    each = stage_flops(resolve_stage(BASE, tmp_path)) * 16
    plan = Sweep(
        {**{k: v for k, v in BASE.items() if k != "steps"}, "flops": 3.5 * each}
        | {"then.data": "digits", "then.steps": 1, "then.batch": 8},
        {"rate": {"good": {}, "bad": {"optim.clip": None, "schedule.warmup": "0 steps"}}},
        best={"lr": [1e-3, 1e-2]},
        measures=(FewShot("digits", shots=(1,), seeds=1), steps_taken),
    )
    out = tmp_path / "sweep"
    result = sweep(plan, out=out, parallel=1)
    assert [row["state"] for row in result.rows] == ["done", "done"]
    assert [row["steps"] for row in result.rows] == [3, 3]
    assert [row["steps_taken"] for row in result.rows] == [3, 3]
    assert result.rows[0]["lr"] in (1e-3, 1e-2)
    assert {"fewshot_1", "top1", "then.top1"} <= set(result.columns)
    assert result.score == "then.top1"
    before = {path: path.stat().st_mtime_ns for path in out.rglob("result.json")}
    assert len(before) == 2 * (1 + 2 + 1)
    again = sweep(plan, out=out, parallel=1)
    assert again.to_csv() == result.to_csv() == (out / "table.csv").read_text()
    assert before == {path: path.stat().st_mtime_ns for path in out.rglob("result.json")}


def steps_taken(run: Path) -> float:
    return json.loads((run / "result.json").read_text())["steps"]


def test_a_cell_that_fails_is_a_row(tmp_path: Path) -> None:
    base = {**BASE, "optim.kind": "sgd", "optim.clip": None, "schedule.warmup": "0 steps"}
    plan = {**base, "steps": 4}
    result = sweep(plan, vary={"lr": [1e30, 1e-3]}, out=tmp_path / "sweep", parallel=1)
    assert [row["state"] for row in result.rows] == ["failed", "done"]
    assert "is not finite at step" in result.rows[0]["error"]
    assert result.failed == 1
    assert [group.values for group in result.grouped()] == [{"lr": 1e-3}]


def test_more_values_may_come_but_not_another_sweep(tmp_path: Path) -> None:
    out = tmp_path / "sweep"
    sweep(BASE, vary={"lr": [1e-3]}, out=out, parallel=1)
    grown = sweep(BASE, vary={"lr": [1e-3, 2e-3]}, seeds=2, out=out, parallel=1)
    assert [(row["lr"], row["seed"]) for row in grown.rows] == [
        (1e-3, 0), (1e-3, 1), (2e-3, 0), (2e-3, 1)
    ]  # fmt: skip
    for changed, vary in (({"steps": 3}, {"lr": [1e-3, 2e-3]}), ({}, {"lr": [1e-3]}), ({}, {})):
        with pytest.raises(InputError, match=r"another sweep|seeds \[0, 1\]"):
            sweep({**BASE, **changed}, vary=vary, out=out, parallel=1)


def test_a_budget_too_small_for_one_step_writes_nothing(tmp_path: Path) -> None:
    base = {name: value for name, value in BASE.items() if name != "steps"}
    with pytest.raises(InputError, match="flops=1000 is too little for one step"):
        sweep(base, vary={"flops": [1e3, 1e12]}, out=tmp_path / "sweep")
    assert not (tmp_path / "sweep").exists()


@pytest.mark.slow
def test_processes_give_the_same_table(tmp_path: Path) -> None:
    tables = [
        sweep(BASE, vary={"lr": [1e-3, 2e-3]}, out=tmp_path / f"{count}", parallel=count).to_csv()
        for count in (1, 2)
    ]
    assert tables[0] == tables[1]
