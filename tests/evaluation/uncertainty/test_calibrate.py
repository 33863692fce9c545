"""Calibration from the shell: kept with the model, used by every command, and refused in a line."""

import csv
import json
from pathlib import Path

import pytest
import torch

import vitrail
from tests.evaluation.sets import TINY, save_tiny, write_images
from vitrail.cli import main
from vitrail.config import InputError
from vitrail.data.datasets.open import open_dataset
from vitrail.evaluation.metrics.calibration import measure_calibration
from vitrail.evaluation.uncertainty.fit_uncertainty import fit_uncertainty
from vitrail.weights.model_folder import load_folder


def test_the_error_after_is_of_temperatures_that_did_not_see_the_image() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 5, (2000,), generator=generator)
    logits = torch.randn(2000, 5, generator=generator, dtype=torch.float64)
    logits[torch.arange(2000), labels] += 1.5
    # Scores with the right posterior: noise N(0, 1) and a shift of 1.5 give logits of 1.5 x.
    found = fit_uncertainty(6 * logits, labels, data="five Gaussians")
    assert found.temperature == pytest.approx(6 / 1.5, rel=0.1)
    raw = measure_calibration(found.confidence.numpy(), found.correct.numpy().astype(bool))
    assert found.facts.ece_before == raw.ece.value > 0.15
    assert found.facts.ece_after < 0.04
    assert found.means.shape == (0, 0)


def test_a_run_is_calibrated_at_its_end(tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = {"model": TINY, "steps": 40, "batch": 64, "lr": 0.003, "report": False}
    vitrail.train("digits", out=out, **words)
    kept = load_folder(out / "model").uncertainty
    assert kept is not None
    assert kept.facts.data == vitrail.open_data("digits", split="val").name
    assert kept.means.shape == (10, 16)
    result = vitrail.evaluate(out, "digits")
    assert result.calibration is not None
    assert len(kept.confidence) == result.images
    # The same images and the final temperature: close to the cross-validated figure.
    assert result.calibration.ece.value == pytest.approx(kept.facts.ece_after, abs=0.01)
    again = vitrail.calibrate(out, "digits", out=tmp_path / "copy")
    assert again.temperature == pytest.approx(kept.temperature, rel=1e-9)
    files = vitrail.convert(str(out), tmp_path / "own", "vitrail").files
    names = ["model.safetensors", "trained_on.safetensors", "uncertainty.safetensors"]
    names += ["model.json"]
    assert [*files] == [tmp_path / "own" / name for name in names]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vitrail.weights.conversion.convert.TOLERANCE", -1)
        with pytest.raises(InputError, match="other logits"):
            vitrail.convert(str(out), tmp_path / "bad", "vitrail")
    assert not (tmp_path / "bad").exists()
    plain = tmp_path / "plain"
    vitrail.train("digits", out=plain, **words, calibrate=False)
    assert load_folder(plain / "model").uncertainty is None
    before = vitrail.evaluate(plain, "digits")
    assert before.loss.value == pytest.approx(result.loss.value, rel=1e-6)  # of the logits


def test_predict_withholds_answers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "run"
    words = {"model": TINY, "steps": 200, "batch": 128, "lr": 0.02, "report": False}
    vitrail.train("digits", out=out, **words)
    digits = open_dataset("digits", split="val")
    images = [digits.read(index) for index in range(100)]
    found = vitrail.predict(out, images, unsure="50%")
    sure = [each for each in found.predictions if not each.unsure]
    assert 0 < len(sure) < 100
    assert max(each.probability for each in found.predictions if each.unsure) < max(
        each.probability for each in sure
    )
    assert {each.answer for each in found.predictions} >= {"unsure"}
    photos = write_images(tmp_path / "photos", broken=False)
    main(["predict", str(out), str(photos), "--unsure", "50%", "--csv", "a.csv", "--top", "1"])
    rows = list(csv.DictReader((tmp_path / "a.csv").read_text().splitlines()))
    assert {row["unsure"] for row in rows} <= {"true", "false"}
    assert all(0 <= float(row["ood"]) < 1 for row in rows)
    capsys.readouterr()
    main(["predict", str(out), str(photos), "--json"])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert all("ood" in line and "unsure" not in line for line in lines)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["predict", "tiny", "photos", "--unsure", "5%"], "was not calibrated"),
        (["predict", "tiny", "photos", "--unsure", "5"], "expected an error rate such as 5%"),
        (["calibrate", "tiny", "photos", "--split", "train"], "images that it never saw"),
        (["calibrate", "tiny", "photos", "--batch", "0"], "--batch must be at least 1"),
        (["export", "tiny", "a.onnx", "--to", "onnx", "--unsure", "5%"], "requires --to web"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(
    flags: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    save_tiny(tmp_path / "tiny")
    write_images(tmp_path / "photos")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(SystemExit) as stop:
        main(flags)
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert sorted(tmp_path.rglob("*")) == before


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    save_tiny(tmp_path / "tiny")
    write_images(tmp_path / "photos")
    vitrail.calibrate(tmp_path / "tiny", str(tmp_path / "photos"))
    file = tmp_path / "tiny" / "uncertainty.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(bytes(data))
    with pytest.raises(InputError, match=r"uncertainty\.safetensors: is damaged"):
        vitrail.load(tmp_path / "tiny")
