"""A run's report: its own result first, its mistakes as images, its curves."""

import base64
import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.report.page_reader import read
from tests.report.tiny_models import save_model
from tests.shelf import refusal
from vitrail import inspect, load
from vitrail.config import override
from vitrail.data.dataset import ArrayDataset
from vitrail.data.transforms.apply import normalize
from vitrail.report.html_page import ReportSection
from vitrail.report.report_inputs import open_inputs
from vitrail.report.run_report import write_run_report
from vitrail.report.run_sections import read_curves, show_training
from vitrail.report.verdict import show_verdict
from vitrail.run import TrainConfig, train

TINY = "ViT/4@8,depth=2,width=32,heads=2,mlp=64"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train for three steps on digits."""
    out = tmp_path_factory.mktemp("runs") / "digits-run"
    config = TrainConfig(data="digits", model=TINY, out=out, loggers=(), batch=32, log_every=1)
    train(override(config, "length", "3 steps"))
    return out


def test_a_report_begins_with_the_runs_own_result(run: Path) -> None:
    """It is that of all validation images, whatever number the report looks at itself."""
    result = json.loads((run / "result.json").read_text())
    report = inspect(run, count=8)
    assert report.title == "digits-run: ViT/4@8"
    assert f"Top-1 accuracy {result['top1']:.2%} on 355 validation images" in report.description
    first = report.sections[0]
    assert first.title == "Result"
    assert first.data == result
    headline, weakest, look = map(str, first.cards)
    low, high = result["top1_interval"]
    assert f"{result['top1']:.1%}" in headline
    assert f"95 % interval {low:.1%} to {high:.1%}, on 355 validation images." in headline
    for name, count, right in result["worst_classes"]:
        assert f">{name}<" in weakest
        assert f">{right} of {count}<" in weakest
    assert 'href="#mistakes"' in look
    training = next(each for each in report.sections if each.title == "Training")
    assert "digits/test" in str(training.cards[-1])
    assert f"{result['top1']:.2%}" in str(training.cards[-1])


@pytest.mark.parametrize(
    ("losses", "said"),
    [
        ([3.0, 1.0, 1.2], "lowest at step 20 and rose: it overfits"),
        ([3.0, 2.0, 1.5], "still falling; more steps may help"),
        ([3.0, 1.0, 1.001], ""),
        ([3.0, 1.0], ""),
        ([3.0, np.nan, 1.0], ""),
    ],
)
def test_the_first_screen_reads_the_curves(losses: list[float], said: str) -> None:
    steps = 10 * np.arange(1, len(losses) + 1)
    result = {"images": 4, "steps": 30, "top1": 0.5, "top1_interval": [0.15, 0.85], "skipped": 2}
    curves = {"val/loss": (steps, np.array(losses))}
    found = {"mistakes": [1], "confused": [("<a>", "b", 2)]}
    section = show_verdict(result, ReportSection("Mistakes", "2 of 4.", data=found), curves)
    look = str(section.cards[-1])
    assert said in look
    assert ("The curves" in look) == bool(said)
    assert "Most often confused: &lt;a&gt; as b, 2 images." in look
    assert "70 points wide" in look
    assert "2 images could not be read" in look


def test_data_of_a_run_is_what_it_held_out(tmp_path: Path) -> None:
    config = TrainConfig(data="digits", model=TINY, out=tmp_path / "run", loggers=(), batch=32)
    train(override(replace(config, hold_out=0.1), "length", "1 steps"))
    inputs = open_inputs(config.out, data="digits", count=2)
    assert inputs.dataset is not None
    assert inputs.dataset.name == "digits/test"  # the data's own split, as in every command
    inputs = open_inputs(config.out, count=2)
    assert inputs.dataset is not None
    assert inputs.dataset.name == "digits/train (held out)"


def test_mistakes_are_images_the_most_confident_first(run: Path) -> None:
    result = json.loads((run / "result.json").read_text())
    report = inspect(run, count=355)
    (section,) = (each for each in report.sections if each.title == "Mistakes")
    wrong = round((1 - result["top1"]) * 355)
    assert section.note == f"{wrong} of 355 images are misclassified."
    confusion = np.array(section.data["confusion"])
    assert confusion.sum() - np.trace(confusion) == wrong
    mistakes = section.data["mistakes"]
    assert len(mistakes) == 12
    sure = [mistake["confidence"] for mistake in mistakes]
    assert sure == sorted(sure, reverse=True)
    assert all(mistake["label"] != mistake["predicted"] for mistake in mistakes)
    images = [i for i in read(report.html()).find("img") if ", predicted " in (i["alt"] or "")]
    for image in images:  # digits have 8 pixels a side
        data = base64.b64decode((image["src"] or "").partition(",")[2])
        assert Image.open(io.BytesIO(data)).size == (200, 200)
    alts = [image["alt"] or "" for image in images]
    for alt, mistake in zip(alts, mistakes, strict=True):
        said = f"{mistake['label']}, predicted {mistake['predicted']}"
        assert f"{said} with {mistake['confidence']:.1%}" in alt


def test_mistakes_of_several_labels_are_images_too(tmp_path: Path) -> None:
    """Those with a label too many or too few, by brute force; the surest wrong answer first."""
    model = save_model(tmp_path / "model", classes=("a", "b_c", "d"), activation="sigmoid")
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (9, 16, 16, 3), dtype=np.uint8)
    labels = rng.integers(0, 2, (9, 3), dtype=np.uint8)
    report = inspect(model, data=ArrayDataset("noise", ("a", "b_c", "d"), labels, pixels))
    (section,) = (each for each in report.sections if each.title == "Mistakes")
    loaded = load(model)
    assert loaded.preprocess is not None
    with torch.no_grad():
        logits = loaded.model(normalize(torch.from_numpy(pixels), loaded.preprocess))
    chances = logits.sigmoid().numpy()
    expected = {}
    for number in range(9):
        pairs = zip(chances[number], labels[number] > 0, strict=True)
        wrong = [p if p >= 0.5 else 1 - p for p, true in pairs if (p >= 0.5) != true]
        if wrong:
            expected[f"noise[{number}]"] = max(wrong)
    found = {each["name"]: each["confidence"] for each in section.data["mistakes"]}
    assert found == pytest.approx(expected, abs=1e-5)
    assert list(found.values()) == sorted(found.values(), reverse=True)
    assert section.note == f"{len(expected)} of 9 images have a wrong label or lack one."
    missed = int(((chances[:, 1] < 0.5) & (labels[:, 1] > 0)).sum())
    assert f"{missed} missed" in str(section.cards[-1])
    one = inspect(save_model(tmp_path / "one", classes=("a", "b_c", "d")),
                  data=ArrayDataset("noise", ("a", "b_c", "d"), labels, pixels))  # fmt: skip
    (section,) = (each for each in one.sections if each.title == "Mistakes")
    assert section.note == "The model gives each image one class, but images have several labels."


def test_a_sample_of_the_images_is_called_one(run: Path) -> None:
    (section,) = (each for each in inspect(run, count=9).sections if each.title == "Mistakes")
    assert section.note.endswith("of 9 images are misclassified, sampled evenly from 355.")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"steps": "x", "images": 1}', "\0"])
def test_a_damaged_result_is_named(run: Path, tmp_path: Path, text: str) -> None:
    for name in ("config.yaml", "metrics.jsonl", "model"):
        (tmp_path / name).symlink_to(run / name)
    (tmp_path / "result.json").write_text(text)
    assert "result.json is damaged; expected what training wrote" in refusal(inspect, tmp_path)


def test_a_run_leaves_its_page(run: Path) -> None:
    before = {path.name for path in run.iterdir()}
    page = write_run_report(run)
    assert page == run / "report.html"
    assert {path.name for path in run.iterdir()} == before | {"report.html"}
    found = read(page.read_text())
    assert "Confusion matrix of 10 classes" in " ".join(i["alt"] or "" for i in found.find("img"))
    curves = read_curves(run)
    assert curves["train/loss"][0].tolist() == [1, 2, 3]
    assert f"train/loss ends at {curves['train/loss'][1][-1]:.4g}" in page.read_text()


def test_a_run_without_labels_shows_what_it_predicts(tmp_path: Path) -> None:
    out = tmp_path / "run"
    name = "ViT/4@8,depth=1,width=16,heads=2,mlp=16"
    config = TrainConfig(
        data="digits", model=name, out=out, loggers=(), batch=32, log_every=1, task="masked-patches"
    )
    train(override(config, "length", "3 steps"))
    text = write_run_report(out).read_text()
    (shown,) = (i for i in read(text).find("img") if "was predicted" in (i["alt"] or ""))
    assert "6 images" in (shown["alt"] or "")
    assert "val/correct ends at" in text
    (out / "reconstructions.png").write_bytes((out / "reconstructions.png").read_bytes()[:60])
    assert "reconstructions.png is damaged" in refusal(write_run_report, out)


def test_a_gradient_that_was_too_large_is_none_of_the_numbers(tmp_path: Path) -> None:
    row = '{"step": 1, "train/loss": 2.0, "norm": "inf"}'
    (tmp_path / "metrics.jsonl").write_text(f"{row}\n")
    assert show_training(tmp_path).data == {"last": {"train/loss": 2.0}}


def test_damaged_metrics_are_named(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "lr": 0.1}\n{"st')
    assert "metrics.jsonl is damaged" in refusal(read_curves, tmp_path)
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "train/loss": "nan"}\n')
    (values,) = read_curves(tmp_path)["train/loss"][1:]
    assert np.isnan(values).all()
    assert "metrics.jsonl: No such file" in refusal(read_curves, tmp_path / "none")
