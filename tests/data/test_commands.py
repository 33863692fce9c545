"""`vitrail data …` as a user meets it: tables, JSON, the list of bad files, sheets, errors."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.commands import run
from tests.data.sets import encode, photo
from vitrail.data.contact_sheet import ContactSheet
from vitrail.data.datasets.open import open_data
from vitrail.data.datasets.unreadable_list import UNREADABLE_LIST, read_unreadable_list


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make two classes with a good, a truncated, a foreign and a doubled image."""
    root = tmp_path / "photos"
    for split in ("train", "val"):
        for number, name in enumerate(("cat", "dog")):
            (root / split / name).mkdir(parents=True)
            for seed in range(3):
                image = encode(photo(100 * number + seed + 10 * (split == "val")))
                (root / split / name / f"{seed}.png").write_bytes(image)
    (root / "train/cat/cut.png").write_bytes(encode(photo(7))[:250])
    (root / "train/dog/page.jpg").write_text("<html>not found</html>")
    (root / "val/dog/copy.png").write_bytes((root / "train/dog/1.png").read_bytes())
    return root


def test_check_as_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "data", "check", str(folder), "--json")
    found = json.loads(out)
    assert (code, err) == (0, "")
    assert found["images"] == 15
    assert found["splits"] == {"train": 6, "val": 7}
    assert found["classes"]["dog"] == {"train": 3, "val": 4}
    paths = {bad["path"]: bad["kind"] for bad in found["bad"]}
    assert paths == {"train/cat/cut.png": "truncated", "train/dog/page.jpg": "not an image"}
    assert found["leaks"] == [["train: train/dog/1.png", "val: val/dog/copy.png"]]
    assert not (folder / UNREADABLE_LIST).exists()


def test_check_as_a_table(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "data", "check", str(folder))
    assert code == 0
    assert "15 files: 13 good, 2 unreadable: 1 truncated, 1 not an image" in out
    assert "the same image in several splits: 1" in out
    assert "unreadable: train/cat/cut.png: truncated" in out


@pytest.mark.parametrize("label", ["a[/b]", "hen[red]", ":cat:", "two\x1b[2Jlines"])
def test_check_shows_class_names_as_they_are(
    label: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = folder / "table.csv"
    table.write_text(f"path,label\ntrain/cat/0.png,{label}\ntrain/dog/0.png,other\n")
    code, out, err = run(capsys, "data", "check", f"csv:{table}")
    assert (code, err) == (0, "")
    (line,) = (line for line in out.splitlines() if line.strip().startswith(label[:3]))
    assert line.split()[0] == label.replace("\x1b", r"\x1b")


def test_fix_writes_the_list_that_is_then_skipped(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    table = tmp_path / "bad.tsv"
    for _ in range(2):  # a second time finds the same, although the set now skips them
        code, out, _ = run(capsys, "data", "check", str(folder), "--fix", "--out", str(table))
        assert code == 0
        assert "2 files that training now skips" in out
        assert len(open_data(str(folder), split="train")) == 6  # type: ignore[arg-type]
    lines = table.read_text().splitlines()
    assert lines[0] == "split\tpath\treason\tkind"
    assert [line.split("\t")[1] for line in lines[1:]] == [
        "train/cat/cut.png",
        "train/dog/page.jpg",
        "val/dog/copy.png",
    ]
    assert lines[3].split("\t")[3] == "the same image in several splits"
    after = {path: path.read_bytes() for path in before}
    assert before == after  # nothing was moved or changed


def test_fix_keeps_what_another_list_of_the_folder_found(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lists that lie in one folder share its list of bad files."""
    paths = {"one": ["train/cat/cut.png", "train/cat/0.png"], "two": ["train/dog/0.png"]}
    for name, files in paths.items():
        rows = "".join(f"{file},cat\n" for file in files)
        (folder / f"{name}.csv").write_text(f"path,label\n{rows}")
        assert run(capsys, "data", "check", f"csv:{folder / name}.csv", "--fix")[0] == 0
    assert set(read_unreadable_list(folder)) == {"train/cat/cut.png"}
    (folder / "train/cat/cut.png").unlink()
    run(capsys, "data", "check", f"csv:{folder}/two.csv", "--fix")
    assert not (folder / UNREADABLE_LIST).exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["check", "nowhere"], "no folder or dataset 'nowhere'"),
        (["check", "digits", "--fix"], "has no folder to list unreadable files in"),
        (["fetch", "cifar11"], "did you mean 'cifar10'"),
        (["fetch", "imagenet"], "imagenet"),
        (["show", "digits", "--count", "0"], "count and size must be at least 1, got 0"),
        (
            ["show", "digits", "--augment", "strong3"],
            "unknown augmentation 'strong3'; did you mean",
        ),
        (["show", "digits", "--out", "no/such/folder.png"], "cannot write no/such/folder.png"),
        (["check", "digits", "--out", "/"], "expected the name of a file to write, got '/'"),
        (["check", "digits", "--out", "."], "expected the name of a file to write, got '.'"),
        (["check", "digits", "--max-pixels", "0"], "--max-pixels must be at least 1, got 0"),
        (["check", "digits", "--workers", "2147483648"], "loader.workers must be in [0, 1024]"),
    ],
)
def test_mistakes(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "data", *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_a_list_of_problems_may_go_into_a_new_folder(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new" / "bad.tsv"
    assert run(capsys, "data", "check", str(folder), "--out", str(out))[0] == 0
    assert "cut.png" in out.read_text()


def test_list_names_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "data", "list")
    assert all(name in out for name in ("digits", "shapes", "cifar10", "flowers102"))
    rows = json.loads(run(capsys, "data", "list", "--json")[1])
    assert {"cifar10", "pets"} <= {row["name"] for row in rows}


@pytest.mark.parametrize("level", [None, "none", "medium2"])
def test_a_sheet_shows_images(
    level: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "sheet.png"
    more = ["--augment", level] if level else []
    arguments = ["data", "show", "digits", "--size", "16", "--count", "10", "--out", str(out)]
    code, said, _ = run(capsys, *arguments, *more)
    sheet = np.asarray(Image.open(out))
    assert code == 0
    assert "10 images" in said
    assert sheet.shape == (3 * 18, 4 * 18, 3)
    assert (sheet[-1] == 255).all()
    assert sheet[:16, :16].std() > 10


def test_a_sheet_is_told_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "sheet.png"
    _, said, _ = run(capsys, "data", "show", "digits", "--count", "3", "--out", str(out), "--json")
    assert json.loads(said) == {"file": str(out), "images": 3}
    shown = ContactSheet(str(out), 3)._repr_html_()
    assert shown.startswith('<img src="data:image/png;base64,iVBOR')
    assert 'alt="3 images of the dataset"' in shown


def test_images_without_labels_are_checked_and_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flat = tmp_path / "flat"
    flat.mkdir()
    for seed in range(20):
        (flat / f"{seed}.png").write_bytes(encode(photo(seed)))
    code, out, err = run(capsys, "data", "check", str(flat), "--json")
    found = json.loads(out)
    assert (code, err, found["classes"]) == (0, "", {"image": {"train": 18, "val": 2}})
    assert found["notes"] == [
        "no labels were found; a classifier needs them, such as one folder per class"
    ]
    code, _, err = run(capsys, "data", "show", str(flat), "--out", str(tmp_path / "sheet.png"))
    assert (code, err) == (0, "")
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.size[0] > 96
