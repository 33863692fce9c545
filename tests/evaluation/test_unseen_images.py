"""Every number is of images that were not trained on: labels by a coin, which only a leak beats."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.coin_flips import HONEST, learn_by_heart, write_noise
from tests.commands import run as command
from tests.evaluation.sets import save_tiny
from vitrail import (
    bench,
    calibrate,
    compare,
    cross_validate,
    evaluate,
    fewshot,
    inspect,
    knn,
    probe,
)
from vitrail.config import Duration, InputError
from vitrail.evaluation.choosing.rank_backbones import rank_backbones
from vitrail.report.run_report import write_run_report
from vitrail.training.checkpoints.run_folder import read_result
from vitrail.training.run_result import Run, chose_itself
from vitrail.weights.load import load
from vitrail.weights.loaded import save


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_noise(tmp_path_factory.mktemp("coins") / "photos", 50)


@pytest.fixture(scope="module")
def plain(photos: Path) -> Path:
    return learn_by_heart(photos, photos.parent / "plain").folder


def wilson_by_roots(share: float, count: int) -> tuple[float, float]:
    """Solve (share - p)^2 = z^2 p (1 - p) / count for p."""
    z2 = 1.959963984540054**2 / count
    low, high = sorted(np.roots([1 + z2, -2 * share - z2, share * share]).real)
    return float(low), float(high)


def accuracy(model: Any, data: Any, **options: Any) -> tuple[float, int, int]:
    """Return top-1, the images that it is of, and how many there are."""
    found = evaluate(model, str(data), **options)
    assert found.top1 is not None
    assert found.selected is not None
    assert found.selected.images == found.images
    return found.top1.value, found.images, found.selected.of


def test_only_what_training_held_out_is_measured(photos: Path, plain: Path) -> None:
    for model in (plain, plain / "model"):
        top1, images, of = accuracy(model, photos)
        assert (images, of) == (10, 100)
        assert top1 < 1
    assert accuracy(plain, photos, split="train") == (1.0, 90, 100)
    found = evaluate(plain, str(photos), split="all")
    assert "90 of which were trained on" in str(found.selected)


def test_other_images_are_measured_whole(plain: Path, tmp_path: Path) -> None:
    """Also where they have the names of known ones, as numbered files do."""
    other = write_noise(tmp_path / "other", 50, seed=1)
    top1, images, of = accuracy(plain, other)
    assert (images, of) == (100, 100)
    assert top1 < HONEST


def test_a_moved_or_renamed_copy_is_known(photos: Path, plain: Path, tmp_path: Path) -> None:
    for number, path in enumerate(sorted(photos.rglob("*.png"))):
        copy = tmp_path / "copy" / path.parent.name / f"img{number}.png"
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    assert accuracy(plain / "model", tmp_path / "copy")[1:] == (10, 100)
    listed = [f"{path},{path.parent.name}" for path in sorted((tmp_path / "copy").rglob("*.png"))]
    (tmp_path / "all.csv").write_text("\n".join(["path,label", *listed]) + "\n")
    assert accuracy(plain, tmp_path / "all.csv")[1:] == (10, 100)


def test_new_images_are_new_and_known_ones_stay(plain: Path, tmp_path: Path) -> None:
    grown = write_noise(write_noise(tmp_path / "photos", 50), 5, start=900)
    found = evaluate(plain, str(grown))
    assert (found.images, found.selected and found.selected.of) == (20, 110)
    assert "10 that training held out and 10 that it never had" in str(found.selected)


def test_where_nothing_is_left_it_is_refused(photos: Path, plain: Path, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    opened = evaluate(plain, str(photos), split="train", out=tmp_path / "report")
    assert opened.images == 90
    for line in (tmp_path / "report" / "images.csv").read_text().splitlines()[1:]:
        name = line.split(",")[0]
        (seen / name).parent.mkdir(parents=True, exist_ok=True)
        (seen / name).write_bytes((photos / name).read_bytes())
    with pytest.raises(InputError, match=r"all 90 images of .* were trained on by .*--split all"):
        evaluate(plain, str(seen))
    assert accuracy(plain, seen, split="all") == (1.0, 90, 90)


def test_weights_without_a_record_are_measured_whole(
    photos: Path, plain: Path, tmp_path: Path
) -> None:
    loaded = load(str(plain))
    assert loaded.trained_on is not None
    object.__setattr__(loaded, "trained_on", None)
    save(loaded, tmp_path / "bare")
    found = evaluate(tmp_path / "bare", str(photos))
    assert found.images == 100
    assert "was trained on is not recorded" in str(found.selected)


def test_what_weights_were_trained_on_before_counts(
    photos: Path, plain: Path, tmp_path: Path
) -> None:
    """Fine-tuned on other images, a model still knows those of its first training."""
    other = write_noise(tmp_path / "other", 10, seed=2)
    words = {"weights": str(plain / "model"), "steps": 1}
    learn_by_heart(other, tmp_path / "next", **words)
    assert accuracy(tmp_path / "next", photos)[1:] == (10, 100)
    assert accuracy(tmp_path / "next", other)[1:] == (2, 20)


def test_a_run_without_a_record_is_asked_for_its_settings(
    photos: Path, plain: Path, tmp_path: Path
) -> None:
    old = tmp_path / "old"
    shutil.copytree(plain, old)
    shutil.rmtree(old / "trained_on")
    loaded = load(str(plain))
    object.__setattr__(loaded, "trained_on", None)
    save(loaded, old / "model")
    found = evaluate(old, str(photos))
    assert found.images == 10
    assert any("was trained on is not recorded: its settings" in note for note in found.notes)


@pytest.mark.parametrize("damage", ["bytes", "index", "array"])
def test_a_damaged_record_of_a_run_is_noticed(
    photos: Path, plain: Path, tmp_path: Path, damage: str
) -> None:
    run = tmp_path / "run"
    shutil.copytree(plain, run)
    if damage == "array":
        (run / "trained_on" / "held.npy").unlink()
    else:
        file = run / "trained_on" / ("trained.npy" if damage == "bytes" else "index.json")
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(content)
    for read in (lambda: evaluate(run, str(photos)), lambda: learn_by_heart(photos, run)):
        with pytest.raises(InputError, match=r"trained_on is damaged .*; remove it") as caught:
            read()
        assert "\n" not in str(caught.value)
    shutil.rmtree(run / "trained_on")
    assert accuracy(run, photos)[1:] == (10, 100)  # by the model folder's record
    assert learn_by_heart(photos, run).steps == 60


@pytest.fixture(scope="module")
def best(photos: Path) -> Run:
    """Train with the best of several evaluations kept."""
    settings = {"keep": "best", "eval_every": Duration(5, "steps")}
    return learn_by_heart(photos, photos.parent / "best", steps=20, settings=settings)


def test_images_that_chose_among_evaluations_are_named(
    photos: Path, plain: Path, best: Run, tmp_path: Path
) -> None:
    said = "10 of 100 images that training held out of .*, which also chose a model's weights"
    shutil.copytree(best.folder / "model", tmp_path / "copy")
    old = tmp_path / "old"
    shutil.copytree(best.folder, old)
    shutil.rmtree(old / "trained_on")
    loaded = load(str(best.folder))
    object.__setattr__(loaded, "trained_on", None)
    save(loaded, old / "model")
    for model in (best.folder, best.folder / "model", tmp_path / "copy", old):
        assert re.match(said, str(evaluate(model, str(photos)).selected))
    whole = evaluate(best.folder, str(photos), split="all")
    assert "10 of which also chose" in str(whole.selected)
    for pair in ((plain, best.folder), (best.folder, plain)):
        found = compare([*pair], str(photos), shots=(), batch=2)
        assert re.match(said, str(found.selected))
    for model in (plain, plain / "model"):
        assert "chose" not in str(evaluate(model, str(photos)).selected)


def test_a_run_says_that_its_images_chose(photos: Path, plain: Path, best: Run) -> None:
    said = "the same images chose its weights or thresholds"
    assert any(said in str(line) for line in best.summary())
    assert said in write_run_report(best.folder).read_text()
    again = read_result(plain / "result.json")
    assert (again["chosen_on"], again["evaluated_on"]) == (None, f"{photos} (val)")
    assert chose_itself("photos (val)", None)  # runs that do not say what they were evaluated on
    assert not chose_itself("a tenth", "a fold")


def test_every_output_says_how_many_images(photos: Path, plain: Path, tmp_path: Path) -> None:
    """Those of `bench`, the page of `inspect`, and few-shot of `compare`."""
    other = learn_by_heart(photos, tmp_path / "other", steps=1, settings={"hold_out": 0.3}).folder
    chosen = f"10 of 100 images that training held out of {photos}"
    measured = bench(plain, data=str(photos), backends=("pytorch",), images=2, rounds=1)
    assert str(measured.selected) == chosen
    assert any(chosen in str(line) for line in measured.summary())
    for pair in ((plain, other), (other, plain)):
        page = inspect(pair[0], data=str(photos), against=pair[1], count=4)
        assert f"4 images from {chosen}" in page.description
    found = compare([plain, other], str(photos), shots=(1,), seeds=1, batch=2)
    assert str(found.few) == chosen
    new = write_noise(tmp_path / "new", 20, seed=5)
    found = compare([plain, other], str(new), shots=(1,), seeds=1, batch=2)
    assert found.selected is not None
    assert found.selected.images == 40
    assert any("few-shot evaluated on 4 of 40 images" in str(line) for line in found.summary())
    assert found.to_dict()["few"]["images"] == 4


def test_models_are_compared_on_what_all_held_out(
    photos: Path, plain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whichever comes first: each was trained on images that the other held out."""
    words = {"folds": 2, "fold": 2, "steps": 60}
    fold = learn_by_heart(photos, tmp_path / "fold", **words).folder
    for pair in ((plain, fold), (fold, plain)):
        found = compare([*pair], str(photos), shots=(), batch=2)
        assert found.selected is not None
        assert found.selected.images == found.images < 10
        assert "that training held out" in found.selected.why
    own = tmp_path / "second"
    learn_by_heart(photos, own, steps=60, settings={"hold_out": 0.3})
    for pair in ((plain, own), (own, plain)):
        found = compare([*pair], str(photos), shots=(1,), seeds=1, batch=2)
        assert found.images == 10
        for row in found.models:
            assert row.result is not None
            assert row.result.top1 is not None
            assert row.result.top1.value < 1
    unfit = evaluate(own, str(photos))
    assert unfit.images == 30
    assert unfit.top1 is not None
    assert unfit.top1.value < HONEST


def test_probes_of_a_run_are_measured_on_what_it_held_out(photos: Path, plain: Path) -> None:
    found = probe(plain, str(photos))
    assert (found.images, found.train_images) == (10, 90)
    assert found.top1 < 1
    neighbors = knn(plain, str(photos), k=(1, 3))
    for each in (found, neighbors):
        said, (low, high) = each.to_dict(), wilson_by_roots(each.top1, 10)
        assert said["top1_interval"] == pytest.approx([low, high])
        assert any(f"{each.top1:.2%} ({low:.2%} to {high:.2%})" in str(x) for x in each.summary())
    for row in neighbors.to_dict()["each"]:
        assert row["top1_interval"] == pytest.approx(wilson_by_roots(row["top1"], 10))
    few = fewshot(plain, str(photos), shots=(5,), seeds=1)
    assert (few.images, few.train_images) == (10, 90)
    assert cross_validate(plain / "model", str(photos), folds=2).images == 10
    ranked = rank_backbones([plain], str(photos))
    assert ranked.images == 10
    assert str(ranked.selected).startswith("10 of 100 images that training held out")


@pytest.mark.parametrize("learn", [probe, fewshot])
def test_a_probe_is_measured_on_what_it_did_not_learn_from(
    photos: Path, tmp_path: Path, learn: Any
) -> None:
    """A probe of published weights, on data without splits."""
    learn(save_tiny(tmp_path / "published"), str(photos), out=tmp_path / "probe")
    found = evaluate(tmp_path / "probe", str(photos))
    assert found.images == 10
    assert str(found.selected) == f"10 of 100 images that training held out of {photos}"


def test_images_that_were_trained_on_calibrate_nothing(
    photos: Path, plain: Path, tmp_path: Path
) -> None:
    found = calibrate(plain, str(photos), out=tmp_path / "calibrated")
    assert found.images == 10
    kept = load(str(tmp_path / "calibrated")).trained_on
    assert kept is not None
    assert kept.trainings[0].images == 90
    other = write_noise(tmp_path / "other", 12, seed=3)
    assert calibrate(plain, str(other), out=tmp_path / "again").images == 24


def test_images_that_chose_the_temperature_are_known_again(
    photos: Path, plain: Path, tmp_path: Path
) -> None:
    """Under another name too, and not where others have the same name."""
    first = write_noise(tmp_path / "set", 20, seed=7)
    calibrate(plain, str(first), out=tmp_path / "calibrated")
    loaded = load(str(tmp_path / "calibrated"))
    assert loaded.uncertainty is not None
    facts = replace(loaded.uncertainty.facts, temperature=2.0)  # as if one had helped
    kept = replace(loaded.uncertainty, facts=facts)
    save(replace(loaded, uncertainty=kept), tmp_path / "warm")

    def said(data: Path) -> str:
        (note,) = [x for x in evaluate(tmp_path / "warm", str(data)).notes if "temperature" in x]
        found = compare([tmp_path / "warm", plain], str(data), shots=(), batch=2)
        assert note in found.models[0].notes
        return note

    shutil.copytree(first, tmp_path / "copy")
    assert "chosen on these images (calibration error on" in said(tmp_path / "copy")
    write_noise(tmp_path / "copy", 5, start=100, seed=8)
    assert "chosen on 40 of these images" in said(tmp_path / "copy")
    shutil.rmtree(first)
    write_noise(first, 20, seed=9)
    assert f"chosen on 40 images of {first}" in said(first)
    old = replace(kept, hashes=None)
    save(replace(loaded, uncertainty=old), tmp_path / "warm")
    assert "chosen on these images" in said(first)  # older folders know the name alone


def test_the_command_says_which_images(
    photos: Path, plain: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said, _ = command(capsys, "evaluate", str(plain), str(photos))
    assert code == 0
    assert f"10 of 100 images that training held out of {photos}" in said
    code, said, _ = command(capsys, "evaluate", str(plain), str(photos), "--json")
    expected = {"images": 10, "of": 100, "why": f"that training held out of {photos}"}
    assert json.loads(said)["selected"] == expected
