"""Grouped hold-outs and k-fold cross-validation of whole runs, and finished runs that go on."""

import json
import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from scipy.stats import binomtest

from tests.commands import run
from tests.runs import train
from vitrail.config import InputError
from vitrail.recipes.folds import FoldsResult
from vitrail.training.checkpoints.run_folder import MODEL
from vitrail.training.run_data import open_run_data
from vitrail.weights.model_folder import load_folder

MODEL_NAME = "ViT/4@8,depth=1,width=16,heads=2,mlp=32"
WORDS: dict[str, Any] = {"model": MODEL_NAME, "batch": 4, "loggers": ()}


@pytest.fixture
def patients(tmp_path: Path) -> Path:
    """Write a list of 24 images: two classes, three images of each of eight patients."""
    rng, rows = np.random.default_rng(0), ["path,label,patient"]
    for number in range(24):
        pixels = rng.integers(256, size=(8, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
        rows.append(f"{number}.png,{'ab'[number // 3 % 2]},p{number // 3}")
    (tmp_path / "list.csv").write_text("\n".join(rows) + "\n")
    return tmp_path / "list.csv"


def patients_of(run: Path, split: str) -> set[int]:
    """Name the patients of a run's split, by their images' numbers."""
    dataset = open_run_data(run, split)
    return {int(Path(dataset.where(i)).stem) // 3 for i in range(len(dataset))}


def test_a_run_holds_out_whole_groups(patients: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    settings = {"hold_out": 0.25}
    found = train(str(patients), out=out, steps=2, group="patient", settings=settings, **WORDS)
    held, rest = patients_of(out, "val"), patients_of(out, "train")
    assert len(held) == 2
    assert len({patient % 2 for patient in held}) == 2  # one of each class
    assert held | rest == set(range(8))
    assert not held & rest
    assert found.images == 6


def test_the_next_commands_work_as_they_are(
    patients: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["train", f"csv:{patients.name}", "--model", MODEL_NAME, "--steps", "1"]
    command += ["--no-report", "--out", "my run", "--loggers", ""]
    assert run(capsys, *command)[0] == 0
    code, said, err = run(capsys, *command)  # it is finished, and says so again
    assert code == 0, err
    found = [line[9:] for line in said.splitlines() if line[:8].strip() in ("next", "")]
    assert re.fullmatch(r"vitrail predict 'my run' \d+\.png", found[1])
    assert int(Path(found[1].split()[-1]).stem) // 3 in patients_of(Path("my run"), "val")
    assert found[0] == "vitrail evaluate 'my run' csv:list.csv"
    for line in found[:2]:
        assert run(capsys, *shlex.split(line)[1:])[0] == 0


def test_without_splits_a_tenth_of_the_groups_is_held_out(patients: Path, tmp_path: Path) -> None:
    train(str(patients), out=tmp_path / "run", steps=1, group="patient", **WORDS)
    held, rest = (patients_of(tmp_path / "run", split) for split in ("val", "train"))
    assert held
    assert not held & rest
    assert held | rest == set(range(8))


def test_torn_groups_are_told(
    patients: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lines = patients.read_text().splitlines()
    split = ["train"] * 22 + ["val"] * 2
    rows = [f"{line},{part}" for line, part in zip(lines[1:], split, strict=True)]
    patients.write_text("\n".join([f"{lines[0]},split", *rows]) + "\n")
    train(str(patients), out=tmp_path / "run", steps=1, group="patient", **WORDS)
    log = (tmp_path / "run" / "log.txt").read_text()
    assert "groups   8 of training, 1 held out; 1 are in both splits: 'p7'" in log


def test_every_image_is_held_out_once(patients: Path, tmp_path: Path) -> None:
    out = tmp_path / "folds"
    found = train(str(patients), out=out, steps=2, folds=4, group="patient", **WORDS)
    assert isinstance(found, FoldsResult)
    held = [patients_of(out / f"fold-{fold}", "val") for fold in range(1, 5)]
    assert sorted(each for fold in held for each in fold) == list(range(8))
    assert found.images == 24
    right = sum(round((run.top1 or 0) * run.images) for run in found.runs)
    assert found.top1 == pytest.approx(right / 24)
    peer, mean = binomtest(right, 24).proportion_ci(method="wilson"), found.mean()
    assert mean.value == found.top1
    assert 0 <= mean.low <= peer.low < peer.high <= mean.high <= 1  # images of a patient are alike
    plain = replace(found, grouped=False).mean()
    assert tuple(plain) == pytest.approx((right / 24, peer.low, peer.high))
    again = train(str(patients), out=out, steps=2, folds=4, group="patient", **WORDS)
    assert again.to_dict() == found.to_dict()  # from what is there


def test_folds_without_a_folder_are_resumed(
    patients: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    words: Any = {"steps": 1, "folds": 2, **WORDS}
    first = train(str(patients), **words)
    shutil.rmtree(first.folder / "fold-2")  # as if it had been stopped before
    again = train(str(patients), **words)
    assert (again.folder, again.top1, again.loss) == (first.folder, first.top1, first.loss)
    assert train(str(patients), **words).folder != first.folder


def test_a_finished_run_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "run"
    words: dict[str, Any] = {
        "model": f"{MODEL_NAME},channels=1",
        "batch": 64,
        "loggers": (),
        "log_every": 1,
    }
    first = train("digits", out=out, steps=4, **words)
    weights = load_folder(out / MODEL).tensors["head.output.weight"]
    more = train("", out=out, more="6 steps")
    assert (first.steps, more.steps) == (4, 10)
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    rates = {row["step"]: row["lr"] for row in rows if "lr" in row}
    alone = train("digits", out=tmp_path / "alone", steps=6, **words)
    rows = [json.loads(line) for line in (alone.folder / "metrics.jsonl").read_text().splitlines()]
    again = {row["step"]: row["lr"] for row in rows if "lr" in row}
    assert [rates[step] for step in range(5, 11)] == [again[step] for step in range(1, 7)]
    assert not load_folder(out / MODEL).tensors["head.output.weight"].equal(weights)
    # Its plain command shows the result, as of any finished run.
    assert train("digits", out=out, steps=4, **words).steps == 10


def test_more_of_a_stopped_run_resumes_it(tmp_path: Path) -> None:
    """What a kill leaves behind in the middle of it: no result, and a checkpoint on the way."""
    out = tmp_path / "run"
    words: dict[str, Any] = {"model": f"{MODEL_NAME},channels=1", "batch": 64, "loggers": ()}
    train("digits", out=out, steps=2, **words)
    whole = train("", out=out, more="4 steps", settings={"save_every": "2 steps"})
    (out / "result.json").unlink()
    newest = max((out / "checkpoints").iterdir(), key=lambda path: path.name)
    for path in sorted(newest.rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    newest.rmdir()
    assert train("", out=out, more="4 steps", settings={"save_every": "2 steps"}).loss == whole.loss


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--more", "5 epochs"], "--more needs --out"),
        (["--more", "5 epochs", "--out", "none"], "continues a finished run, and none holds none"),
        (["--group", "(", "--out", "bad"], "not a regular expression"),
        (["--group", "no such name", "--out", "bad"], "does not match"),
        (["--folds", "1", "--out", "bad"], "folds must be 0 (none) or at least 2"),
        (["--folds", "3", "--fold", "4", "--out", "bad"], "fold must be at most folds, 3, got 4"),
        (["--folds", "3", "--hold-out", "0.1", "--out", "bad"], "folds is not used with hold_out"),
        (["--folds", "30", "--group", "patient", "--out", "bad"], "there are only 8 groups"),
    ],
)
def test_bad_flags_are_refused(
    flags: list[str],
    said: str,
    patients: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(patients.parent)
    before = sorted(path.name for path in patients.parent.iterdir())
    code, out, err = run(capsys, "train", str(patients), "--model", MODEL_NAME, *flags)
    assert code == 2
    assert said in err
    assert err.count("\n") == 1
    assert not out
    left = sorted(path.name for path in patients.parent.iterdir())
    assert [name for name in left if name not in before] in ([], ["bad"])
    bad = patients.parent / "bad"
    assert not bad.exists() or not [path for path in bad.rglob("*") if path.is_file()]


def test_an_unfinished_run_gets_no_more(tmp_path: Path) -> None:
    out = tmp_path / "run"
    words: dict[str, Any] = {"model": f"{MODEL_NAME},channels=1", "batch": 64, "loggers": ()}
    train("digits", out=out, steps=2, **words)
    (out / "result.json").unlink()
    with pytest.raises(InputError, match="is not finished; run its command again without --more"):
        train("", out=out, more="1 epoch")
