"""VTAB-1k at toy scale: lists, class folders and published sets; grouped means; going on."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import vitrail
from tests.shelf import refusal
from vitrail.cli import main
from vitrail.config import InputError
from vitrail.data.dataset import ArrayDataset, ImageDataset
from vitrail.data.datasets.open import open_data
from vitrail.data.decoding.decode import decode
from vitrail.data.rng import CounterRNG
from vitrail.data.transforms.apply import train_image
from vitrail.data.transforms.augment import Augment
from vitrail.data.transforms.preprocess import default_preprocess
from vitrail.evaluation.metrics.intervals import Estimate
from vitrail.models import build
from vitrail.run import TrainConfig
from vitrail.vtab1k import GROUPS, TASKS, TaskResult, VTABResult, vtab
from vitrail.vtab1k.benchmark import augment_for, configure_tasks
from vitrail.vtab1k.task_images import find_task, open_task, write_list
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.model_folder import save_folder

TINY = "ViT/4@8,depth=1,width=16,heads=2,mlp=32"
BY_NAME = {task.name: task for task in TASKS}
COLORS = np.array([[255, 0, 0], [0, 255, 0], [0, 0, 255]], np.uint8)


def paint(path: Path, color: int) -> None:
    """Draw an image of one color, with some noise that the path decides."""
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(len(str(path))).integers(0, 40, (8, 8, 3))
    pixels = np.clip(COLORS[color].astype(int) // 2 + noise, 0, 255)
    Image.fromarray(pixels.astype(np.uint8)).save(path, format="PNG")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = build(TINY, classes=3)
    folder = tmp_path_factory.mktemp("model") / "tiny"
    save_folder(Checkpoint(spec=made.spec, tensors=dict(made.state_dict())), folder)
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """DTD as class folders, KITTI as the lists that are passed around, SVHN as a CSV."""
    root = tmp_path_factory.mktemp("vtab")
    for split, count in (("train", 10), ("test", 4)):
        for number in range(count):
            for color, name in enumerate(("banded", "dotted", "lined")):
                paint(root / "dtd" / split / name / f"{number}.png", color)
    for file, count in (("train800", 8), ("val200", 2), ("test", 5)):
        lines = []
        for number in range(count):
            paint(root / "kitti" / f"images/{file}/{number}.png", number % 2)
            lines.append(f"images/{file}/{number}.png {number % 2}")
        if file == "test":
            lines[-1] = lines[-1][:-1] + "3"  # a class that no training image is of
        (root / "kitti" / f"{file}.txt").write_text("\n".join(lines) + "\n")
    rows = [("path", "label", "split")]
    for number in range(12):
        paint(root / f"svhn-{number}.png", number % 3)
        rows.append((f"svhn-{number}.png", f"{number % 3}", "test" if number > 8 else "train"))
    with (root / "svhn.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return root


def test_the_tasks_are_those_of_the_papers_table_9() -> None:
    assert len(TASKS) == 19
    counts = {group: sum(task.group == group for task in TASKS) for group in GROUPS}
    assert counts == {"natural": 7, "specialized": 4, "structured": 8}
    places = [place for task in TASKS for place in task.places]
    assert len(places) == len(set(places))
    assert sum(task.classes for task in TASKS[:7]) == 102 + 100 + 47 + 102 + 37 + 397 + 10


def draw_sprite(row: int, column: int, side: int = 64) -> np.ndarray:
    """Draw an image like those of dSprites: a white square at a place, on black."""
    pixels = np.zeros((side, side, 1), np.uint8)
    pixels[row : row + 8, column : column + 8] = 255
    return pixels


def place_of(pixels: np.ndarray) -> int | None:
    """Say in which sixteenth of the width a sprite's middle is: dSprites-Location's label."""
    columns = np.flatnonzero(pixels.max((0, 2)) > 127)
    return int(16 * columns.mean() / pixels.shape[1]) if len(columns) else None


def kept_labels(augment: Augment) -> tuple[float, float]:
    """Return which part of the training images of sprites keeps its label, and shows none."""
    preprocess = default_preprocess((48, 48), 1)
    generator, places = np.random.default_rng(0), []
    for row in CounterRNG(0, "image", 0, np.arange(300)).rows():
        sprite = draw_sprite(*generator.integers(0, 57, 2))
        made = place_of(train_image(sprite, augment, preprocess, row))
        places.append((made == place_of(sprite), made is None))
    kept, lost = np.mean(places, axis=0)
    return float(kept), float(lost)


def test_no_crop_or_flip_falsifies_labels() -> None:
    task = BY_NAME["dsprites-location"]
    kept, lost = kept_labels(augment_for(task, "bit"))
    assert (kept > 0.9, lost) == (True, 0)  # a border may fall on a pixel
    assert kept_labels(augment_for(task, "resize")) == (kept, lost)
    kept, lost = kept_labels(augment_for(task, "inception"))
    assert kept < 0.15
    assert lost > 0.3


def test_crops_and_flips_are_those_of_bits_supplement_f() -> None:
    uncropped = {"clevr-count", "clevr-distance", "dmlab", "kitti-distance", "dsprites-location"}
    unflipped = {"dsprites-orientation", "smallnorb-azimuth", "dsprites-location"}
    for task in TASKS:
        augment = augment_for(task, "bit")
        assert (augment.crop == "whole") == (task.name in uncropped), task.name
        assert (augment.flip == 0) == (task.name in unflipped), task.name
    assert {each.crop for each in TASKS} == {each.flip for each in TASKS} == {True, False}
    assert augment_for(BY_NAME["pets"], "bit").crop == "square"  # 448 x 448, a window of 384


def test_the_settings_are_table_4s() -> None:
    given = TrainConfig(data="x", model="ViT-B/16", weights="file:w", out=Path("o"), val_split="")
    config = configure_tasks(given, steps=None, lr=None, batch=None, images=1_000)
    assert config.model == "ViT-B/16@384"
    assert str(config.length) == "2_500 steps"
    assert (config.batch, config.optim.lr, config.optim.kind) == (512, 0.01, "sgd")
    assert (config.optim.momentum, config.optim.weight_decay, config.val_split) == (0.9, 0.0, "")
    small = configure_tasks(given, steps=10, lr=0.5, batch=4, images=1_000)
    assert (str(small.length), small.optim.lr, small.batch) == ("10 steps", 0.5, 4)
    assert str(small.schedule.warmup) == "5 %"


def test_the_split_is_four_to_one_without_overlap_and_the_same_each_time(data: Path) -> None:
    place = find_task(BY_NAME["dtd"], data)
    assert place == f"folder:{data / 'dtd'}"
    assert place is not None
    train, val, test = open_task(BY_NAME["dtd"], place, images=20, seed=0)
    assert (len(train), len(val), len(test)) == (16, 4, 12)
    names = [each.where(index) for each in (train, val) for index in range(len(each))]
    assert len(set(names)) == 20
    again = open_task(BY_NAME["dtd"], place, images=20, seed=0)
    assert [again.train.where(index) for index in range(16)] == names[:16]
    other = open_task(BY_NAME["dtd"], place, images=20, seed=1)
    assert [other.train.where(index) for index in range(16)] != names[:16]
    with pytest.raises(InputError, match="has 30 images, fewer than 1,000"):
        open_task(BY_NAME["dtd"], place, images=1000, seed=0)


def test_lists_keep_their_own_split(data: Path) -> None:
    task = BY_NAME["kitti-distance"]
    place = find_task(task, data)
    assert place == data / "kitti"
    assert place is not None
    train, val, test = open_task(task, place, images=1000, seed=0)
    assert (len(train), len(val), len(test)) == (8, 2, 5)
    assert train.classes == ("0", "1", "2", "3")
    assert test.labels.tolist() == [0, 1, 0, 1, 3]


@pytest.mark.parametrize("line", ["images/0.png", "a.png 4", "a.png -1", "a.png x"])
def test_a_bad_line_of_a_list_is_named(tmp_path: Path, line: str) -> None:
    for file in ("train800", "val200", "test"):
        (tmp_path / f"{file}.txt").write_text(f"ok.png 0\n\n{line}\n")
    text = refusal(open_task, BY_NAME["kitti-distance"], tmp_path, images=10, seed=0)
    assert "train800.txt line 3: expected a path and a class from 0 to 3" in text


def test_images_that_are_no_files_are_written_out(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (6, 8, 8, 3), np.uint8)
    source = ArrayDataset("cifar", ("a", "b"), np.array([0, 1, 0, 1, 0, 1]), pixels)
    path = tmp_path / "images.csv"
    assert write_list(path, {"train": [source], "test": [source]}) == 0
    read = open_data(f"csv:{path}", split="train")
    assert isinstance(read, ImageDataset)
    assert read.labels.tolist() == source.labels.tolist()
    for index in range(6):
        content = read.read(index)
        assert isinstance(content, bytes)
        np.testing.assert_array_equal(decode(content), pixels[index])


def test_grouped_means_are_over_the_tasks_that_were_run() -> None:
    values = {"dtd": 0.5, "svhn": 0.7, "eurosat": 0.9}
    scores = tuple(
        TaskResult(task, Estimate(values[task.name], 0, 1) if task.name in values else None)
        for task in TASKS
    )
    score = VTABResult("m", Path("o"), scores)
    assert score.mean("natural") == pytest.approx(0.6)
    assert score.mean("specialized") == pytest.approx(0.9)
    assert score.mean("structured") is None
    assert score.mean() == pytest.approx(0.7)  # each task counts once, as in the paper's mean
    assert (score.run(), score.run("natural"), score.run("structured")) == ((3, 19), (2, 7), (0, 8))


SMALL: dict[str, Any] = {
    "steps": 30, "batch": 8, "lr": 0.1, "image": (8, 8), "images": 20, "device": "cpu"
}  # fmt: skip


def test_what_is_on_disk_is_run_and_the_rest_is_named(
    model: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    said: list[str] = []
    monkeypatch.setattr("vitrail.vtab1k.benchmark.log_line", said.append)
    score = vtab(str(model), data, out=tmp_path / "out", **SMALL)
    found = {each.task.name: each for each in score.tasks}
    dtd, kitti, svhn = (found[name] for name in ("dtd", "kitti-distance", "svhn"))
    assert dtd.top1 is not None
    assert dtd.top1.value > 0.9  # three colors
    assert (dtd.images, dtd.unseen) == (12, 0)
    assert kitti.top1 is not None
    assert (kitti.images, kitti.unseen) == (5, 1)
    assert kitti.top1.value <= 0.8  # one image is of a class that nobody could learn
    assert svhn.top1 is None
    assert "9 images, fewer than 20" in svhn.why
    assert found["sun397"].why == "no folder or list in DIR has its images"
    assert score.run() == (2, 19)
    assert said == ["3 of 19: DTD", "7 of 19: SVHN", "17 of 19: KITTI-Distance"]
    with monkeypatch.context() as patch:  # a second call has nothing left to do
        patch.setattr("vitrail.vtab1k.benchmark._test", None)
        patch.setattr("vitrail.vtab1k.benchmark.write_list", None)
        assert vtab(str(model), data, out=tmp_path / "out", **SMALL) == score
    text = refusal(vtab, str(model), data, out=tmp_path / "out", **(SMALL | {"steps": 31}))
    assert "cannot resume: length 30 steps → 31 steps" in text
    text = refusal(vtab, str(model), data, out=tmp_path / "out", **(SMALL | {"images": 15}))
    assert "dtd was trained on 20 images, not 15; choose another --out" in text
    loaded = vitrail.load(model)
    by_object = vtab(loaded, data, out=tmp_path / "object", tasks=["dtd"], **SMALL)
    assert by_object.tasks == (dtd,)
    assert by_object.model == str(loaded.model.spec)


def test_the_command_prints_groups_and_what_lacks(
    model: Path,
    data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    small = ["--steps", "4", "--batch", "4", "--image", "8", "--images", "9", "--tasks", "svhn"]
    command = ["vtab", str(model), "--data", str(data), "--out", str(tmp_path / "o"), *small]
    main([*command, "--json", "--validate"])
    found = json.loads(capsys.readouterr().out)
    assert found["tasks"][0]["task"] == "svhn"
    assert found["tasks"][0]["images"] == 2  # 7 to train on, 2 to choose by
    assert found["natural"] == found["mean"] == found["tasks"][0]["top1"]
    assert found["run"] == 1
    with pytest.raises(SystemExit):
        main([*command[:-1], "svnh"])
    assert "unknown task 'svnh'; did you mean 'svhn'" in capsys.readouterr().err


def test_bad_input_is_one_line(model: Path, tmp_path: Path) -> None:
    text = refusal(vtab, str(model), tmp_path / "none", out=tmp_path / "o")
    assert "expected one with a folder for each task" in text
    (tmp_path / "empty").mkdir()
    text = refusal(vtab, str(model), tmp_path / "empty", out=tmp_path / "o", tasks=["dtd"])
    assert (
        "has no VTAB task that can be run (dtd: no folder or list in DIR has its images); expected"
        in text
    )
    (tmp_path / "file").write_text("mine")
    text = refusal(vtab, str(model), tmp_path / "empty", out=tmp_path / "file")
    assert text.endswith("file is a file; choose another name")
