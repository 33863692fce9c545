"""Folds and hold-outs of a folder without splits, with labels by a coin: no image is on both sides.

What is not a leak is near 50 %; images that were trained on are known by heart.
"""

from pathlib import Path

import numpy as np
import pytest

from tests.coin_flips import HONEST, learn_by_heart, write_noise
from vitrail import evaluate, knn
from vitrail.config import InputError
from vitrail.recipes.folds import FoldsResult
from vitrail.training.losses import DistillConfig
from vitrail.training.run_data import open_run_data
from vitrail.training.train_config import FewShotConfig


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_noise(tmp_path_factory.mktemp("folds") / "photos", 50)


@pytest.fixture(scope="module")
def folds(photos: Path) -> FoldsResult:
    """Train two folds, each of which keeps the best of several weights."""
    words = {"folds": 2, "settings": {"keep": "best", "eval_every": "10 steps"}}
    found = learn_by_heart(photos, photos.parent / "folds", **words)
    assert isinstance(found, FoldsResult)
    return found


def images_of(run: Path, split: str) -> set[str]:
    dataset = open_run_data(run, split)
    return {dataset.where(index) for index in range(len(dataset))}


def test_what_chooses_is_not_what_is_scored(photos: Path, folds: FoldsResult) -> None:
    """The best of several evaluations is above chance on what chose it, and only there."""
    scored = [images_of(run.folder, "val") for run in folds.runs]
    assert [len(each) for each in scored] == [run.images for run in folds.runs]
    assert not scored[0] & scored[1]
    assert len(scored[0] | scored[1]) == 100
    for run in folds.runs:
        assert run.chosen_on is not None
        assert "a tenth of what fold" in run.chosen_on
        found = evaluate(run.folder, str(photos))
        assert found.images == run.images
        assert found.top1 is not None
        assert found.top1.value == pytest.approx(run.top1)
        assert found.top1.value < HONEST


def test_a_folds_model_is_measured_on_its_fold(photos: Path, folds: FoldsResult) -> None:
    fold = folds.runs[0]
    for model in (fold.folder, fold.folder / "model"):
        found = evaluate(model, str(photos))
        assert (found.images, found.selected and found.selected.of) == (fold.images, 100)
    neighbors = knn(fold.folder, str(photos), k=(1,))
    assert neighbors.images == fold.images
    assert neighbors.train_images == 100 - fold.images
    assert neighbors.top1 < HONEST


def test_two_photos_more_do_not_redraw_a_fold(folds: FoldsResult, tmp_path: Path) -> None:
    grown = write_noise(write_noise(tmp_path / "photos", 50), 1, start=900)
    fold = folds.runs[1]
    found = evaluate(fold.folder, str(grown))
    assert found.images == fold.images + 2
    assert found.top1 is not None
    assert found.top1.value < HONEST
    assert f"{fold.images} that training held out and 2 that it never had" in str(found.selected)


def test_a_hold_out_leaves_no_image_in_neither(photos: Path, tmp_path: Path) -> None:
    found = learn_by_heart(photos, tmp_path / "run", steps=1, settings={"hold_out": 0.2})
    train, held = (images_of(tmp_path / "run", split) for split in ("train", "val"))
    assert (len(train), len(held), found.images) == (80, 20, 20)
    assert not train & held
    spared = {"hold_out": 0.2, "hold_out_of": "train"}
    learn_by_heart(photos, tmp_path / "spared", steps=1, settings=spared)
    train, chosen = (images_of(tmp_path / "spared", split) for split in ("train", "val"))
    assert (len(train), len(chosen)) == (72, 18)
    assert not (train | chosen) & images_of(tmp_path / "run", "val") - held


def test_without_evaluation_all_images_are_trained_on(photos: Path, tmp_path: Path) -> None:
    bare = {"val_split": "", "eval_every": None}
    learn_by_heart(photos, tmp_path / "run", steps=1, settings=bare)
    assert len(images_of(tmp_path / "run", "train")) == 100
    with pytest.raises(InputError, match=r"all 100 images of .* were trained on"):
        evaluate(tmp_path / "run", str(photos))
    few = {**bare, "fewshot": FewShotConfig(data=str(photos), shots=(1,), every=None, seeds=1)}
    learn_by_heart(photos, tmp_path / "few", steps=1, settings=few)
    assert len(images_of(tmp_path / "few", "train")) == 90  # the others are what few-shot measures


def test_all_of_other_images_is_validated_on(photos: Path, tmp_path: Path) -> None:
    """Neither side gives a tenth away, unless both are the same folder."""
    other = write_noise(tmp_path / "other", 20, seed=1)
    found = learn_by_heart(photos, tmp_path / "run", settings={"val_data": str(other)})
    train, held = (images_of(tmp_path / "run", split) for split in ("train", "val"))
    assert (len(train), len(held), found.images) == (100, 40, 40)
    assert found.top1 is not None
    assert found.top1 < HONEST
    assert evaluate(tmp_path / "run", str(other)).images == 40
    again = {"val_data": f"folder:{photos.parent}/../{photos.parent.name}/photos"}
    same = learn_by_heart(photos, tmp_path / "same", steps=1, settings=again)
    train, held = (images_of(tmp_path / "same", split) for split in ("train", "val"))
    assert (len(train), len(held), same.images) == (90, 10, 10)
    assert not train & held


def test_pre_training_without_labels_leaves_no_image_in_neither(
    photos: Path, tmp_path: Path
) -> None:
    flat = tmp_path / "flat"
    flat.mkdir()
    for number, path in enumerate(sorted(photos.rglob("*.png"))):
        (flat / f"{number}.png").write_bytes(path.read_bytes())
    words = {"steps": 1, "task": "masked-patches"}
    learn_by_heart(flat, tmp_path / "run", **words)
    train, held = (images_of(tmp_path / "run", split) for split in ("train", "val"))
    assert (len(train), len(held)) == (90, 10)
    learn_by_heart(flat, tmp_path / "all", **words, settings={"val_split": "", "eval_every": None})
    assert len(images_of(tmp_path / "all", "train")) == 100


def test_a_teacher_has_seen_what_its_student_learns(photos: Path, tmp_path: Path) -> None:
    """A student of other images answers for its teacher's by what the teacher knows of them."""
    teacher = learn_by_heart(photos, tmp_path / "teacher", steps=1)
    other = write_noise(tmp_path / "other", 10, seed=1)
    distill = {"distill": DistillConfig(teacher=str(teacher.folder))}
    student = learn_by_heart(other, tmp_path / "student", steps=1, settings=distill)
    for model in (student.folder, student.folder / "model"):
        assert evaluate(model, str(photos)).images == 10
        assert evaluate(model, str(other)).images == 2


def test_a_class_of_one_image_is_known_before_the_first_fold(tmp_path: Path) -> None:
    data = write_noise(tmp_path / "photos", 4)
    write_noise(tmp_path / "one", 1)
    (tmp_path / "one" / "heads").rename(data / "lonely")
    with pytest.raises(InputError, match=r"class 'lonely' of .* has 1 image, all in fold"):
        learn_by_heart(data, tmp_path / "run", steps=1, folds=5)
    assert not [path for path in (tmp_path / "run").rglob("*") if path.is_file()]


def test_folds_go_by_names_and_hardly_move() -> None:
    """Each class is spread over all folds; an image more moves at most one across each border."""
    from vitrail.data.split import hash_folds

    rng = np.random.default_rng(0)
    keys = rng.integers(0, 2**63, 60).astype(np.uint64)
    labels = np.repeat(np.arange(3), 20)
    found = hash_folds(labels, ("a", "b", "c"), 5, keys)
    counts = np.zeros((3, 5), int)
    np.add.at(counts, (labels, found), 1)
    assert (counts == 4).all()
    grown = hash_folds(np.append(labels, 0), ("a", "b", "c"), 5, np.append(keys, np.uint64(5)))
    assert (grown[:60] != found).sum() <= 5
    shuffled = rng.permutation(60)
    again = hash_folds(labels[shuffled], ("a", "b", "c"), 5, keys[shuffled])
    assert (again == found[shuffled]).all()
    few = hash_folds(np.array([0, 0, 1, 1, 2]), ("a", "b", "c"), 5, keys[:5])
    assert sorted(few.tolist()) == [0, 1, 2, 3, 4]
