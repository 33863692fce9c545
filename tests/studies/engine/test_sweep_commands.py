"""`vitrail sweep` and `vitrail sweep show`: words, plan files, estimates, tables, pages."""

import csv
import io
import json
from pathlib import Path

import pytest

from tests.commands import run
from tests.faults.toy import toy
from vitrail.config import InputError
from vitrail.run import train
from vitrail.studies.engine import sweep_cost
from vitrail.studies.engine.jobs import Records
from vitrail.studies.engine.live_table import RunState, SweepProgress
from vitrail.studies.engine.plan_file import make_plan, read_axes, read_plan, split_values
from vitrail.studies.engine.run_table import show_sweep
from vitrail.studies.engine.sweep import estimate_sweep, sweep
from vitrail.studies.engine.sweep_cost import RunCost, Speeds
from vitrail.studies.engine.sweep_result import SweepResult
from vitrail.training.peft import TuneConfig

TINY = "ViT/4@8,depth=1,width=16,heads=2,mlp=32,channels=1"
BASE = {"data": "digits", "model": TINY, "batch": 16, "steps": 2, "eval_every": "2 steps"}
WORDS = ("digits", "--model", TINY, "--batch", "16", "--eval-every", "2 steps")


def test_the_shells_values_are_read_as_what_they_are() -> None:
    assert split_values("1e-3,3") == [0.001, 3]
    assert split_values("true, none,10%,ViT-S/16") == [True, None, "10%", "ViT-S/16"]
    assert split_values("ViT-S/16,pool=gap,ViT-B/16") == ["ViT-S/16,pool=gap", "ViT-B/16"]
    assert split_values("cifar10,take=5,cifar10,take=50%,seed=1") == [
        "cifar10,take=5", "cifar10,take=50%,seed=1"
    ]  # fmt: skip
    assert read_axes(["model=ViT-S/16", "lr=1,2", "model=ViT-B/16"]) == {
        "model": ["ViT-S/16", "ViT-B/16"],
        "lr": [1, 2],
    }


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("model.position", "none"),
        ("model.rotary", "none"),
        ("then.balance", "none"),
        ("balance", "none"),
        ("augment", "none"),
        ("hold_out", None),
        ("optim.clip", None),
    ],
)
def test_none_is_a_value_where_a_setting_has_it(word: str, value: str | None) -> None:
    assert read_axes([f"{word}=none"]) == {word: [value]}


def test_a_study_without_position_embeddings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Table 8 of the paper begins with it."""
    vary = ("--vary", "model.position=none,learned-1d", "--vary", "balance=none,weights")
    where = ("--steps", "2", "--dry-run", "--out", str(tmp_path / "s"))
    code, said, error = run(capsys, "sweep", *WORDS, *vary, *where)
    assert code == 0, error
    assert "none" in said


def test_a_plan_file(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(
        "base: {data: digits, lr: 'best(1e-3, 3e-3)'}\n"
        "vary:\n  model.depth: [1, 2]\n  pooling: {token: {model.pool: token}, gap: {}}\n"
        "seeds: 2\nmeasures: [fewshot:digits, {data: shapes, shots: [1, 5], name: shapes}]\n"
    )
    plan = make_plan(**read_plan(path))
    assert plan.base == {"data": "digits"}
    assert plan.best == {"lr": [0.001, 0.003]}
    assert plan.seeds == (0, 1)
    assert [each.name for each in plan.measures] == ["fewshot", "shapes"]  # pyright: ignore
    assert len(list(plan.cells())) == 8


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("bas: {}", "unknown key 'bas'; did you mean 'base'"),
        ("base: 3", "base: expected names and values"),
        ("seeds: many", "seeds: expected a number or a list of them, got 'many'"),
        ("measures: fewshot", "measures: expected a list"),
    ],
)
def test_a_plan_file_that_is_wrong(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=said):
        read_plan(path)


def test_the_command_makes_what_the_function_makes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a plan file whose values flags overrule; the table is in four forms."""
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"base": {"steps": 7}, "vary": {"lr": [1e-3, 2e-3]}, "seeds": 3}))
    out = tmp_path / "cli"
    words = ("--steps", "2", "--seeds", "2", "--parallel", "1", "--out", str(out))
    code, said, _ = run(capsys, "sweep", *WORDS, "--plan", str(plan), *words, "--json")
    assert code == 0
    printed = json.loads(said)
    result = sweep(BASE, vary={"lr": [1e-3, 2e-3]}, seeds=2, out=tmp_path / "api", parallel=1)
    assert (out / "table.csv").read_text() == result.to_csv()
    assert [row["top1"] for row in printed["rows"]] == [row["top1"] for row in result.rows]
    assert list(result.table["lr"]) == [1e-3, 1e-3, 2e-3, 2e-3]

    import pyarrow.parquet as parquet

    show = ("sweep", "show", str(out), "--score", "loss", "--out", str(tmp_path / "plots"))
    code, said, _ = run(capsys, *show)
    assert code == 0
    assert "4 of 4 cells done" in said
    rows = parquet.read_table(tmp_path / "plots" / "table.parquet").to_pylist()
    assert [row["loss"] for row in rows] == [row["loss"] for row in result.rows]
    page = (tmp_path / "plots" / "report.html").read_text()
    assert "Paired differences" in page
    assert "vary lr" in page
    assert (tmp_path / "plots" / "plot.svg").exists()
    code, _, error = run(capsys, *show[:-1], str(plan))
    assert (code, error) == (2, f"vitrail: {plan} cannot be made: File exists\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--vary", "optim.lrr=1,2"), "'optim.lrr' is not a setting; did you mean 'optim.lr'"),
        (("--vary", "lr="), "lr has no values, so there is nothing to run"),
        (("--vary", "lr"), "--vary lr: expected NAME=VALUE,VALUE"),
        (("--flops", "10"), "flops=10 is too little for one step"),
        (("--processor-minutes", "1e-12"), "processor_minutes=1e-12 is too little for one step"),
        (("--processor-minutes", "-1"), "processor_minutes must be a number above 0, got -1"),
        (("--steps", "1", "--vary", "data=missing"), "no folder or dataset 'missing'"),
        (("--steps", "1", "--seeds", "x"), "--seeds: expected how many, or a list"),
        (("--steps", "1", "--parallel", "0"), "parallel must be at least 1, got 0"),
        (("--step", "1"), "'step' is not a setting; did you mean 'steps'"),
    ],
)
def test_bad_words_are_one_line_and_write_nothing(
    words: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, error = run(capsys, "sweep", *WORDS, *words, "--out", str(tmp_path / "sweep"))
    assert code == 2
    assert said in error
    assert error.count("\n") == 1
    assert not (tmp_path / "sweep").exists()


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="is not the folder of a sweep; choose another --out"):
        sweep(BASE, out=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_an_estimate_counts_and_writes_nothing(tmp_path: Path) -> None:
    out = tmp_path / "sweep"
    words = {"vary": {"model.depth": [1, 2]}, "seeds": 2, "out": out, "parallel": 1}
    found = estimate_sweep({**BASE, "lr": "best(1e-3,2e-3)"}, **words)
    assert not out.exists()
    assert (found.cells, len(found.runs)) == (4, 2 * (2 + 2))  # two trials and two seeds each
    assert {each.steps for each in found.runs} == {2}
    assert all(each.seconds is not None and each.seconds > 0 for each in found.runs)
    result = sweep({**BASE, "lr": "best(1e-3,2e-3)"}, **words)
    final = [each for each in found.runs if not each.name.startswith("trial")]
    assert [each.flops for each in final] == [row["flops"] for row in result.rows]
    again = estimate_sweep({**BASE, "lr": "best(1e-3,2e-3)"}, **words)
    assert (again.flops, again.seconds) == (0, 0)
    assert all(each.done for each in again.runs)


def test_a_run_that_begins_with_a_probe_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its weights need not be there yet."""
    monkeypatch.setattr(sweep_cost, "_SECONDS", 0.0)
    config = toy(Path(), weights="run:later", tune=TuneConfig(head="probe"))
    assert Speeds(1).time(config).processor > 0


def test_a_budget_of_processor_minutes_is_solved_once(tmp_path: Path) -> None:
    base = {name: value for name, value in BASE.items() if name != "steps"}
    words = {"vary": {"processor_minutes": [1e-3, 2e-3]}, "out": tmp_path, "parallel": 1}
    result = sweep(base, **words)
    (seconds,) = json.loads((tmp_path / "speeds.json").read_text()).values()
    expected = [int(minutes // (seconds * 16 / 60)) for minutes in (1e-3, 2e-3)]
    assert [row["steps"] for row in result.rows] == expected
    assert sweep(base, **words).to_csv() == result.to_csv()


def test_runs_that_no_sweep_made_are_told_apart_by_their_settings(tmp_path: Path) -> None:
    for seed in (0, 1):
        for depth in (1, 2):
            train(
                "digits", model=TINY.replace("depth=1", f"depth={depth}"), steps=2, batch=16,
                seed=seed, out=tmp_path / f"{depth}-{seed}", report=False,
            )  # fmt: skip
    result = show_sweep(tmp_path)
    assert result.axes == ("model",)
    assert [group.n for group in result.grouped()] == [2, 2]
    table = list(csv.DictReader(io.StringIO(result.to_csv())))
    for row in table:
        reached = json.loads((tmp_path / row["run"] / "result.json").read_text())
        assert float(row["top1"]) == reached["top1"]
        assert int(row["flops"]) == reached["flops"]
    with pytest.raises(InputError, match="has no run in it"):
        show_sweep(tmp_path / "1-0" / "model")


def test_several_sweeps_in_one_table(tmp_path: Path) -> None:
    for name, lr in (("a", 1e-3), ("b", 2e-3)):
        sweep(BASE, vary={"lr": [lr]}, out=tmp_path / name, parallel=1, report=False)
    result = show_sweep([tmp_path / "a", tmp_path / "b"])
    assert result.axes == ("sweep", "lr")
    assert [(row["sweep"], row["lr"]) for row in result.rows] == [("a", 1e-3), ("b", 2e-3)]


def test_groups_and_pairs_by_hand() -> None:
    """Against scipy's t intervals."""
    from scipy import stats

    scores = {(1, 0): 0.1, (1, 1): 0.3, (1, 2): 0.2, (2, 0): 0.3, (2, 1): 0.6, (2, 2): 0.3}
    rows = tuple(
        {"depth": depth, "seed": seed, "top1": value, "state": "done", "error": None}
        for (depth, seed), value in scores.items()
    )
    result = SweepResult(folder=Path(), axes=("depth",), score="top1", rows=rows)
    one, two = result.grouped()
    assert (one.n, one.mean, two.mean) == (3, pytest.approx(0.2), pytest.approx(0.4))
    low, high = stats.t.interval(0.95, 2, loc=0.2, scale=stats.sem([0.1, 0.3, 0.2]))
    assert low < 0  # where no accuracy is
    assert (one.low, one.high, one.std) == pytest.approx((0, high, 0.1))
    (pair,) = result.differences("depth")
    deltas = [0.2, 0.3, 0.1]
    low, high = stats.t.interval(0.95, 2, loc=0.2, scale=stats.sem(deltas))
    assert (pair.mean, pair.low, pair.high, pair.n) == pytest.approx((0.2, low, high, 3))


def test_what_is_left_is_told_by_operations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr("vitrail.studies.engine.live_table.time.monotonic", lambda: clock[0])
    costs = {
        "before": RunCost("before", "m", 10, 999, done=True),
        "small": RunCost("small", "m", 10, 100),
        "large": RunCost("large", "m", 10, 300),
    }
    progress = SweepProgress(costs, Records(tmp_path), live=False)
    assert progress.seconds_left({}) is None
    clock[0] = 110.0
    progress.tell("small", None)
    assert progress.seconds_left({}) == pytest.approx(30)  # ten seconds for a quarter
    assert progress.seconds_left({"large": RunState("running", 5)}) == pytest.approx(6)
    assert progress.count_ended() == 2
    metrics = tmp_path / "runs" / "large" / "metrics.jsonl"
    metrics.parent.mkdir(parents=True)
    metrics.write_text('{"step": 3}\n{"step": 4, "val/top1": 0.5}\n{"step": 6')
    assert progress.read("large") == RunState("running", 4, "top1 50.00%")
    assert progress.table({"large": progress.read("large")}).row_count == 2
