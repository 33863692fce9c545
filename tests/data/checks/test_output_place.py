"""Results are not written among the classes of a folder of images."""

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.commands import run
from tests.deploy.serving import save_model
from vitrail.config import InputError
from vitrail.data.checks.output_place import check_output_place

TINY = "ViT/8@16,depth=1,width=8,heads=1,mlp=8"


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make photos of two classes, as photos/CLASS and as split/{train,test}/CLASS; go there."""
    for place in ("photos", "split/train", "split/test"):
        for name in ("cat", "dog"):
            folder = tmp_path / place / name
            folder.mkdir(parents=True)
            for number in range(4):
                pixels = np.full((16, 16, 3), 50 * number, np.uint8)
                Image.fromarray(pixels).save(folder / f"{number}.png")
    monkeypatch.chdir(tmp_path / "photos")
    return tmp_path / "photos"


@pytest.mark.parametrize(
    ("data", "out"),
    [(".", "runs/x"), ("folder:.", "."), ("../photos,take=5", "cat/x"), ("../link", "new"),
     ("../split", "../split/test/x")],
)  # fmt: skip
def test_a_place_among_the_images_is_refused(photos: Path, data: str, out: str) -> None:
    os.symlink(photos, photos.parent / "link")
    with pytest.raises(InputError, match="is in the folder of the images, where it would become"):
        check_output_place(out, data)


@pytest.mark.parametrize(
    ("data", "out"),
    [(".", "../runs"), ("../split", "../split/runs"), (".", ".runs/x"), ("digits", "x"),
     ("csv:x.csv", "x"), (".", "../photos2"), ("", "x")],
)  # fmt: skip
def test_other_places_are_not(photos: Path, data: str, out: str) -> None:
    check_output_place(out, data)


def test_a_run_in_its_own_data_makes_no_class(
    photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The folder `runs` was a class of the very first model: it was locked before it was read."""
    code, said, err = run(capsys, "train", ".", "--model", TINY, "--steps", "1", "--batch", "2")
    assert (code, said) == (2, "")
    assert err == (
        "vitrail: runs/photos is in the folder of the images, where it would become a class; "
        "choose an --out elsewhere, such as ../runs/photos\n"
    )
    assert sorted(os.listdir(photos)) == ["cat", "dog"]


def test_what_evaluates_refuses_it_too(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_model(photos.parent / "model", f"{TINY},classes=2", ("cat", "dog"))
    for words in (
        ("evaluate", "../model", ".", "--out", "r"),
        ("fewshot", "../model", ".", "--out", "r"),
        ("probe", "../model", ".", "--out", "r"),
        ("inspect", "../model", "--data", ".", "--out", "r"),
        ("sweep", ".", "--model", TINY, "--steps", "1", "--vary", "lr=1,2", "--out", "r"),
    ):
        code, _, err = run(capsys, *words)
        assert code == 2, words
        assert "r is in the folder of the images" in err
        assert err.count("\n") == 1
    assert sorted(os.listdir(photos)) == ["cat", "dog"]
