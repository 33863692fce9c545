"""The report: whole, self-contained, escaped, the same twice, and for every kind of model."""

import base64
import hashlib
import json
import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.report.page_reader import read
from tests.report.tiny_models import BIT, CLASSES, EVIL, TINY, save_images, save_model, save_set
from tests.shelf import refusal
from vitrail.data.dataset import ArrayDataset
from vitrail.data.datasets.open import open_data
from vitrail.data.transforms.preprocess import default_preprocess
from vitrail.inspection.attention import attention_masks
from vitrail.inspection.distance import attention_distance
from vitrail.plotting.tiles import stretch
from vitrail.predictor import Predictor
from vitrail.report import InspectionReport, inspect
from vitrail.report.mistakes import predict_inputs
from vitrail.report.report_images import read_images
from vitrail.report.report_inputs import open_inputs
from vitrail.weights.load import load
from vitrail.weights.uncertainty_record import Uncertainty, UncertaintyFacts


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reports")


@pytest.fixture(scope="module")
def model(place: Path) -> str:
    return save_model(place / "model")


@pytest.fixture(scope="module")
def report(place: Path, model: str) -> InspectionReport:
    images = save_images(place / "images", "<b>&.png", "plain.png")
    data = save_set(place / "set")
    return inspect(model, images, data=data, split="all", layers=[-1], against=model)


def test_a_page_holds_everything_itself(report: InspectionReport) -> None:
    page = report.html()
    found = read(page)
    images = found.find("img")
    drawn = [i for i in images if (i["src"] or "").startswith("data:image/svg+xml;base64,")]
    assert len(drawn) == len(report.plots) > 8
    assert len(images) == len(drawn) + 2  # those under the sliders
    assert all((image["src"] or "").startswith("data:image/") for image in images)
    assert all(len(image["alt"] or "") > 20 for image in images)
    assert not found.find("link")
    assert not re.search(r"(?:src|href)=[\"'](?!data:|#)", page)
    anchors = {f"#{section['id']}" for section in found.find("section")}
    assert {link["href"] for link in found.find("a")} == anchors - {"#section-1"}  # both images
    (policy,) = (m for m in found.find("meta") if m.get("http-equiv"))
    assert (policy["content"] or "").startswith("default-src 'none'")
    (script,) = re.findall(r"<script>(.+?)</script>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert (policy["content"] or "").endswith(f"; script-src 'sha256-{digest}'")


def test_sliders_hold_the_attention_of_every_head(report: InspectionReport, place: Path) -> None:
    first = next(e for e in read(report.html()).find("div") if e.get("class") == "explorer")
    shape = [int(size) for size in (first["data-shape"] or "").split(",")]
    assert shape == [2, 2, 4, 4]
    kept = np.frombuffer(base64.b64decode(first["data-maps"] or ""), np.uint8)
    inputs = open_inputs(str(place / "model"), [place / "images" / "<b>&.png"])
    (x,) = inputs.batches(inputs.shown)
    expected = []
    for layer in range(2):
        heads = attention_masks(inputs.model, x, method="raw", by_head=True, layer=layer).values[0]
        expected += [stretch(each) for each in (heads.mean(0), *heads)]
    assert np.abs(kept.reshape(6, 4, 4) - 255 * np.stack(expected)).max() <= 1


def test_a_page_without_sliders_runs_no_script(tmp_path: Path) -> None:
    page = inspect(save_model(tmp_path / "bit", BIT), save_images(tmp_path, "a.png")).html()
    assert not read(page).find("script")
    assert "script-src" not in page


def test_names_come_out_as_text(report: InspectionReport) -> None:
    found = read(report.html())
    assert EVIL in found.text
    assert "<b>&.png" in found.text
    assert "made <here>" in found.text


def test_predictions_are_the_models_own(report: InspectionReport, model: str, place: Path) -> None:
    part = report.sections[0].data
    inputs = open_inputs(model, [place / "images" / "<b>&.png"])
    with torch.no_grad():
        expected = inputs.model(inputs.batches(inputs.shown)[0]).softmax(-1)[0]
    values, indices = expected.sort(descending=True)
    assert [row["index"] for row in part["top"]] == indices.tolist()
    assert [row["probability"] for row in part["top"]] == pytest.approx(values.tolist(), abs=1e-6)
    assert part["top"][0]["label"] == inputs.classes[int(indices[0])]
    assert part["layers"] == [1]


def test_probabilities_are_those_of_predict(model: str, tmp_path: Path) -> None:
    """A calibrated model's temperature counts in the report as it does everywhere."""
    facts = UncertaintyFacts(temperature=0.4, ece_before=0, ece_after=0, images=2, data="noise")
    known = Uncertainty(
        facts=facts,
        confidence=torch.tensor([0.5, 0.6], dtype=torch.float64),
        correct=torch.tensor([0, 1], dtype=torch.uint8),
        means=torch.zeros(0, 0),
        distances=torch.zeros(0),
    )
    calibrated = replace(load(model), uncertainty=known)
    (path,) = save_images(tmp_path, "a.png")
    top = inspect(calibrated, path).sections[0].data["top"]
    expected = Predictor(calibrated, device="cpu").predict(path).top
    assert [row["label"] for row in top] == [score.label for score in expected]
    found = [row["probability"] for row in top]
    assert found == pytest.approx([score.probability for score in expected], abs=1e-5)
    data = ArrayDataset("one", CLASSES, np.array([2]), inputs_of(path))
    (section,) = (e for e in inspect(calibrated, data=data).sections if e.title == "Mistakes")
    mistakes = section.data["mistakes"]
    assert [each["confidence"] for each in mistakes] == pytest.approx(found[:1], abs=1e-5)


def inputs_of(path: Path) -> np.ndarray:
    return np.asarray(Image.open(path).convert("RGB"))[None]


def test_the_numbers_are_those_of_the_figures(report: InspectionReport) -> None:
    parts = {part["title"]: part for part in report.data["sections"]}
    first, second = parts["Attention"]["distances"].values()
    assert first == second  # the model beside itself
    assert np.shape(first) == (2, 2)
    assert parts["Attention"]["images"] == 12
    assert np.allclose(np.diag(parts["Features"]["similarity"]), 1, atol=1e-5)
    assert parts["Model card"]["model"].startswith("ViT/4@16")
    keys = [figure["key"] for figure in report.data["figures"]]
    assert len(set(keys)) == len(keys)
    assert "The classes of the data are not the model's" in parts["Mistakes"]["note"]


def test_files_stand_beside_the_page(report: InspectionReport, tmp_path: Path) -> None:
    written = report.write(tmp_path / "new" / "out")
    assert written.report == tmp_path / "new" / "out" / "report.html"
    assert written.numbers is not None
    assert written.numbers.name == "report.json"
    on_disk = {path for path in (tmp_path / "new" / "out").rglob("*") if path.is_file()}
    assert {written.report, written.numbers, *written.figures} == on_disk
    assert json.loads(written.numbers.read_text()) == json.loads(json.dumps(report.data))
    assert {path.suffix for path in written.figures} == {".png", ".svg"}


def test_a_second_report_is_the_same_and_replaces_the_first(
    report: InspectionReport, model: str, place: Path, tmp_path: Path
) -> None:
    report.write(tmp_path)
    note = tmp_path / "figures" / "mine.png"
    note.write_text("keep")
    again = inspect(model, [place / "images" / "plain.png"])
    again.write(tmp_path)
    page = (tmp_path / "report.html").read_bytes()
    assert page == again.html().encode()
    there = {path.stem for path in (tmp_path / "figures").iterdir()}
    assert there == {plot.key for plot in again.plots} | {"mine"}
    once_more = inspect(model, [place / "images" / "plain.png"])
    assert once_more.html().encode() == page


def test_what_cannot_be_written_leaves_the_old_report(
    report: InspectionReport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "report.html").write_text("old")

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert "cannot be written: No space left" in refusal(report.write, tmp_path)
    assert (tmp_path / "report.html").read_text() == "old"
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["report.html"]


def test_a_notebook_shows_the_page(report: InspectionReport) -> None:
    (frame,) = read(report._repr_html_()).find("iframe")
    assert frame["srcdoc"] == report.html()


def test_a_mask_lies_on_the_part_that_was_seen(model: str, tmp_path: Path) -> None:
    """Of an upright 24 x 16 image, stretched to the input, all is seen and nothing is turned."""
    (path,) = save_images(tmp_path, "tall.png")
    report = inspect(model, [path])
    shown, mask, _ = (axes.images[0].get_array() for axes in report.plots[0].axes)
    assert shown is not None
    assert mask is not None
    assert shown.shape == (24, 16, 3)
    assert mask.shape == (24, 16)
    inputs = open_inputs(model, [path])
    values = attention_masks(inputs.model, inputs.batches(inputs.shown)[0]).values[0]
    cells = np.asarray(mask).reshape(4, 6, 4, 4).mean((1, 3))
    assert np.unravel_index(cells.argmin(), (4, 4)) == np.unravel_index(values.argmin(), (4, 4))


def test_a_turned_photograph_is_shown_upright(tmp_path: Path) -> None:
    """Orientation 6 is stored lying on its side; its white edge is the upright image's top."""
    pixels = np.zeros((16, 32, 3), np.uint8)
    pixels[:, :4] = 255
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(pixels).save(tmp_path / "turned.png", exif=exif)
    preprocess = default_preprocess((16, 16), 3)
    (image,) = read_images([tmp_path / "turned.png"], preprocess)
    assert image.pixels.shape == (32, 16, 3)
    assert (image.pixels[:4] == 255).all()
    assert not image.pixels[4:].any()
    assert (image.input[0] == 255).all()


def test_large_images_are_shown_small_and_seen_whole(tmp_path: Path) -> None:
    (path,) = save_images(tmp_path, "wide.png", size=(300, 900))
    (image,) = read_images([path], default_preprocess((16, 16), 3))
    assert image.pixels.shape == (107, 320, 3)
    assert image.input.shape == (16, 16, 3)


def test_weights_in_half_precision_are_looked_at_in_full(tmp_path: Path) -> None:
    model = save_model(tmp_path / "model", dtype=torch.float16)
    report = inspect(model, save_images(tmp_path, "a.png"))
    assert sum(row["probability"] for row in report.sections[0].data["top"]) == pytest.approx(1)


@pytest.mark.parametrize(
    ("name", "figures"),
    [
        (BIT, {"images", "filters", "neighbors"}),
        (f"{TINY},pool=gap,position=none", {"overlays", "heads", "lens", "distances", "filters"}),
        (f"{TINY},pool=map,registers=2", {"overlays", "heads", "lens", "distances", "positions"}),
        (f"{TINY},attention=axial,pool=gap", {"overlays", "heads", "distances", "norms"}),
        (*(f"{TINY},position=relative-2d,position_at=every-layer", {"overlays", "heads"}),),
        (*(f"{TINY},position=relative-mlp,position_at=shared,rotary=axial", {"heads", "norms"}),),
        (f"{TINY},channels=1", {"overlays", "filters", "components"}),
        (f"{TINY},channels=5", {"overlays", "norms"}),
    ],
)
def test_every_kind_of_model_has_a_report(name: str, figures: set[str], tmp_path: Path) -> None:
    model = save_model(tmp_path / "model", name)
    if "channels=5" in name:
        np.save(tmp_path / "image.npy", np.zeros((16, 16, 5), np.uint8))
        report = inspect(model, [tmp_path / "image.npy"])
    else:
        report = inspect(model, data=save_set(tmp_path / "set"), split="all", count=9)
    assert figures <= {plot.name for plot in report.plots}
    assert ("no tokens" in report.description) == (name == BIT)


def test_a_vit_stands_beside_a_hybrid_in_one_plot(tmp_path: Path) -> None:
    shape = "16@64,depth=2,width=32,heads=2,mlp=64"
    vit, hybrid = (
        save_model(tmp_path / name, f"{prefix}ViT/{shape}")
        for name, prefix in (("vit", ""), ("hybrid", "R+"))
    )
    report = inspect(vit, save_images(tmp_path, *"abcd"), against=hybrid)
    numbers = report.data["sections"][4]["distances"]
    assert list(numbers) == ["ViT/16@64", "R+ViT/16@64"]
    for name, text in (("ViT/16@64", vit), ("R+ViT/16@64", hybrid)):
        inputs = open_inputs(text, [tmp_path / letter for letter in "abcd"])
        expected = attention_distance(inputs.model, inputs.batches(inputs.shown)).pixels
        assert np.allclose(numbers[name], expected)
    (plot,) = (plot for plot in report.plots if plot.name == "distances")
    assert len(plot.axes[0].collections) == 2
    assert "similarity" in report.data["sections"][6]


def test_a_model_without_a_head_has_no_predictions(tmp_path: Path) -> None:
    model = save_model(tmp_path / "model", classes=None)
    report = inspect(model, save_images(tmp_path, "a.png"))
    assert "top" not in report.sections[0].data
    assert "lens" not in {plot.name for plot in report.plots}


def test_positions_are_shown_before_and_after_resizing(model: str, tmp_path: Path) -> None:
    report = inspect(model, save_images(tmp_path, "a.png"), image=(24, 32))
    (plot,) = (plot for plot in report.plots if plot.name == "positions")
    assert "4 by 4 and 6 by 8 tiles" in plot.alt


def test_a_sigmoid_model_shows_sigmoid_scores(tmp_path: Path) -> None:
    """Its classes do not exclude each other: the scores don't add up to one."""
    images = save_images(tmp_path, "a.png")
    softmax, sigmoid = (
        inspect(save_model(tmp_path / kind, activation=kind), images)
        for kind in ("softmax", "sigmoid")
    )
    inputs = open_inputs(str(tmp_path / "sigmoid"), images)
    with torch.no_grad():
        logits = inputs.model(inputs.batches(inputs.shown)[0])[0]
    expected = logits.sigmoid().sort(descending=True).values
    scores = [row["probability"] for row in sigmoid.sections[0].data["top"]]
    assert scores == pytest.approx(expected.tolist(), abs=1e-6)
    assert sum(row["probability"] for row in softmax.sections[0].data["top"]) == pytest.approx(1)
    inputs = open_inputs(str(tmp_path / "sigmoid"), data=save_set(tmp_path / "set"), split="all")
    assert inputs.dataset is not None
    predicted = predict_inputs(inputs, inputs.dataset)
    with torch.no_grad():
        logits = torch.cat([inputs.model(batch) for batch in inputs.batches(inputs.measured)])
    sure = logits.sigmoid().amax(1).tolist()
    assert predicted.confidence.tolist() == pytest.approx(sure, abs=1e-6)
    (lens,) = (plot for plot in sigmoid.plots if plot.name == "lens")
    assert np.asarray(lens.axes[0].lines[0].get_ydata())[-1] == pytest.approx(scores[0], abs=1e-6)


def test_objects_do_as_well_as_text(model: str, tmp_path: Path) -> None:
    """A loaded model, a plain module, images as arrays and Pillow images, a dataset."""
    (path,) = save_images(tmp_path, "a.png")
    with Image.open(path) as image:
        pixels = np.asarray(image)
    loaded = load(model)
    expected = inspect(model, [path]).sections[0].data["top"]
    for images in (path, str(path), pixels, Image.fromarray(pixels)):
        assert inspect(loaded, images).sections[0].data["top"] == expected
    plain = inspect(loaded.model, pixels, data=open_data(save_set(tmp_path / "set"), split="all"))
    top = [row["probability"] for row in plain.sections[0].data["top"]]
    assert top == [row["probability"] for row in expected]
    assert "The weights have no preprocessing" in plain.description
