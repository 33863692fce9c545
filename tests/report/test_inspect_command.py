"""`vitrail inspect` as a user meets it: a report, or one line that says what is possible."""

import json
import os
import re
from inspect import signature
from pathlib import Path

import pytest

import vitrail
from tests.cases import slow
from tests.commands import run
from tests.material import ROOT
from tests.report.tiny_models import BIT, TINY, save_images, save_model, save_set
from vitrail.cli.inspect import inspect
from vitrail.plotting.captions import CAPTIONS
from vitrail.report import leave_report
from vitrail.training.run_data import open_run_data

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Keep a ViT, a BiT and an image."""
    place = tmp_path_factory.mktemp("inspect")
    save_model(place / "vit")
    save_model(place / "bit", BIT)
    save_images(place, "a.png")
    (place / "broken.jpg").write_bytes(b"\xff\xd8\xff\xe0 no more")
    save_set(place / "set", count=2)
    return place


def test_a_report_with_json(place: Path, tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "out"
    arguments = ("--layers", "0", "-1", "--out", str(out), "--json")
    code, said, err = run(capsys, "inspect", str(place / "vit"), str(place / "a.png"), *arguments)
    assert (code, err) == (0, "")
    result = json.loads(said)
    assert result["report"] == str(out / "report.html")
    assert result["numbers"] == str(out / "report.json")
    names = {Path(figure).stem for figure in result["figures"]}
    assert {"overlays-0", "heads-0", "lens-0", "distances", "filters", "positions"} <= names
    assert all(Path(path).stat().st_size > 500 for path in result["figures"])
    assert json.loads((out / "report.json").read_text())["sections"][0]["layers"] == [0, 1]


@pytest.mark.parametrize("kind", ["folder", slow("list")])
def test_photos_without_labels_are_inspected(
    kind: str, place: Path, tmp_path: Path, capsys: Capture
) -> None:
    """All of them, and no label is claimed."""
    flat, out = tmp_path / "flat", tmp_path / "out"
    flat.mkdir()
    save_images(flat, *(f"{number}.png" for number in range(12)))
    (tmp_path / "list.csv").write_text("path\n" + "".join(f"flat/{n}.png\n" for n in range(12)))
    data = str(flat) if kind == "folder" else f"csv:{tmp_path / 'list.csv'}"
    words = ("inspect", str(place / "vit"), "--data", data, "--out", str(out), "--json")
    code, said, err = run(capsys, *words)
    assert (code, err) == (0, ""), said
    sections = json.loads((out / "report.json").read_text())["sections"]
    assert [each["labels"] for each in sections if "top" in each] == [None] * 4
    assert "12 images" in (out / "report.html").read_text()
    assert "Labeled" not in (out / "report.html").read_text()


def test_a_bit_is_reported_as_far_as_it_goes(place: Path, tmp_path: Path, capsys: Capture) -> None:
    """It stands beside a ViT, on a data set, with what both have."""
    data = ("--data", str(place / "set"), "--split", "all", "--against", str(place / "vit"))
    code, said, err = run(capsys, "inspect", str(place / "bit"), *data, "--out", str(tmp_path))
    assert (code, err) == (0, "")
    page = f"{tmp_path / 'report.html'}: "
    assert said.startswith(page)
    names = {path.stem for path in (tmp_path / "figures").iterdir()}
    both = {"filters", "neighbors", "similarity", "distances"}
    assert names == {*(f"image-{n}" for n in range(4)), *both}


def test_names_that_are_not_utf8_are_escaped_once(place: Path, tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path / "photos")
    for name in (b"caf\xe9", b"b"):
        os.makedirs(os.path.join(folder, name))
        file = os.path.join(folder, name, b"\xff.png")
        Path(os.fsdecode(file)).write_bytes((place / "a.png").read_bytes())
    report = vitrail.inspect(str(place / "vit"), data=tmp_path / "photos", split="all")
    assert [each.title for each in report.sections[:2]] == [r"b/\xff.png", r"caf\xe9/\xff.png"]
    page = report.html()
    assert r"<h2>caf\xe9/\xff.png</h2>" in page
    assert r"Labeled caf\xe9." in page
    assert "\\\\" not in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["vit"], "no images to inspect; give image files, or --data"),
        (
            ["vit", "a.png", "--split", "test"],
            "--split requires --data",
        ),
        (["vit", "none.png"], "none.png: No such file or directory"),
        (["vit", "broken.jpg"], "broken.jpg: "),
        (["vit", "set"], "set is a folder; give images, or --data "),
        (["vit", "a.png", "--layers", "2"], "has no attention layer 2; it has 2: 0 to 1"),
        (["bit", "a.png", "--layers", "0"], "has no attention heads to draw"),
        (["vit", "a.png", "--image", "18"], "does not split into 4x4 patches"),
        (["vit", "--data", "nowhere"], "no folder or dataset"),
        (["vit", "--data", "digits", "--count", "0"], "count must be at least 1, got 0"),
        (["vit", "a.png", "--against", "none"], "none"),
        (["none", "a.png"], "none"),
        (["vit", "x" * 256], "File name too long"),
        (["x" * 256, "a.png"], "xxx"),
        (["vit", "a.png", "--device", "tpu"], "unknown device 'tpu'"),
    ],
)
def test_bad_input_gets_one_line_and_leaves_nothing(
    place: Path,
    tmp_path: Path,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(place)
    out = tmp_path / "out"
    code, said, err = run(capsys, "inspect", *arguments, "--out", str(out))
    assert (code, said) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert not out.exists()


def test_an_empty_out_is_not_the_current_folder(
    place: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = (str(place / "vit"), str(place / "a.png"), "--out", "")
    assert run(capsys, "inspect", *arguments)[0] == 2
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_way_is_named(place: Path, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "out").write_text("mine")
    arguments = (str(place / "vit"), str(place / "a.png"), "--out", str(tmp_path / "out"))
    code, _, err = run(capsys, "inspect", *arguments)
    assert code == 2
    assert "out is a file; choose another name" in err
    assert (tmp_path / "out").read_text() == "mine"


def test_training_leaves_a_report_once(tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "run"
    model = ("--model", TINY.replace("@16", "@8"), "--batch", "32", "--steps", "2")
    command = ("train", "digits", *model, "--out", str(out), "--loggers", "", "--json")
    code, said, err = run(capsys, *command)
    assert code == 0, err
    assert json.loads(said)["steps"] == 2
    page = out / "report.html"
    before = page.read_bytes()
    assert b"Confusion matrix of 10 classes" in before
    assert leave_report(out) == page
    names = open_run_data(out).name, open_run_data(out, "train").name
    assert names == ("digits/test", "digits/train")
    page.write_text("seen")
    assert run(capsys, *command)[0] == 0
    assert page.read_text() == "seen"
    # Its own images do for a look at it, too.
    code, _, err = run(capsys, "inspect", str(out), "--count", "8", "--out", str(tmp_path / "look"))
    assert code == 0, err
    assert (tmp_path / "look" / "figures" / "curves.svg").exists()


def test_no_report_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "result.json").write_text("{}")
    assert leave_report(tmp_path) is None
    (line,) = caplog.messages
    assert "no report for " in line
    assert "\n" not in line


def test_the_page_of_the_docs_knows_all_options_and_has_its_images() -> None:
    docs = ROOT / "docs"
    text = (docs / "inspection.md").read_text(encoding="utf-8")
    options = set(signature(inspect).parameters) - {"model", "images", "out"}
    assert all(f"`--{option}" in text for option in options)
    images = re.findall(r"!\[(.+?)\]\((.+?)\)", text)
    assert len(images) == 7
    assert all((docs / path).stat().st_size < 150_000 for _, path in images)
    drawn = {f"draw_{name}" for name in CAPTIONS} - {"draw_images", "draw_study", "draw_pareto"}
    assert all(name in text for name in drawn)
