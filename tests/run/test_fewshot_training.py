"""Few-shot accuracy while a run trains: what `vitrail fewshot` says of the same weights."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.runs import read_repeatable, train
from vitrail.config import InputError
from vitrail.evaluation.probes.fewshot import fewshot
from vitrail.report.run_sections import read_curves, read_run
from vitrail.signals import Stopped
from vitrail.studies.engine.sweep import sweep
from vitrail.training.loop import Trainer

TINY = "ViT/4@8,depth=1,width=16,heads=2,mlp=32,channels=1"
WORDS: dict[str, Any] = {"model": TINY, "batch": 16, "steps": 12}
SETTINGS = {
    "ema": 0.8,
    "eval_every": "6 steps",
    "save_every": "5 steps",
    "fewshot": "digits,per_class=20",
    "fewshot.shots": (1, 5),
    "fewshot.every": "4 steps",
}


def rows(folder: Path) -> list[dict[str, float]]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if "fewshot/5" in row]


def test_it_is_what_the_command_says_of_the_averaged_weights(tmp_path: Path) -> None:
    run = train("digits", **WORDS, settings=SETTINGS, out=tmp_path / "run")
    found = rows(tmp_path / "run")
    assert [row["step"] for row in found] == [4, 8, 12]
    said = fewshot(tmp_path / "run", "digits,per_class=20", shots=(1, 5), seeds=3).to_dict()
    for shots in ("1", "5"):
        assert run.fewshot is not None
        expected = pytest.approx(said["shots"][shots]["mean"], abs=1e-12)
        assert run.fewshot[shots] == found[-1][f"fewshot/{shots}"] == expected
    assert read_run(tmp_path / "run").result["fewshot"] == run.fewshot  # pyright: ignore
    assert list(read_curves(tmp_path / "run")["fewshot/5"][0]) == [4, 8, 12]


def test_it_changes_nothing_in_what_a_run_learns(tmp_path: Path) -> None:
    plain = {name: value for name, value in SETTINGS.items() if not name.startswith("fewshot")}
    for name, settings in (("with", SETTINGS), ("without", plain)):
        train("digits", **WORDS, settings=settings, out=tmp_path / name)
    weights = [
        (tmp_path / name / "model" / "model.safetensors").read_bytes()
        for name in ("with", "without")
    ]
    assert weights[0] == weights[1]


@pytest.mark.parametrize("stop", [4, 8, 11])
def test_a_stopped_run_ends_with_the_same_metrics(
    stop: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train("digits", **WORDS, settings=SETTINGS, out=tmp_path / "whole")
    real = Trainer.launch

    def launch(self: Trainer, number: int, *args: Any) -> Any:
        if number == stop:
            os.kill(os.getpid(), signal.SIGTERM)
        return real(self, number, *args)

    monkeypatch.setattr(Trainer, "launch", launch)
    with pytest.raises(Stopped):
        train("digits", **WORDS, settings=SETTINGS, out=tmp_path / "stopped")
    monkeypatch.undo()
    train("digits", **WORDS, settings=SETTINGS, out=tmp_path / "stopped")
    for name in ("metrics.jsonl", "result.json"):
        whole, stopped = (read_repeatable(tmp_path / run / name) for run in ("whole", "stopped"))
        assert whole == stopped, name


def test_without_labels_and_with_each_evaluation(tmp_path: Path) -> None:
    """Of an encoder that learns without labels, at the evaluations' interval."""
    settings = {"fewshot": "digits", "eval_every": "6 steps", "mim.decoder.depth": 1}
    mae = {"model": TINY, "task": "mae", "batch": 16, "steps": 12}
    run = train("digits", **mae, settings=settings, out=tmp_path / "run")
    assert [row["step"] for row in rows(tmp_path / "run")] == [6, 12]
    said = fewshot(tmp_path / "run", "digits", shots=(5,), seeds=3).to_dict()
    assert run.fewshot == {"5": pytest.approx(said["shots"]["5"]["mean"], abs=1e-12)}


def test_it_is_a_column_of_a_sweep(tmp_path: Path) -> None:
    base = {"data": "digits", **WORDS, "fewshot": "digits,per_class=20"}
    result = sweep(base, vary={"fewshot.shots": [[1], [5]]}, out=tmp_path, parallel=1)
    assert [row.get("fewshot_1") is None for row in result.rows] == [False, True]
    assert [row.get("fewshot_5") is None for row in result.rows] == [True, False]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"fewshot.shots": (3,)}, "fewshot.shots requires fewshot.data"),
        ({"fewshot": "digits", "fewshot.shots": ()}, "fewshot.shots: expected one or more"),
        ({"fewshot": "digits", "fewshot.shots": (0,)}, "fewshot.shots"),
        ({"fewshot": "digits", "fewshot.shots": (999,)}, "fewer than 999 shots"),
        ({"fewshot": "nowhere"}, "no folder or dataset 'nowhere'"),
    ],
)
def test_bad_settings_are_refused_before_anything_is_written(
    settings: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=said):
        train("digits", **WORDS, settings=settings, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
