"""Unreadable images are counted once each, in datasets and in streams."""

from contextlib import nullcontext
from itertools import islice

import pytest

from tests.data.sets import HALF, Counted, Listed, encode, photo
from vitrail.config import InputError
from vitrail.data.batches import EvalBatches
from vitrail.data.dataset import UnreadableImage
from vitrail.data.streaming import Cursor, StreamBatches
from vitrail.data.transforms.augment import Augment
from vitrail.data.unreadable import UnreadableImages

REFUSED = (
    r"6 of 50 images could not be used \(6 not an image\), more than the 10% that are allowed; "
    r"'vitrail data check --fix' lists them"
)


def count(bad: int, epochs: int) -> UnreadableImages:
    good = encode(photo(0))
    contents = [b"bad %d" % n if n < bad else good for n in range(50)]
    stream = Counted(Listed(contents), length=len(contents))  # type: ignore[arg-type]
    batches = StreamBatches(stream, Augment(crop="whole"), HALF, batch=10, seed=1)
    found = UnreadableImages(stream.name, stream.length, 0.1)
    for portion in islice(batches.portions(Cursor()), 5 * epochs):
        found.note(batches.make(portion).bad)
    return found


def test_a_stream_with_few_bad_images_outlives_many_epochs() -> None:
    assert len(count(bad=1, epochs=8).bad) == 1
    assert len(count(bad=5, epochs=8).bad) == 5


def test_a_stream_with_many_is_refused() -> None:
    with pytest.raises(InputError, match="6 of 50 images could not be used"):
        count(bad=6, epochs=1)


@pytest.mark.parametrize(("bad", "refused"), [(5, False), (6, True)])
def test_repeated_evaluations_count_each_image_once(bad: int, refused: bool) -> None:
    good = encode(photo(0))
    dataset = Listed([b"bad" if n < bad else good for n in range(50)])
    batches = EvalBatches(dataset, HALF, batch=10)
    found = UnreadableImages(dataset.name, len(dataset), 0.1)
    with pytest.raises(InputError, match=REFUSED) if refused else nullcontext():
        for _ in range(8):
            for step in range(len(batches)):
                found.note(batches[step].bad)
    assert len(found.bad) == bad


def test_the_summary_counts_one_image() -> None:
    found = UnreadableImages("photos", None)
    found.note([UnreadableImage("a.png", "empty file", "truncated")])
    assert found.summary() == "photos: 1 image could not be used (1 truncated)"
