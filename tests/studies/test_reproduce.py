"""The paper's studies run from the command, at scale smoke."""

import json
from pathlib import Path

import pytest

from vitrail.cli import main
from vitrail.studies.reproduce import NAMES, StudyResult, load_study, reproduce
from vitrail.studies.study import SCALES

QUICK = ("table8", "figure12", "inspection")


@pytest.mark.parametrize("name", NAMES)
def test_a_study_says_all_that_its_page_shows(name: str) -> None:
    study = load_study(name)
    assert study.name == name
    assert set(study.settings) == set(SCALES)
    assert study.claims
    assert study.published.rows


@pytest.mark.parametrize("name", QUICK)
def test_a_study_ends_with_the_same_table_again(name: str, tmp_path: Path) -> None:
    found = [reproduce(name, scale="smoke", out=tmp_path / part) for part in ("one", "two")]
    tables = [(tmp_path / part / name / "smoke" / "table.csv") for part in ("one", "two")]
    assert tables[0].read_bytes() == tables[1].read_bytes()
    first = found[0]
    assert isinstance(first, StudyResult)
    assert all(row["state"] == "done" for row in first.rows), first.rows
    page = first.report.read_text()
    assert all(judged.finding.verdict in page for judged in first.claims)


def test_the_list_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    main(["reproduce", "--json"])
    listed = json.loads(capsys.readouterr().out)["studies"]
    assert [each["study"] for each in listed] == list(NAMES)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["figur9"], "unknown study 'figur9'; did you mean 'figure9'"),
        (["figure9", "--scale", "paper"], "figure9 at scale paper needs --data: JFT-300M"),
        (["figure12", "--data", "digits"], "figure12 at scale desk has no use for --data"),
        (["all", "--data", "digits"], "--data and --weights are of one study"),
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
