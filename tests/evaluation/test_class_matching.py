"""Data's classes among a model's: by name, WordNet number or number; else one clear line."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.shelf import refusal
from vitrail.data.dataset import ArrayDataset
from vitrail.evaluation.class_matching import match_classes, read_map
from vitrail.weights.class_names import imagenet_classes, imagenet_wnids


def source_of(classes: Sequence[str], *, several: bool = False, count: int = 1) -> ArrayDataset:
    labels = np.zeros((count, len(classes)), np.uint8) if several else np.zeros(count, np.int64)
    return ArrayDataset("photos", classes, labels, np.zeros((count, 2, 2, 1), np.uint8))


def test_the_same_names_in_the_same_order_need_no_word() -> None:
    found = match_classes(source_of(["a", "b", "c"]), ("a", "b", "c"), 3)
    assert found.owner.tolist() == [0, 1, 2]
    assert (found.notes, found.restricted) == ((), False)


def test_another_order_is_undone_by_name() -> None:
    found = match_classes(source_of(["c", "a", "b"]), ("a", "b", "c"), 3)
    assert found.owner.tolist() == [1, 2, 0]  # output 0 is `a`, the data's class 1
    assert found.notes == ()


def test_some_of_the_models_classes_leave_the_others_free() -> None:
    found = match_classes(source_of(["d", "b"]), ("a", "b", "c", "d"), 4)
    assert found.owner.tolist() == [-1, 1, -1, 0]
    assert found.notes == ("2 of the model's 4 classes are in photos",)


def test_unknown_names_are_refused_with_both_sides_and_a_way_out() -> None:
    text = refusal(match_classes, source_of(["a", "x"]), ("a", "b"), 2)
    assert "does not know 1 of 2 classes of photos: 'x'" in text
    assert "its own 2 are 'a', 'b'" in text
    assert "--map" in text


def test_wordnet_numbers_find_imagenets_classes() -> None:
    wnids, names = imagenet_wnids(1000), imagenet_classes(1000)
    assert wnids
    assert names
    assert (wnids[0], wnids[999], len(wnids)) == ("n01440764", "n15075141", 1000)
    found = match_classes(source_of(["n15075141", "n01440764"]), names, 1000)
    assert np.flatnonzero(found.owner >= 0).tolist() == [0, 999]
    assert found.owner[[0, 999]].tolist() == [1, 0]
    assert found.notes == ("classes are matched by WordNet ID with ImageNet's 1,000",)
    assert "n00000000" in refusal(match_classes, source_of(["n00000000"]), names, 1000)


def test_numbers_as_names_count_outputs_however_they_are_sorted() -> None:
    """ImageNet-V2's folders are 0 to 999, which sort as 0, 1, 10, 100."""
    folders = sorted(map(str, range(12)))
    assert folders[:3] == ["0", "1", "10"]
    for names in (None, tuple("abcdefghijkl")):
        found = match_classes(source_of(folders), names, 12)
        assert [folders[each] for each in found.owner] == [str(n) for n in range(12)]
        assert "numbers" in found.notes[0]
    assert "'12'" in refusal(match_classes, source_of(["0", "12"]), None, 12)
    some = refusal(match_classes, source_of(["0", "1"]), ("cat", "dog", "bird"), 3)
    assert "does not know 2 of 2 classes" in some


def test_without_names_only_an_equal_count_is_taken_in_order_and_said() -> None:
    found = match_classes(source_of(["a", "b"]), None, 2)
    assert found.owner.tolist() == [0, 1]
    assert found.notes == ("the model has no class names: those of photos are taken in order",)
    text = refusal(match_classes, source_of(["a", "b", "c"]), None, 2)
    assert "3 of 3 classes of photos" in text
    assert "its outputs have no names" in text


def test_a_map_says_which_is_which(tmp_path: Path) -> None:
    path = tmp_path / "map.yaml"
    path.write_text("hound: [beagle, 2]\ncat: tabby\n")
    given = read_map(path)
    assert given == {"hound": ["beagle", "2"], "cat": ["tabby"]}
    names = ("tabby", "beagle", "pug", "tench")
    found = match_classes(source_of(["cat", "hound", "tench"]), names, 4, given)
    assert found.owner.tolist() == [0, 1, 1, 2]
    source = source_of(["cat", "hound"])
    assert "not a class of photos; did you mean 'hound'" in refusal(
        match_classes, source, names, 4, {"hounds": ["pug"]}
    )
    both = {"cat": ["pug"], "hound": ["pug"]}
    assert "'cat', 'hound' of photos would both be the model's 'pug'" in refusal(
        match_classes, source, names, 4, both
    )
    several = source_of(["cat", "hound"], several=True)
    assert "several classes" in refusal(
        match_classes, several, names, 4, {"hound": ["pug", "beagle"]}
    )
    path.write_text("cat: {tabby: 1}\n")
    assert "expected a class of the model" in refusal(read_map, path)


def test_a_name_that_two_outputs_have_is_not_guessed() -> None:
    names = imagenet_classes(1000)
    assert names
    assert names.count("crane") == 2
    assert "several classes named 'crane'" in refusal(
        match_classes, source_of(["crane"]), names, 1000
    )
    bird = match_classes(source_of(["crane"]), names, 1000, {"crane": ["134"]})
    assert np.flatnonzero(bird.owner == 0).tolist() == [134]


@pytest.mark.parametrize("names", [None, ("a",)])
def test_an_empty_split_is_refused(names: tuple[str, ...] | None) -> None:
    text = refusal(match_classes, source_of(["a"], count=0), names, 1)
    assert text == "photos has no images to evaluate on"
