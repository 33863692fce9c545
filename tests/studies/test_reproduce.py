"""The paper's studies from the command, at scale smoke; killed, they end with the same tables."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from vitrail.cli import main
from vitrail.studies.study import SCALES, Measurements
from vitrail.studies.study_list import NAMES, load_study

ALL = [sys.executable, "-m", "vitrail", "reproduce", "all", "--scale", "smoke", "--json"]


@pytest.mark.parametrize("name", NAMES)
def test_a_study_says_all_that_its_page_shows(name: str) -> None:
    study = load_study(name)
    assert study.name == name
    assert set(study.settings) == set(SCALES)
    assert all(claim.text and claim.paper for claim in study.claims)
    assert study.published.rows


def assert_reported(found: dict[str, Any], folder: Path) -> None:
    """Hold a study to its runs, which all ended, and its page to the verdicts."""
    errors = {row.get("error") for row in found["rows"] if row["state"] != "done"}
    assert not errors, (found["study"], errors)
    page = (folder / found["report"]).read_text(encoding="utf-8")
    assert found["claims"]
    assert all(claim["verdict"] in page for claim in found["claims"])


def test_a_study_is_made_and_shown_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        main(["reproduce", "table8", "--scale", "smoke", "--json"])
        found = json.loads(capsys.readouterr().out)
        assert_reported(found, tmp_path)
        assert len(found["rows"]) == 5


@pytest.mark.slow
def test_all_studies_from_an_empty_folder_and_after_a_kill(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    whole.mkdir()
    killed.mkdir()
    done = subprocess.run(ALL, cwd=whole, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)["studies"]
    assert [each["study"] for each in found] == list(NAMES)
    for each in found:
        assert_reported(each, whole)
    kill_in_the_midst(killed, after=len(list(whole.glob("studies/*/smoke/records/*"))) // 3)
    subprocess.run(ALL, cwd=killed, capture_output=True, check=True)
    for name in NAMES:
        table = Path("studies", name, "smoke", "table.csv")
        assert (whole / table).read_bytes() == (killed / table).read_bytes(), name


def kill_in_the_midst(folder: Path, after: int) -> None:
    """Start all studies, and end them without a word when some runs are done."""
    process = subprocess.Popen(
        ALL, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        while len(list(folder.glob("studies/*/smoke/records/*.json"))) < after:
            assert process.poll() is None, "it ended before it could be killed"
            time.sleep(0.05)
    finally:
        os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not (folder / "studies" / NAMES[-1]).exists()


def test_the_list_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    main(["reproduce", "--json"])
    listed = json.loads(capsys.readouterr().out)["studies"]
    assert [each["study"] for each in listed] == list(NAMES)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["figur9"], "unknown study 'figur9'; did you mean 'figure9'"),
        (["figure9", "--scale", "smok"], "smok"),
        (["figure9", "--scale", "paper"], "figure9 at scale paper needs --data: JFT-300M"),
        (["figure9", "--scale", "gpu"], "figure9 at scale gpu needs --data, such as imagenet:DIR"),
        (["all", "--scale", "gpu"], "figure3 at scale gpu needs --data, such as imagenet:DIR"),
        (["figure12", "--data", "digits"], "figure12 at scale desk has no use for --data"),
        (["figure9", "--weights", "runs/a"], "figure9 at scale desk has no use for --weights"),
        (["all", "--data", "digits"], "--data and --weights require a single study"),
        (["--data", "digits"], "--data and --weights need a study"),
        (["--pages", "nowhere"], "nowhere has no tables of studies"),
        (["figure9", "--pages", __file__], "test_reproduce.py is a file; choose another name"),
        (["figure9", "--out", f"{__file__}/x"], "test_reproduce.py is not a folder"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(["reproduce", *arguments])
    error = capsys.readouterr().err
    assert stop.value.code == 2
    assert said in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["figure9", "figure12"])
def test_a_folder_of_other_cells_is_refused_as_it_is(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / name / "desk"
    folder.mkdir(parents=True)
    measured = isinstance(load_study(name).settings["desk"].plan, Measurements)
    plan = folder / ("cases.json" if measured else "sweep.json")
    other = {"base": {"data": "digits"}, "axes": {}, "seeds": [0], "best": {}, "measures": []}
    plan.write_text(json.dumps(other))
    with pytest.raises(SystemExit):
        main(["reproduce", name, "--out", str(tmp_path)])
    error = capsys.readouterr().err
    assert "choose another --out" in error
    assert error.count("\n") == 1
    assert list(folder.iterdir()) == [plan]
