"""Pages of studies are made of the tables beside them, and say what failed first."""

import json
import shutil
from pathlib import Path

import pytest

from tests.material import ROOT
from vitrail.cli import main
from vitrail.studies.curves import group_table, groups
from vitrail.studies.study_list import load_study
from vitrail.studies.study_pages import keep_table, write_pages
from vitrail.studies.study_result import judge_table, table_from_csv, table_to_csv

KEPT = ROOT / "docs" / "studies"


def test_the_pages_in_docs_are_made_of_the_tables_beside_them(tmp_path: Path) -> None:
    for path in [*KEPT.glob("*.csv"), KEPT / "runs.json"]:
        shutil.copy(path, tmp_path)
    main(["reproduce", "--pages", str(tmp_path)])
    made = sorted(path.name for path in tmp_path.iterdir())
    assert made == sorted(path.name for path in KEPT.iterdir())
    for page in tmp_path.glob("*.md"):
        assert page.read_bytes() == (KEPT / page.name).read_bytes(), page.name


def test_a_table_is_read_as_it_was_written() -> None:
    rows = [
        {"pool": "gap", "lr": 1e-3, "seed": 0, "top1": 0.1 + 0.2, "error": None},
        {"pool": "token, big", "lr": 3e-05, "seed": 1, "top1": None, "error": 'a "b"\nc'},
    ]
    assert table_from_csv(table_to_csv(rows)) == rows


def test_what_failed_is_said_first_and_no_folder_is_told(tmp_path: Path) -> None:
    shapes = {"base": 0.3, "depth doubled": 0.4, "width doubled": 0.5, "patch halved": 0.3}
    noise = (0.0, 0.001, -0.001)
    rows = [
        {"shape": shape, "seed": seed, "fewshot_10": score + (1 + place) * noise[seed],
         "top1": score, "parameters": 1000, "flops": 1e12 * (1 + place), "state": "done"}
        for place, (shape, score) in enumerate(shapes.items()) for seed in range(3)
    ]  # fmt: skip
    study = load_study("figure8")
    data = "cifar10:/home/me/cifar,take=5000"
    result = judge_table(study, "desk", data, rows, hours=0.5, report=tmp_path / "report.html")
    assert [each.finding.verdict for each in result.claims] == ["holds", "fails", "undecided"]
    keep_table(result, tmp_path)
    found = write_pages(tmp_path)
    assert found.studies[0].claims == result.claims
    index, page = ((tmp_path / name).read_text() for name in ("index.md", "figure8.md"))
    for text in (index, page):
        places = [text.index(verdict) for verdict in ("✕ fails", "? undecided", "✓ holds")]
        assert places == sorted(places)
        assert "/home/me" not in text
    assert "vitrail reproduce figure8 --scale desk --data cifar10:DIR,take=5000" in page
    assert "30.0 minutes" in index
    assert (tmp_path / "figure8.svg").read_text().startswith("<?xml")


def test_a_study_that_is_kept_again_replaces_its_table(tmp_path: Path) -> None:
    study = load_study("figure8")
    for scale in ("smoke", "desk"):
        row = {"shape": "base", "seed": 0, "fewshot_10": 0.3, "flops": 1e12, "state": "done"}
        keep_table(judge_table(study, scale, "digits", [row], 0.1, tmp_path), tmp_path)
    [result] = write_pages(tmp_path).studies
    assert (result.scale, result.hours) == ("desk", pytest.approx(0.1))


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ("digits", "digits"),
        ("shapes:medium,count=40", "shapes:medium,count=40"),
        ("cifar10:/home/me/cifar", "cifar10:DIR"),
        ("/home/me/photos/,take=10%", "photos,take=10%"),
    ],
)
def test_data_is_told_without_its_place(data: str, told: str, tmp_path: Path) -> None:
    keep_table(judge_table(load_study("figure8"), "desk", data, [], 0.1, tmp_path), tmp_path)
    assert json.loads((tmp_path / "runs.json").read_text())["figure8"]["data"] == told


def test_a_number_is_not_a_percentage_because_it_is_small() -> None:
    rows = [
        {"size": 384, "seed": seed, "images_per_second": 0.8, "top1": share, "batch": 1}
        for seed, share in enumerate((0.5, 0.7))
    ]
    names = {"images_per_second": "images/s", "top1": "top-1", "batch": "batch"}
    table = group_table(rows, ("size",), names, ("images_per_second", "batch"))
    assert [list(row) for row in table.rows] == [["384", "0.8", "60.0 ± 14.1", "1", "2"]]


def test_an_interval_of_accuracies_stays_within_all_of_them() -> None:
    """Two seeds of 10 and 40 %: Student's t alone says -166 to 216 %."""
    rows = [{"by": "a", "seed": seed, "top1": x, "loss": x} for seed, x in enumerate((0.1, 0.4))]
    assert groups(rows, y="top1", by="by")["a"] == (0.25, 0.0, 1.0)
    assert groups(rows, y="loss", by="by")["a"][1] < 0
