"""Features in files, and the commands on features as a user calls them."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import vitrail
from tests.data.sets import HALF, encode, photo
from vitrail.cli.main import main
from vitrail.config import InputError
from vitrail.data.dataset import ImageDataset
from vitrail.data.datasets.open import open_data
from vitrail.evaluation.features.extract import extract
from vitrail.evaluation.features.feature_files import write_features
from vitrail.evaluation.features.image_features import Features
from vitrail.models import build
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.model_folder import save_folder

MODEL = "ViT/8@16,depth=2,width=8,heads=2,mlp=16"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder with a model and images of two classes, and stand in it."""
    model = build(MODEL, classes=2)
    bundle = Checkpoint(spec=model.spec, tensors=dict(model.state_dict()), preprocess=HALF)
    save_folder(bundle, tmp_path / "model")
    for split, count in (("train", 6), ("test", 3)):
        for number, name in enumerate(("ash", "oak")):
            folder = tmp_path / "photos" / split / name
            folder.mkdir(parents=True)
            for seed in range(count):
                pixels = photo(10 * seed + number) // (1 + number)
                (folder / f"{seed}.png").write_bytes(encode(pixels))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[str, str]:
    main(arguments)
    return capsys.readouterr()


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("vitrail: ")
    assert error.count("\n") == 1
    return error


def some(several: bool = False) -> Features:
    labels = np.array([[1, 0, 1], [0, 0, 0]], np.uint8) if several else np.array([2, 0])
    return Features(
        name="set",
        classes=("a", "b, c", "d"),
        values=np.array([[1.5, 2.0], [-0.25, 4.0]], np.float32),
        labels=labels,
        names=np.array(["x/1.png", 'x/"2".png']),
    )


def rows_of(path: Path) -> list[list[str]]:
    with path.open(newline="") as file:
        return list(csv.reader(file))


@pytest.mark.parametrize("several", [False, True])
def test_each_format_holds_features_labels_and_names(tmp_path: Path, several: bool) -> None:
    from pyarrow import parquet
    from safetensors.numpy import load_file

    features = some(several)
    assert write_features(features, tmp_path / "f.npy", {}) == [
        tmp_path / "f.rows.csv",
        tmp_path / "f.npy",
    ]
    np.testing.assert_array_equal(np.load(tmp_path / "f.npy"), features.values)
    labels = [["0 2", "a|d"], ["", ""]] if several else [["2", "d"], ["0", "a"]]
    assert rows_of(tmp_path / "f.rows.csv") == [
        ["name", "label", "class"],
        ["x/1.png", *labels[0]],
        ['x/"2".png', *labels[1]],
    ]
    write_features(features, tmp_path / "g.safetensors", {"model": "m"})
    tensors = load_file(tmp_path / "g.safetensors")
    np.testing.assert_array_equal(tensors["features"], features.values)
    np.testing.assert_array_equal(tensors["labels"], features.labels)
    write_features(features, tmp_path / "h.parquet", {"model": "m"})
    table: Any = parquet.read_table(tmp_path / "h.parquet")
    assert table.schema.metadata[b"model"] == b"m"
    assert table.to_pydict() == {
        "name": ["x/1.png", 'x/"2".png'],
        "label": [[0, 2], []] if several else [2, 0],
        "class": [["a", "d"], []] if several else ["d", "a"],
        "features": features.values.tolist(),
    }
    assert not list(tmp_path.glob(".*"))


def test_files_that_can_not_be_written_are_refused(tmp_path: Path) -> None:
    (tmp_path / "f.npy").mkdir()
    (tmp_path / "file").write_text("")
    for name, said in (
        ("f.txt", "ends in .parquet"),
        ("f.npy", "folder"),
        ("file/f.npy", "is not a folder"),
    ):
        with pytest.raises(InputError, match=said):
            write_features(some(), tmp_path / name, {})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["f.npy", "file"]


@pytest.mark.parametrize("suffix", ["parquet", "npy", "safetensors"])
def test_embed_writes_the_same_bytes_again(
    place: Path, capsys: pytest.CaptureFixture[str], suffix: str
) -> None:
    out, _ = run(capsys, "embed", "model", "photos", "--out", f"a.{suffix}", "--json")
    said = json.loads(out)
    assert (said["images"], said["width"], said["skipped"]) == (18, 8, 0)
    assert said["files"][-1] == f"a.{suffix}"
    run(capsys, "embed", "model", "photos", "--out", f"b.{suffix}", "--fresh")
    assert Path(f"a.{suffix}").read_bytes() == Path(f"b.{suffix}").read_bytes()


def test_embed_gives_the_models_features(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "photos/test/oak/3.png").write_bytes(b"torn")
    arguments = ("--split", "test", "--features", "patch-mean@1", "--out", "new/f.npy")
    out, _ = run(capsys, "embed", "model", "photos", *arguments)
    assert "6 images, 8 features each, 1 could not be read" in out
    loaded, source = vitrail.load("model"), open_data("photos", split="test")
    assert loaded.preprocess
    assert isinstance(source, ImageDataset)
    expected = extract(loaded.model, source, loaded.preprocess, "patch-mean@1")
    np.testing.assert_array_equal(np.load("new/f.npy"), expected.values)
    names = [row[0] for row in rows_of(Path("new/f.rows.csv"))]
    assert names == ["name", *expected.names.tolist()]
    assert names[1] == "test/ash/0.png"


def test_three_measures_share_one_pass(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = run(capsys, "fewshot", "model", "photos", "--json", "--seeds", "2")
    said = json.loads(out)
    assert list(said["shots"]) == ["1", "5"]  # of 1 5 10 25 what each class has
    assert said["shots"]["5"]["l2"] == 1024.0
    assert 0 <= said["shots"]["5"]["mean"] <= 1
    assert said["images"] == 6
    kept = sorted(place.joinpath("cache/features").rglob("0*.npz"))
    times = [path.stat().st_mtime_ns for path in kept]
    assert len(kept) == 2
    probed = json.loads(run(capsys, "probe", "model", "photos", "--json")[0])
    assert 0 <= probed["top1"] <= 1
    assert probed["decay"] in [row["decay"] for row in probed["each"]]
    trained = run(capsys, "probe", "model", "photos", "--by", "sgd", "--epochs", "2")[0]
    assert "trained with learning rate" in trained
    found = json.loads(run(capsys, "knn", "model", "photos", "--json", "--uniform")[0])
    assert [row["k"] for row in found["each"]] == [1, 5, 10]
    assert sorted(place.joinpath("cache/features").rglob("0*.npz")) == kept
    assert [path.stat().st_mtime_ns for path in kept] == times
    table, _ = run(capsys, "fewshot", "model", "photos", "--shots", "1", "--l2", "1", "1024")
    assert "chosen" in table


def test_what_is_wrong_is_said_in_one_line(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    photos = ("model", "photos")
    assert "--epochs requires --by sgd" in refused(capsys, "probe", *photos, "--epochs", "5")
    assert "fewer than 25 shots; give --shots 5" in refused(
        capsys, "fewshot", *photos, "--shots", "5", "25"
    )
    assert "expected l2 above 0" in refused(capsys, "fewshot", *photos, "--l2", "0")
    assert "has no split 'tes'" in refused(capsys, "knn", *photos, "--test", "tes")
    assert "expected k of 1 to 10" in refused(capsys, "knn", *photos, "--k", "1", "11")
    assert "expected k of 1 to 12" in refused(capsys, "knn", *photos, "--k", "13")
    assert "unknown features 'tokens'" in refused(capsys, "probe", *photos, "--features", "tokens")
    assert "at least 1 image" in refused(capsys, "probe", *photos, "--batch", "0")
    assert "ends in .parquet" in refused(capsys, "embed", *photos, "--out", "f.csv")
    (place / "photos/test/yew").mkdir()
    (place / "photos/test/yew/0.png").write_bytes(encode(photo(0)))
    assert "class 'yew' is not in the training split" in refused(capsys, "fewshot", *photos)


def test_a_model_that_overflows_is_named(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = build(MODEL, classes=2)
    with torch.no_grad():
        model.get_parameter("norm.weight")[0] = 3e38
        model.get_parameter("norm.bias")[0] = 3e38
    bundle = Checkpoint(spec=model.spec, tensors=dict(model.state_dict()), preprocess=HALF)
    save_folder(bundle, place / "large")
    assert "are NaN or infinite, the first is" in refused(capsys, "knn", "large", "photos")
