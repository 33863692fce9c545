"""`vitrail evaluate` and `vitrail compare` as a user meets them."""

import csv
import io
import json
import os
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.commands import run
from tests.evaluation.sets import CLASSES, save_tiny, write_images
from tests.forks import in_processes
from vitrail.cli import main
from vitrail.data.batches import EvalBatches
from vitrail.data.dataset import ImageDataset
from vitrail.data.datasets.open import open_data
from vitrail.data.transforms.apply import normalize
from vitrail.evaluation.features.feature_index import read_index
from vitrail.evaluation.metrics.significance import mcnemar
from vitrail.models.cost.total import cost_of
from vitrail.weights.class_names import imagenet_classes, imagenet_wnids
from vitrail.weights.load import load, read_checkpoint
from vitrail.weights.model_folder import save_folder
from vitrail.weights.text.prompts import spell_classes

Capture = pytest.CaptureFixture[str]
CPU = ("--device", "cpu")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("data") / "photos")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("models") / "tiny")


def predict(model: Path, data: Path, image: tuple[int, int] | None = None) -> np.ndarray:
    """Say by hand whether each readable image is right."""
    loaded = load(str(model), image=image)
    source = open_data(str(data), split="all")
    assert isinstance(source, ImageDataset)
    assert loaded.preprocess
    batch = EvalBatches(source, loaded.preprocess, batch=len(source))[0]
    logits = loaded.model(normalize(batch.images, loaded.preprocess)).detach().numpy()
    good = batch.weights.numpy() > 0
    return (logits.argmax(1) == batch.labels.numpy())[good]


def evaluated(capsys: Capture, *command: str) -> dict[str, Any]:
    code, said, err = run(capsys, "evaluate", *command, *CPU, "--json")
    assert (code, err) == (0, "")
    return json.loads(said)


@pytest.mark.parametrize("image", [None, (12, 16)])
def test_every_readable_image_counts_at_any_resolution(
    capsys: Capture, photos: Path, model: Path, image: tuple[int, int] | None
) -> None:
    size = () if image is None else ("--image", "12x16")
    found = evaluated(capsys, str(model), str(photos), "--split", "all", "--batch", "4", *size)
    right = predict(model, photos, image)
    assert (found["images"], found["skipped"]) == (13, 1)
    assert found["top1"] == pytest.approx(right.mean())
    assert found["image"] == ("8x8" if image is None else "12x16")
    assert sum(row["images"] for row in found["classes"]) == 13
    assert sum(cell["images"] for cell in found["confusion"]) == 13
    assert sum(each["images"] for each in found["bins"]) == 13
    assert len(found["bins"]) == 15


def test_the_table_says_how_many_could_not_be_read(
    capsys: Capture, photos: Path, model: Path
) -> None:
    code, said, _ = run(capsys, "evaluate", str(model), str(photos), "--split", "all", *CPU)
    assert code == 0
    assert "on 13 of 14 images (1 unreadable)" in said
    assert "top-5" not in said  # of three classes, which are always among the five
    assert "calibration" in said


def test_files_have_what_was_printed(
    capsys: Capture, photos: Path, model: Path, tmp_path: Path
) -> None:
    table, out = tmp_path / "classes.csv", tmp_path / "report"
    where = ("--csv", str(table), "--out", str(out))
    found = evaluated(capsys, str(model), str(photos), "--split", "all", *where)
    assert json.loads((out / "report.json").read_text()) == found
    assert table.read_bytes() == (out / "classes.csv").read_bytes()
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert [row["class"] for row in rows] == list(CLASSES)
    assert [float(row["top1"]) for row in rows] == [row["top1"] for row in found["classes"]]
    images = list(csv.DictReader((out / "images.csv").read_text().splitlines()))
    assert len(images) == 14
    assert np.mean([row["class"] == row["predicted"] for row in images[:13]]) == pytest.approx(
        found["top1"]
    )
    assert (images[13]["image"], images[13]["predicted"]) == ("b/broken.png", "")
    assert images[13]["error"]
    for name in ("confusion", "reliability"):
        with Image.open(out / f"{name}.png") as drawn:
            assert min(drawn.size) > 400
        assert "<svg" in (out / f"{name}.svg").read_text()
    kept = (out / "confusion.svg").read_bytes()
    evaluated(capsys, str(model), str(photos), "--split", "all", *where)
    assert (out / "confusion.svg").read_bytes() == kept


def test_several_processes_count_each_image_once(photos: Path, model: Path) -> None:
    command = ["evaluate", str(model), str(photos), "--split", "all", "--batch", "3", "--json"]

    def work() -> str:
        with redirect_stdout(io.StringIO()) as said:
            main([*command, *CPU])
        return said.getvalue()

    first, second = in_processes(work, 2)
    assert (first.code, second.code, second.value) == (0, 0, ""), (first, second)
    one, two = json.loads(work()), json.loads(first.value)
    for key in ("images", "skipped", "top1", "classes", "confusion"):
        assert one[key] == two[key], key
    assert one["loss"] == pytest.approx(two["loss"], abs=1e-6)


def test_classes_go_by_name_whatever_their_order(
    capsys: Capture, photos: Path, tmp_path: Path
) -> None:
    """The same weights under names in another order are another model, and another accuracy."""
    plain = save_tiny(tmp_path / "plain")
    loaded = load(str(plain))
    turned = save_tiny(tmp_path / "turned", ("b", "c", "a"))
    source = open_data(str(photos), split="all")
    assert isinstance(source, ImageDataset)
    assert loaded.preprocess
    batch = EvalBatches(source, loaded.preprocess, batch=14)[0]
    logits = loaded.model(normalize(batch.images, loaded.preprocess)).detach().numpy()
    good = batch.weights.numpy() > 0
    answer = np.array([1, 2, 0])[logits.argmax(1)]  # output 0 is `b`, the data's class 1
    found = evaluated(capsys, str(turned), str(photos), "--split", "all")
    assert found["top1"] == pytest.approx((answer == batch.labels.numpy())[good].mean())


@pytest.mark.parametrize(
    ("classes", "more", "problem"),
    [
        (("a", "b", "x"), (), "does not know 1 of 3 classes of"),
        (CLASSES, ("--split", "tset"), "has no split 'tset'"),
        (CLASSES, ("--image", "9"), "9"),
        (CLASSES, ("--batch", "0"), "--batch must be at least 1"),
        (CLASSES, ("--subset", "imagenet-x"), "unknown --subset 'imagenet-x'"),
        (CLASSES, ("--subset", "imagenet-a"), "ImageNet-A has 200 classes"),
        (CLASSES, ("--map", "none.yaml"), "none.yaml"),
        (CLASSES, ("--real", "real.json"), "ReaL needs ImageNet's 1,000 classes"),
        (CLASSES, ("--engine", "spark"), "engine"),
        (CLASSES, ("--device", "gpu7"), "unknown device 'gpu7'"),
    ],
)
def test_bad_input_is_one_line(
    capsys: Capture,
    photos: Path,
    tmp_path: Path,
    classes: tuple[str, ...],
    more: tuple[str, ...],
    problem: str,
) -> None:
    folder = save_tiny(tmp_path / "model", classes)
    code, said, err = run(capsys, "evaluate", str(folder), str(photos), *CPU, *more)
    assert (code, said) == (2, "")
    assert err.count("\n") == 1
    assert problem in err


def test_a_head_of_zeros_is_no_classifier(capsys: Capture, photos: Path, tmp_path: Path) -> None:
    import torch

    from vitrail.models import build
    from vitrail.weights.checkpoint import Checkpoint
    from vitrail.weights.model_folder import save_folder

    made = build("ViT/4@8,depth=1,width=16,heads=2,mlp=32", classes=3)
    with torch.no_grad():
        for parameter in made.head.parameters():
            parameter.zero_()
    save_folder(Checkpoint(spec=made.spec, tensors=dict(made.state_dict())), tmp_path / "zeros")
    code, _, err = run(capsys, "evaluate", str(tmp_path / "zeros"), str(photos), *CPU)
    assert code == 2
    assert "is all zeros" in err


def test_a_folder_that_cannot_be_written_is_one_line(
    capsys: Capture, photos: Path, model: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    for option, place in (("--out", "file/report"), ("--csv", "file/classes.csv")):
        command = (str(model), str(photos), "--split", "all", option, str(tmp_path / place))
        code, _, err = run(capsys, "evaluate", *command, *CPU)
        assert code == 2
        assert err.count("\n") == 1
        assert f"cannot be written: {tmp_path / 'file'} is not a folder" in err
    for option, place in (
        ("--csv", "."),
        ("--csv", str(tmp_path)),
        ("--out", str(tmp_path / "file")),
    ):
        code, _, err = run(capsys, "evaluate", str(model), str(photos), option, place)
        assert (code, err.count("\n")) == (2, 1)
        assert "name" in err


def test_imagenets_test_sets_let_the_model_choose_among_their_classes_only(
    capsys: Capture, tmp_path: Path
) -> None:
    wnids, names = imagenet_wnids(1000), imagenet_classes(1000)
    assert wnids
    chosen = wnids[3:1000:5]
    data = tmp_path / "imagenet-a"
    for number, wnid in enumerate(chosen):
        (data / wnid).mkdir(parents=True)
        pixels = np.full((8, 8, 3), number, np.uint8)
        Image.fromarray(pixels).save(data / wnid / "0.png")
    folder = save_tiny(tmp_path / "model", names, outputs=1000)
    found = evaluated(capsys, str(folder), str(data), "--subset", "imagenet-a")
    loaded = load(str(folder))
    source = open_data(str(data), split="all")
    assert isinstance(source, ImageDataset)
    assert loaded.preprocess
    batch = EvalBatches(source, loaded.preprocess, batch=200)[0]
    logits = loaded.model(normalize(batch.images, loaded.preprocess)).detach().numpy()
    few = logits[:, 3:1000:5]
    assert found["images"] == 200
    assert found["top1"] == pytest.approx((few.argmax(1) == np.arange(200)).mean())
    best = np.argsort(-few, axis=1)[:, :5]
    assert found["top5"] == pytest.approx((best == np.arange(200)[:, None]).any(1).mean())
    powers = np.exp(few.astype(np.float64))
    loss = -np.log(powers[np.arange(200), np.arange(200)] / powers.sum(1)).mean()
    assert found["loss"] == pytest.approx(loss, abs=1e-5)
    assert all(cell["predicted"] is not None for cell in found["confusion"])


def test_reassessed_labels_of_imagenet(capsys: Capture, tmp_path: Path) -> None:
    wnids = imagenet_wnids(1000)
    assert wnids
    image = io.BytesIO()
    Image.new("RGB", (8, 8), (9, 200, 30)).save(image, format="JPEG")
    for number, wnid in enumerate(wnids, 1):
        (tmp_path / "val" / wnid).mkdir(parents=True)
        file = tmp_path / "val" / wnid / f"ILSVRC2012_val_{number:08}.JPEG"
        file.write_bytes(image.getvalue())
    folder = save_tiny(tmp_path / "model", imagenet_classes(1000), outputs=1000)
    plain = evaluated(capsys, str(folder), f"imagenet:{tmp_path}")
    best = {cell["predicted"] for cell in plain["confusion"]}
    assert len(best) == 1  # all images are the same
    answer = wnids.index(best.pop())
    real = [[number, answer] if number % 4 == 0 else [number] for number in range(1000)]
    real[answer], real[(answer + 1) % 1000] = [], [answer]
    (tmp_path / "real.json").write_text(json.dumps(real))
    command = (str(folder), f"imagenet:{tmp_path}", "--real", str(tmp_path / "real.json"))
    found = evaluated(capsys, *command)
    right = sum(answer in each for each in real)
    assert (plain["top1"], found["top1"]) == (0.001, 0.001)
    assert found["real_images"] == 999
    assert found["real"] == pytest.approx(right / 999)
    words = spell_classes(wnids)  # English folders, which sort otherwise
    for wnid, name in zip(wnids, words, strict=True):
        (tmp_path / "val" / wnid).rename(tmp_path / "val" / name.replace(" ", "_").replace("/", ""))
    mapped = {name.replace(" ", "_"): n for n, name in enumerate(words)}
    (tmp_path / "map.json").write_text(json.dumps(mapped))
    command = (str(folder), str(tmp_path / "val"), "--split", "all")
    command += ("--map", str(tmp_path / "map.json"))
    again = evaluated(capsys, *command, "--real", str(tmp_path / "real.json"))
    assert (again["real"], again["real_images"]) == (found["real"], 999)
    (tmp_path / "val" / "tench").rename(tmp_path / "val" / "other")
    del mapped["tench"]
    (tmp_path / "map.json").write_text(json.dumps({**mapped, "other": 0}))
    code, said, err = run(capsys, "evaluate", *command, "--real", str(tmp_path / "real.json"), *CPU)
    assert (code, said) == (2, "")
    assert "--real needs ImageNet's classes by WordNet ID or name; 1 of 1,000" in err


def test_several_labels_per_image(capsys: Capture, photos: Path, tmp_path: Path) -> None:
    rows = ["path,label,split"]
    rows += [f"{photos}/a/{n}.png,{'a|b' if n % 2 else 'c'},test" for n in range(4)]
    rows += [f"{photos}/b/{n}.png,b,train" for n in range(4)]
    (tmp_path / "list.csv").write_text("\n".join(rows) + "\n")
    folder = save_tiny(tmp_path / "model")
    found = evaluated(capsys, str(folder), f"csv:{tmp_path / 'list.csv'}", "--split", "test")
    assert found["images"] == 4
    precisions = [row["average_precision"] for row in found["classes"]]
    assert found["map"] == pytest.approx(np.mean(precisions))
    code, said, _ = run(
        capsys, "evaluate", str(folder), f"csv:{tmp_path / 'list.csv'}", "--split", "test", *CPU
    )
    assert code == 0
    assert "mAP" in said
    assert "from a probability of 0.5 on" in said
    models = (str(folder), str(folder), "--data", f"csv:{tmp_path / 'list.csv'}", "--split", "test")
    code, said, err = run(capsys, "compare", *models, "--shots", "1", *CPU)
    assert (code, said) == (2, "")
    assert "several labels per image" in err
    assert err.count("\n") == 1
    code, said, _ = run(capsys, "compare", *models, *CPU, "--shots")
    assert code == 0
    shown = [
        line.split()[0] for line in said.splitlines() if line.count(f"{found['map']:.2%}") == 2
    ]
    assert shown == ["mAP"]
    assert "micro F1" in said
    assert {row["threshold"] for row in found["classes"]} == {0.5}


def test_thresholds_of_a_model_are_used(capsys: Capture, photos: Path, tmp_path: Path) -> None:
    """In the order of the data's classes, which are not the model's."""
    rows = [f"{photos}/a/{n}.png,{'a|b' if n % 2 else 'c'}" for n in range(4)]
    (tmp_path / "list.csv").write_text("\n".join(["path,label", *rows]) + "\n")
    saved = read_checkpoint(str(save_tiny(tmp_path / "plain", ("c", "a", "b"))))
    levels = (0.125, 0.0, 1.0)
    save_folder(replace(saved, activation="sigmoid", thresholds=levels), tmp_path / "model")
    command = (str(tmp_path / "model"), f"csv:{tmp_path / 'list.csv'}", "--split", "all")
    found = evaluated(capsys, *command)
    assert [(row["class"], row["threshold"]) for row in found["classes"]] == [
        ("a", 0.0), ("b", 1.0), ("c", 0.125),
    ]  # fmt: skip
    assert found["classes"][0]["f1"] == pytest.approx(2 * 2 / (4 + 2))  # predicted always
    assert found["classes"][1]["f1"] == 0.0  # predicted never
    each = [row["f1"] for row in found["classes"]]
    assert found["macro_f1"] == pytest.approx(np.mean(each))
    code, said, _ = run(capsys, "evaluate", *command, *CPU)
    assert code == 0
    assert "where its probability reaches the model's threshold" in said
    assert "macro F1" in said
    assert "micro F1" in said


def compared(capsys: Capture, *command: str) -> dict[str, Any]:
    code, said, _ = run(capsys, "compare", *command, *CPU, "--json")
    assert code == 0
    return json.loads(said)


def test_models_are_held_against_each_other_on_the_same_images(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    data = tmp_path / "photos"
    write_images(data / "train", broken=False)
    write_images(data / "test")
    first, second = save_tiny(tmp_path / "one"), save_tiny(tmp_path / "two", seed=1)
    other = save_tiny(tmp_path / "other", ("x", "y", "z"), seed=2)
    command = (str(first), str(second), str(other), "--data", str(data), "--shots", "2")
    found = compared(capsys, *command)
    one, two = predict(first, data / "test"), predict(second, data / "test")
    rows, (held,) = found["models"], found["pairs"]
    assert [row.get("top1") for row in rows] == [
        pytest.approx(one.mean()), pytest.approx(two.mean()), None
    ]  # fmt: skip
    assert found["images"] == 13
    lost, won = int((one & ~two).sum()), int((two & ~one).sum())
    assert (held["only_first"], held["only_second"]) == (lost, won)
    assert held["difference"] == pytest.approx(two.mean() - one.mean())
    assert (held["p"], held["p_mid"]) == pytest.approx(mcnemar(lost, won))
    assert (held["first"], held["second"]) == (str(first), str(second))
    cost = cost_of(load(str(first)).model.spec)
    for row in rows:
        assert (row["parameters"], row["flops"]) == (cost.parameters, cost.flops)
        assert row["speed"] > 0
        assert 0 <= row["shots"]["2"]["mean"] <= 1
    assert rows[0]["ratio"] == 1
    assert "does not know 3 of 3 classes" in rows[2]["notes"][0]
    code, said, _ = run(capsys, "compare", *command, *CPU)
    assert code == 0
    assert "2 against 1: " in said
    assert "McNemar" in said


def test_models_are_compared_at_the_size_of_their_images(
    capsys: Capture, tmp_path: Path, photos: Path
) -> None:
    """Which need not be that of their positions, as DINOv2's is not."""
    small, large = save_tiny(tmp_path / "small"), tmp_path / "large"
    bundle = read_checkpoint(str(small))
    assert bundle.preprocess is not None
    height, width = bundle.preprocess.size
    size = 2 * height, 3 * width
    save_folder(replace(bundle, preprocess=replace(bundle.preprocess, size=size)), large)
    rows = compared(capsys, str(small), str(large), "--data", str(photos), "--shots")["models"]
    assert [row["image"] for row in rows] == [f"{height}x{width}", f"{2 * height}x{3 * width}"]
    costs = [cost_of(bundle.spec), cost_of(bundle.spec, image=size)]
    assert [row["flops"] for row in rows] == [cost.flops for cost in costs]


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ((), "two or more models"),
        (("{other}", "--shots"), "none of the models has the classes"),
        (("{other}", "--shots", "9"), "fewer than 9 shots; a bare --shots leaves few-shot out"),
        (("{other}", "--batch", "0"), "--batch must be at least 1"),
        (("{other}", "--batch", "9" * 20), "at most 1,000,000, got 999"),
    ],
)
def test_bad_comparisons_are_one_line(
    capsys: Capture,
    tmp_path: Path,
    photos: Path,
    more: tuple[str, ...],
    problem: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    other = str(save_tiny(tmp_path / "other", ("x", "y", "z")))
    command = (other, *(part.format(other=other) for part in more))
    code, _, err = run(capsys, "compare", "--data", str(photos), *command, *CPU)
    assert code == 2
    assert problem in err.splitlines()[-1]


def test_a_run_is_evaluated_on_what_it_held_out(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As README has it: a folder in one piece, of which the run held a quarter out."""
    from vitrail.config import from_dict, read_file
    from vitrail.run import TrainConfig
    from vitrail.training.run_data import open_run_data

    monkeypatch.chdir(tmp_path)
    for name in CLASSES:
        write_images(tmp_path / "more" / name, broken=False)
    (tmp_path / "photos").mkdir()
    for number, name in enumerate(CLASSES):
        (tmp_path / "photos" / name).mkdir()
        for place, file in enumerate(sorted((tmp_path / "more" / name).rglob("*.png"))):
            file.rename(tmp_path / "photos" / name / f"{number}-{place}.png")
    options = ("--steps", "1", "--batch", "4", "--hold-out", "0.25", "--out", "runs/photos", *CPU)
    options += ("--no-report", "--no-calibration")
    model = "ViT/4@8,depth=1,width=16,heads=2,mlp=32"
    code, _, err = run(capsys, "train", "photos", "--model", model, *options)
    assert code == 0, err
    config = from_dict(TrainConfig, read_file(tmp_path / "runs" / "photos" / "config.yaml"))
    held_out = open_run_data(config, "val")
    assert 0 < len(held_out) < 39
    for split in ((), ("--split", "val")):
        found = evaluated(capsys, "runs/photos", f"{tmp_path}/photos/", *split)
        assert found["images"] == len(held_out)
        assert found["selected"]["of"] == 39
        assert found["selected"]["why"].startswith("that training held out of ")
    code, _, err = run(capsys, "evaluate", "runs/photos", "photos", "--split", "test", *CPU)
    assert code == 2
    assert "it has train, val" in err
    assert "leave --split out to evaluate on held-out images" in err


def test_names_that_are_not_utf8_are_escaped(
    capsys: Capture, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    names = tuple(os.fsdecode(name) for name in (b"a", b"b\xff", b"c"))
    data = write_images(tmp_path / "photos", names, broken=False)
    plain = save_tiny(tmp_path / "plain", None)
    out = tmp_path / "report"
    found = evaluated(capsys, str(plain), str(data), "--split", "all", "--out", str(out))
    assert found["images"] == 13
    rows = list(csv.DictReader((out / "classes.csv").read_text("utf-8").splitlines()))
    assert [row["class"] for row in rows] == ["a", r"b\xff", "c"]
    for suffix in ("parquet", "npy", "safetensors"):
        file = tmp_path / os.fsdecode(b"features\xff." + suffix.encode())
        code, _, err = run(capsys, "embed", str(plain), str(data), "--out", str(file), *CPU)
        assert (code, err) == (0, "")
        if suffix != "npy":
            found = read_index(file)
            assert len(found.names) == 13
            assert found.facts["data"] == str(data)
    rows_file = tmp_path / os.fsdecode(b"features\xff.rows.csv")
    table = list(csv.DictReader(rows_file.read_text("utf-8").splitlines()))
    assert {row["class"] for row in table} == {"a", r"b\xff", "c"}


def test_models_of_one_architecture_have_columns_of_their_own(
    capsys: Capture, tmp_path: Path, photos: Path
) -> None:
    one, two = save_tiny(tmp_path / "run-small"), save_tiny(tmp_path / "run-large", seed=1)
    command = (str(one), str(two), "--data", str(photos), "--shots")
    code, said, _ = run(capsys, "compare", *command, *CPU)
    assert code == 0
    assert "1: ViT/4@8 small" in said
    assert "2: ViT/4@8 large" in said


def test_functions_take_objects(photos: Path, model: Path) -> None:
    import vitrail

    loaded, dataset = load(str(model)), open_data(str(photos), split="all")
    assert isinstance(dataset, ImageDataset)
    by_text = vitrail.evaluate(model, str(photos), split="all", device="cpu")
    by_object = vitrail.evaluate(loaded, dataset, device="cpu")
    assert by_object.metrics() == by_text.metrics()
    assert by_object.dataset == by_text.dataset
    assert "<table>" in (by_text._repr_html_() or "")


def test_features_need_no_labels(
    capsys: Capture, photos: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    flat = tmp_path / "flat"
    flat.mkdir()
    files = sorted(path for path in photos.rglob("*") if path.is_file())
    for number, path in enumerate(files):
        (flat / f"{number:02}{path.suffix}").write_bytes(path.read_bytes())
    found: list[np.ndarray] = []
    for data in (flat, photos):
        out = tmp_path / f"{data.name}.npy"
        code, _, err = run(capsys, "embed", str(model), str(data), "--out", str(out), *CPU)
        assert (code, err) == (0, "")
        found.append(np.load(out))
    assert len(found[0]) > 0
    assert np.array_equal(found[0], found[1])
    monkeypatch.setenv("VITRAIL_CACHE", str(model / "model.json" / "cache"))  # below a file
    code, _, err = run(capsys, "embed", str(model), str(flat), "--out", str(out), *CPU)
    assert code == 2
    assert err.count("\n") == 1
    assert "Not a directory; free some space, or set VITRAIL_CACHE to another folder" in err
