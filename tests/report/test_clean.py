"""`vitrail clean`: what it finds in a folder, its page, and decisions that every command obeys."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitrail
from tests.coin_flips import learn_by_heart, write_noise
from tests.evaluation.sets import save_tiny, write_images
from vitrail.cli import main
from vitrail.config import InputError
from vitrail.data.dataset import select
from vitrail.data.datasets.decisions import Decision, read_decisions
from vitrail.data.datasets.open import notes, open_dataset
from vitrail.evaluation.cleaning.find_issues import CleaningResult, ImageIssue
from vitrail.report.clean_page import AppliedDecisions, write_clean_page

NAME = "vitrail-decisions.csv"


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write images of three classes in two splits, with a copy in the other, and bad ones."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    rng = np.random.default_rng(0)
    root = tmp_path / "photos"
    for split, count in (("train", 6), ("test", 3)):
        for number, name in enumerate("abc"):
            for index in range(count):
                pixels = rng.integers(0, 60, (48, 40, 3), np.uint8)
                pixels[..., number] += 150
                (root / split / name).mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels).save(root / split / name / f"{index}.png")
    shutil.copy(root / "train/a/0.png", root / "test/a/copy.png")
    (root / "train/b/broken.png").write_bytes(b"no image")
    Image.new("RGB", (5, 5)).save(root / "train/c/dot.png")
    return root


def test_what_is_wrong_is_found_and_shown(photos: Path, tmp_path: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in photos.rglob("*")}
    found = vitrail.clean(photos, model=save_tiny(tmp_path / "tiny"), out="page.html")
    assert isinstance(found, CleaningResult)
    issues = {each.kind: each for each in found.issues}
    assert (issues["leak"].path, issues["leak"].like) == ("test/a/copy.png", "train: train/a/0.png")
    assert issues["unreadable"].path == "train/b/broken.png"
    assert issues["tiny"].path == "train/c/dot.png"
    assert found.images == 30
    page = (tmp_path / "page.html").read_text()
    assert 'data-path="test/a/copy.png"' in page
    assert '<p class="path">test/<wbr>a/<wbr>copy.png</p>' in page  # the split is said once
    assert "http://" not in page
    assert "https://" not in page
    assert {path: path.stat().st_mtime_ns for path in photos.rglob("*")} == before


def test_a_card_says_label_and_split_once(photos: Path, tmp_path: Path) -> None:
    splits = {"train": open_dataset(photos, split="train")}
    issues = (
        ImageIssue("label", "train", "train/a/0.png", "a", "probably b (81%), not a (2%)", "b"),
        ImageIssue("outlier", "train", "my_0.png", "a", "unlike all other images"),
    )
    whole = {"data": "photos", "model": "tiny", "images": 18, "pairs": ()}
    page = write_clean_page(CleaningResult(issues=issues, **whole), splits, {})
    assert "<p>probably b (81%), not a (2%)</p>" in page
    assert '<p class="path">train: my_<wbr>0.png</p>\n<p>a: unlike all other images</p>' in page
    assert "1 probable label errors, 1 outliers." in page
    page = write_clean_page(CleaningResult(issues=(), **whole), splits, {})
    assert "<p>18 images of photos, by the features of tiny: nothing was found.</p>" in page


def test_decisions_are_added_to_earlier_ones(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also to those on images that are dropped by now; what they replace is kept beside them."""
    first = "path,decision,label\ntest/a/1.png,keep,\ntrain/a/0.png,drop,\n"
    (tmp_path / "first.csv").write_text(first)
    vitrail.clean(photos, decisions="first.csv")
    backup = photos / "vitrail-decisions.backup.csv"
    assert not backup.exists()
    rows = ["train/a/0.png,relabel,b", "train/a/1.png,drop,", "test/a/1.png,keep,"]
    (tmp_path / "second.csv").write_text("\n".join(["path,decision,label", *rows, ""]))
    main(["clean", "photos", "--decisions", "second.csv"])
    assert "1 new decisions, 1 in place of earlier ones; 1 earlier ones stay" in (
        capsys.readouterr().out
    )
    merged = {
        "train/a/0.png": Decision("relabel", "b"),
        "train/a/1.png": Decision("drop"),
        "test/a/1.png": Decision("keep"),
    }
    assert read_decisions(photos / NAME) == merged
    assert backup.read_text() == first
    (tmp_path / "none.csv").write_text("path,decision,label\n")
    main(["clean", "photos", "--decisions", "none.csv"])
    assert "0 new decisions, 0 in place of earlier ones; 3 earlier ones stay" in (
        capsys.readouterr().out
    )
    assert read_decisions(photos / NAME) == merged
    assert backup.read_text() == first
    assert len(open_dataset(photos, split="all")) == 30 - 1  # neither file is an image


def test_the_newest_decisions_are_found(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with pytest.raises(InputError, match=r"no vitrail-decisions\*\.csv in this folder or .*/home"):
        vitrail.clean(photos, decisions="newest")
    downloads = tmp_path / "home" / "Heruntergeladenes"
    downloads.mkdir(parents=True)
    text = "path,decision,label\ntrain/a/{}.png,drop,\n"
    for number, place in enumerate((tmp_path / NAME, downloads / "vitrail-decisions (1).csv")):
        place.write_text(text.format(number))
        os.utime(place, (number, number))
    assert (vitrail.clean(photos, decisions="newest").to_dict())["source"] == NAME
    (tmp_path / "home" / ".config").mkdir()
    (tmp_path / "home" / ".config" / "user-dirs.dirs").write_text(
        'XDG_DOWNLOAD_DIR="$HOME/Heruntergeladenes"\n'
    )
    found = vitrail.clean(photos, decisions="newest")
    assert isinstance(found, AppliedDecisions)
    assert found.source == downloads / "vitrail-decisions (1).csv"
    assert (found.new, found.earlier) == (1, 1)


def test_an_improbable_class_is_not_called_probable(photos: Path) -> None:
    """Nor is it filled in where the person relabels; both classes are shown by an example."""
    splits = {"train": open_dataset(photos, split="train")}
    issues = (
        ImageIssue("label", "train", "train/a/0.png", "a", "probably b", "b", compared=("a", "b")),
        ImageIssue(
            "label", "train", "train/a/1.png", "a", "hardly a (2%)", "", compared=("a", "b")
        ),
    )
    whole = {"data": "photos", "model": "tiny", "images": 18, "pairs": ()}
    examples = {"a": ("train", "train/a/2.png"), "b": ("train", "train/b/0.png")}
    page = write_clean_page(CleaningResult(issues=issues, examples=examples, **whole), splits, {})
    assert 'data-path="train/a/0.png" data-label="b"' in page
    assert 'data-path="train/a/1.png" data-label=""' in page
    assert page.count('data-example="a"') == page.count('data-example="b"') == 2
    assert page.count("data:image/jpeg;base64,") == 4  # two images, and each class once


def test_every_command_obeys_decisions(photos: Path, tmp_path: Path) -> None:
    rows = ["path,decision,label", "train/a/0.png,relabel,b", "train/c/dot.png,drop,"]
    (tmp_path / NAME).write_text("\n".join([*rows, "test/a/1.png,keep,", ""]))
    untouched = open_dataset(photos, split="train")
    main(["clean", "photos", "--decisions", NAME])
    assert (photos / NAME).read_text().splitlines()[0] == "path,decision,label"
    dataset = open_dataset(photos, split="train")
    assert len(dataset) == len(untouched) - 1
    names = [dataset.where(index) for index in range(len(dataset))]
    assert "train/c/dot.png" not in names
    assert dataset.classes[dataset.labels[names.index("train/a/0.png")]] == "b"
    assert any("drops 1 and relabels 1" in note for note in notes(dataset))
    part = select(dataset, np.array([names.index("train/a/0.png")]))
    assert part.labels.tolist() == [1]  # also where some are chosen
    assert dataset.fingerprint() != untouched.fingerprint()
    found = vitrail.embed(save_tiny(tmp_path / "tiny"), photos, out=tmp_path / "f.npy")
    assert (found.images, found.skipped) == (28, 1)  # of 30: one is dropped, one is broken
    (photos / NAME).unlink()
    assert open_dataset(photos, split="train").fingerprint() == untouched.fingerprint()


@pytest.mark.parametrize(
    ("columns", "kind"), [("targets=age", "regression"), ("label=tags", "multilabel")]
)
def test_decisions_drop_images_with_numbers_or_several_labels(
    photos: Path, tmp_path: Path, columns: str, kind: str
) -> None:
    rows = [f"train/a/{number}.png,{number}.5,{'a|b' if number else 'a'}" for number in range(6)]
    (photos / "list.csv").write_text("\n".join(["path,age,tags", *rows, ""]))
    (photos / NAME).write_text("path,decision,label\ntrain/a/2.png,drop,\ntrain/a/3.png,keep,\n")
    dataset = open_dataset(f"csv:photos/list.csv,{columns}", split="all")
    assert getattr(dataset, kind)
    assert list(dataset.image_names()) == [f"train/a/{n}.png" for n in (0, 1, 3, 4, 5)]
    rows = np.asarray(dataset.labels[np.arange(5)]).tolist()
    if kind == "regression":
        assert rows == [[0.5], [1.5], [3.5], [4.5], [5.5]]
    else:
        assert rows == [[1, 0], *[[1, 1]] * 4]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("path,what\n", "expected a first line of path,decision,label"),
        ("path,decision,label\ntrain/a/0.png,drpo,\n", "line 2: unknown decision 'drpo'"),
        ("path,decision,label\ntrain/a/0.png,relabel,\n", "line 2: relabel needs a label"),
        ("path,decision,label\ntrain/a/0.png,relabel,z\n", "'z' is not a class"),
        ("path,decision,label\nnowhere.png,drop,\n", "nowhere.png is not an image of"),
        ('path,decision,label\n"train/a/0.png,drop,\n', "line 2: "),
    ],
)
def test_bad_decisions_are_one_line_and_change_nothing(
    photos: Path, text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "d.csv").write_text(text)
    with pytest.raises(SystemExit) as stop:
        main(["clean", "photos", "--decisions", "d.csv"])
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert not (photos / NAME).exists()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--out", "page.txt"], "expected the name of a page"),
        (["--folds", "1"], "--folds 1: expected 2 or more"),
        (["--decisions", "none.csv"], "--decisions none.csv: No such file"),
    ],
)
def test_bad_flags_are_one_line_and_write_nothing(
    photos: Path, flags: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = save_tiny(tmp_path / "tiny")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(SystemExit):
        main(["clean", "photos", "--model", str(model), *flags])
    assert said in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before


def test_a_model_that_learned_the_labels_is_named(tmp_path: Path) -> None:
    """Its features repeat wrong labels, so that clean would find few of them."""
    photos = write_noise(tmp_path / "noise", 20)
    run = learn_by_heart(photos, tmp_path / "run", steps=1)
    said = f"{run.folder} was trained on 36 of 36 images of {photos} (train)"
    for model, expected in ((run.folder, True), (save_tiny(tmp_path / "tiny"), False)):
        found = vitrail.clean(photos, model=model, out=tmp_path / "page.html")
        assert isinstance(found, CleaningResult)
        assert any(note.startswith(said) for note in found.notes) == expected
        assert (said in (tmp_path / "page.html").read_text()) == expected


def test_json_counts_the_kinds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    photos = write_images(tmp_path / "few")
    model = save_tiny(tmp_path / "tiny")
    main(["clean", str(photos), "--model", str(model), "--json", "--out", str(tmp_path / "a.html")])
    found = json.loads(capsys.readouterr().out)
    assert found["unreadable"] == 1
    assert found["images"] == 14
