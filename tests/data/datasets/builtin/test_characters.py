"""Characters: pure functions of seed and number, classes, options, and nearness to `digits`."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import RidgeClassifier

from tests.shelf import refusal
from vitrail.data.dataset import ArrayDataset
from vitrail.data.datasets.builtin import characters
from vitrail.data.datasets.builtin.characters import CLASSES, CharactersDataset, open_characters
from vitrail.data.datasets.builtin.digits import open_digits


def dataset(size: int = 32, seed: int = 0, count: int = 1000) -> CharactersDataset:
    return CharactersDataset("characters", size, seed, np.arange(count))


@settings(max_examples=10)
@given(
    indices=st.lists(st.integers(0, 999), min_size=1, max_size=20),
    size=st.sampled_from([8, 16, 32, 50]),
)
def test_a_character_does_not_depend_on_its_batch(indices: list[int], size: int) -> None:
    some = dataset(size)
    batch = some.take(np.array(indices))
    assert batch.shape == (len(indices), size, size, 1)
    assert batch.dtype == np.uint8
    for index, image in zip(indices, batch, strict=True):
        np.testing.assert_array_equal(some.read(index), image)


def test_classes_and_splits() -> None:
    assert len(set(map(str.lower, CLASSES))) == 62
    assert (CLASSES[0], CLASSES[10], CLASSES[61]) == ("digit 0", "capital A", "small z")
    train, test = (open_characters("count=1240,size=16", split) for split in ("train", "test"))
    assert (train.name, len(train), len(test)) == ("characters:count=1240,size=16/train", 1240, 124)
    assert set(train.class_counts()) == {20}
    every = [bytes(some.read(index)) for some in (train, test) for index in range(len(some))]
    every += [bytes(open_characters("count=10,size=16,seed=1", "train").read(i)) for i in range(10)]
    assert len(set(every)) == len(every) == 1374


def test_each_font_draws_each_character() -> None:
    glyphs = characters.draw_glyphs()
    assert glyphs.shape == (21, 62, 80, 80)
    ink = glyphs.sum((2, 3))
    assert ink.min() > 100  # of a capital I in the thinnest font, in pixels
    assert glyphs[:, :, [0, -1]].max() == glyphs[:, :, :, [0, -1]].max() == 0
    upright = glyphs[0]
    assert all(np.abs(upright[i] - upright[j]).max() > 0.2 for i in range(62) for j in range(i))


def test_wrong_options() -> None:
    told = "unknown option 'hard'; expected one of size=, count=, seed="
    assert told in refusal(open_characters, "hard", "train")
    told = "size must be a whole number from 8 to 512, got '4'"
    assert told in refusal(open_characters, "size=4", "train")
    assert "characters has no split 'dev'" in refusal(open_characters, "", "dev")


def test_fonts_that_are_missing_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(characters, "find_spec", lambda name: None)
    characters.draw_glyphs.cache_clear()
    told = refusal(open_characters, "", "train")
    assert told == "characters are drawn from matplotlib's fonts, which are not installed"


def test_drawn_digits_are_like_handwritten_ones() -> None:
    """A linear model of drawn digits alone reads handwritten ones far better than by chance."""
    drawn = open_characters("size=8,count=12400", "train")
    written = open_digits("all")
    assert isinstance(drawn, ArrayDataset)
    some = drawn.labels < 10
    model = RidgeClassifier(alpha=10)
    model.fit(drawn.pixels[some].reshape(some.sum(), -1) / 255, drawn.labels[some])
    pixels = np.stack([written.read(index) for index in range(len(written))])
    assert model.score(pixels.reshape(len(written), -1) / 255, written.labels) > 0.5
