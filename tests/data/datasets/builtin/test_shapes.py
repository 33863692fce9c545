"""Shapes: pure functions of seed and number, classes that are to be seen, options, splits."""

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import RidgeClassifier

from tests.shelf import refusal
from vitrail.data.dataset import ArrayDataset
from vitrail.data.datasets.builtin import procedural
from vitrail.data.datasets.builtin.shapes import DIFFICULTIES, ShapesDataset, open_shapes

NAMES = list(DIFFICULTIES)


def dataset(name: str, size: int = 32, seed: int = 0, count: int = 1000) -> ShapesDataset:
    return ShapesDataset("shapes", DIFFICULTIES[name], size, seed, np.arange(count))


@pytest.mark.parametrize(
    ("name", "digest"),
    [("easy", "cc2042ad34fc71b6"), ("medium", "fa686f11cf3241bc"), ("hard", "c1006aa821725d13")],
)
def test_images_stay_the_same(name: str, digest: str) -> None:
    """Hold all that is drawn to what was drawn when this was written."""
    pixels = dataset(name).take(np.arange(96))
    assert hashlib.sha256(pixels.tobytes()).hexdigest()[:16] == digest


@settings(max_examples=10)
@given(
    name=st.sampled_from(NAMES),
    indices=st.lists(st.integers(0, 999), min_size=1, max_size=20),
    size=st.sampled_from([16, 32, 50]),
)
def test_a_image_does_not_depend_on_its_batch(name: str, indices: list[int], size: int) -> None:
    some = dataset(name, size)
    batch = some.take(np.array(indices))
    assert batch.shape == (len(indices), size, size, 3)
    assert batch.dtype == np.uint8
    for index, image in zip(indices, batch, strict=True):
        np.testing.assert_array_equal(some.read(index), image)


def test_many_images_are_drawn_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    some = dataset("medium")
    whole = some.take(np.arange(50))
    monkeypatch.setattr(procedural, "_AT_ONCE", 7 * 32**2)
    np.testing.assert_array_equal(some.take(np.arange(50)), whole)
    assert some.take(np.arange(0)).shape == (0, 32, 32, 3)


@pytest.mark.parametrize("name", NAMES)
def test_all_images_differ(name: str) -> None:
    sets = [open_shapes(f"{name},count=300", split) for split in ("train", "test")]
    sets.append(open_shapes(f"{name},count=300,seed=1", "train"))
    every = [bytes(some.read(index)) for some in sets for index in range(len(some))]
    assert len(set(every)) == len(every) == 630


def test_classes() -> None:
    sets = {name: DIFFICULTIES[name].classes for name in NAMES}
    assert {name: len(classes) for name, classes in sets.items()} == {
        "easy": 6,
        "medium": 24,
        "hard": 96,
    }
    assert all(len(set(classes)) == len(classes) for classes in sets.values())
    assert sets["easy"] == ("disc", "square", "triangle", "star", "ring", "cross")
    assert sets["medium"][10] == "striped triangle"
    assert sets["hard"][-1] == "cool dotted arrow"


def test_labels_are_balanced() -> None:
    for split, most in (("train", 42), ("test", 5)):
        counts = np.bincount(open_shapes("medium,count=1000", split).labels, minlength=24)
        assert counts.max() == most
        assert counts.min() == most - 1


def test_colors_are_those_of_the_class() -> None:
    """Hold warm shapes to be redder than blue, cool ones the other way, in their middle."""
    some = dataset("hard", 64)
    discs = np.flatnonzero(np.isin(some.labels, [0, 48]))  # plain discs, whose middle is filled
    plain = ShapesDataset("x", DIFFICULTIES["hard"], 64, 0, discs)
    pixels = plain.take(np.arange(len(discs))).astype(float)
    redder = pixels[..., 0] - pixels[..., 2]
    warm = plain.labels == 0
    assert redder[warm].mean() > redder[~warm].mean() + 10


def test_options(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(procedural, "_IN_MEMORY", 0)
        some = open_shapes("", "train")
    assert (len(some), len(some.classes), some.name) == (20_000, 24, "shapes/train")
    np.testing.assert_array_equal(some.read(5), dataset("medium", 32, 0).read(5))
    some = open_shapes(" hard , seed=3,size=16,count=200 ", "test")
    wanted = ShapesDataset("x", DIFFICULTIES["hard"], 16, 3, 2**40 + np.arange(20))
    np.testing.assert_array_equal(some.labels, wanted.labels)
    for index in range(20):
        np.testing.assert_array_equal(some.read(index), wanted.read(index))
    assert len(open_shapes("easy,count=3", "val")) == 1


def test_splits() -> None:
    parts = {split: open_shapes("count=40", split) for split in ("train", "test", "val", "all")}
    assert {split: len(part) for split, part in parts.items()} == {
        "train": 40,
        "test": 4,
        "val": 4,
        "all": 44,
    }
    assert parts["val"].fingerprint() == parts["test"].fingerprint()
    np.testing.assert_array_equal(parts["all"].read(43), parts["test"].read(3))
    np.testing.assert_array_equal(parts["all"].read(39), parts["train"].read(39))
    assert "shapes has no split 'dev'; it has train, test, all" in refusal(open_shapes, "", "dev")


def test_large_sets_are_drawn_when_asked_for() -> None:
    some = open_shapes("hard,count=2_000_000,size=256", "train")
    assert isinstance(some, ShapesDataset)
    assert len(some) == 2_000_000
    assert some.where(7) == "shapes:hard,count=2_000_000,size=256/train[7]"
    few = open_shapes("hard,count=8,size=256", "train")
    np.testing.assert_array_equal(some.read(7), few.read(7))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("hrad", "unknown option 'hrad'; did you mean 'hard'?"),
        ("hard,sise=64", "unknown option 'sise=64'; did you mean 'size='"),
        ("size", "unknown option 'size'; did you mean 'size='?"),
        (
            "qqq=1",
            "unknown option 'qqq=1'; expected one of easy, medium, hard, size=, count=, seed=",
        ),
        ("size=8", "size must be a whole number from 16 to 512, got '8'"),
        ("count=many", "count must be a whole number from 1 to 10_000_000, got 'many'"),
        ("seed=-1", "seed must be a whole number from 0 to"),
        ("easy,hard", "difficulty is given twice, as easy and hard"),
        ("seed=1,seed=2", "seed is given twice, as 1 and 2"),
    ],
)
def test_wrong_options(options: str, told: str) -> None:
    assert told in refusal(open_shapes, options, "train")


def test_pixels_alone_say_little() -> None:
    """Let a linear model try: it must fail, because classes are to be seen, not to be measured."""
    train, test = (open_shapes("medium,size=16,count=4000", split) for split in ("train", "test"))
    assert isinstance(train, ArrayDataset)
    assert isinstance(test, ArrayDataset)
    model = RidgeClassifier(alpha=1000)
    model.fit(train.pixels.reshape(4000, -1) / 255 - 0.5, train.labels)
    score = model.score(test.pixels.reshape(400, -1) / 255 - 0.5, test.labels)
    assert score < 0.13  # of 24 classes, by chance 0.04
