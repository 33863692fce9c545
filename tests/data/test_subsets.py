"""subsets.py: nested, balanced and few-shot subsets, against brute force."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrail.config import InputError
from vitrail.data.dataset import ArrayDataset, ImageDataset
from vitrail.data.datasets.open import open_data, open_splits, whole_data
from vitrail.data.subsets import balanced_subset, shots, split_subset, subset
from vitrail.run import train
from vitrail.training.run_data import open_run_data


def numbered(labels: np.ndarray | list[int], classes: int = 4) -> ArrayDataset:
    """Make images whose pixel is their number."""
    labels = np.asarray(labels, np.int64)
    pixels = np.arange(len(labels), dtype=np.uint8).reshape(-1, 1, 1, 1)
    return ArrayDataset("set", [f"class {number}" for number in range(classes)], labels, pixels)


def numbers(dataset: ImageDataset) -> list[int]:
    return [int(np.asarray(dataset.read(index))[0, 0, 0]) for index in range(len(dataset))]


LABELS = st.lists(st.integers(0, 3), min_size=1, max_size=80)


@settings(max_examples=50)
@given(LABELS, st.data(), st.integers(0, 2**40))
def test_subsets_are_nested(labels: list[int], data: st.DataObject, seed: int) -> None:
    dataset = numbered(labels)
    small = data.draw(st.integers(1, len(labels)))
    large = data.draw(st.integers(small, len(labels)))
    for take in (subset, balanced_subset):
        few, many = numbers(take(dataset, small, seed)), numbers(take(dataset, large, seed))
        assert (len(few), len(many)) == (small, large)
        assert set(few) <= set(many)
        assert few == sorted(set(few)), "each once, in the source's order"
        assert [labels[n] for n in few] == take(dataset, small, seed).labels.tolist()


@settings(max_examples=50)
@given(LABELS, st.data(), st.integers(0, 2**40))
def test_balance(labels: list[int], data: st.DataObject, seed: int) -> None:
    count = data.draw(st.integers(1, len(labels)))
    taken = np.bincount(balanced_subset(numbered(labels), count, seed).labels, minlength=4)
    available = np.bincount(labels, minlength=4)
    most = taken.max()
    for own, there in zip(taken, available, strict=True):
        assert own == there or own >= most - 1, (taken, available)


def test_subsets_are_random() -> None:
    dataset = numbered(np.repeat(np.arange(4), 50))
    for take in (subset, balanced_subset):
        drawn = np.array([numbers(take(dataset, 40, seed)) for seed in range(200)])
        counts = np.bincount(drawn.ravel(), minlength=200)  # each: binomial(200, 1/5), 40 ± 5.7
        assert counts.sum() == 200 * 40
        assert abs(counts - 40).max() < 5 * 5.7
        assert len({tuple(row) for row in drawn}) == 200
    rounds = {tuple(balanced_subset(dataset, 1, seed).labels) for seed in range(50)}
    assert len(rounds) == 4, "no class always comes first"


def test_a_part_of_the_set() -> None:
    dataset = numbered([0, 1] * 25)
    assert numbers(subset(dataset, 0.1, 3)) == numbers(subset(dataset, 5, 3))
    assert len(subset(dataset, 0.29, 3)) == 15
    assert len(subset(dataset, 0.001, 3)) == 1
    assert numbers(subset(dataset, 1.0, 3)) == list(range(50))
    assert len(subset(dataset, 1, 3)) == 1
    assert subset(dataset, 0.1, 3).name == "set (5 of 50)"


@pytest.mark.parametrize(
    ("count", "problem"),
    [
        (0, "set has 4 images; 0 of them can't be taken"),
        (5, "set has 4 images; 5 of them can't be taken"),
        (-1, "set has 4 images; -1 of them can't be taken"),
        (0.0, "the fraction of set must be in (0, 1], got 0.0"),
        (1.1, "the fraction of set must be in (0, 1], got 1.1"),
    ],
)
def test_what_can_not_be_taken(count: float, problem: str) -> None:
    for take in (subset, balanced_subset):
        with pytest.raises(InputError) as caught:
            take(numbered([0, 1, 0, 1]), count, 0)
        assert str(caught.value) == problem


@settings(max_examples=30)
@given(st.permutations([0, 1, 2, 3] * 6), st.integers(1, 6), st.integers(0, 2**40))
def test_shots_follow_the_prescribed_rule(labels: list[int], k: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    expected = []
    for label in range(4):
        group = [index for index, own in enumerate(labels) if own == label]
        expected += [group[place] for place in generator.permutation(len(group))[:k]]
    dataset = shots(numbered(labels), k, seed)
    assert numbers(dataset) == expected
    assert dataset.labels.tolist() == [0] * k + [1] * k + [2] * k + [3] * k


def test_too_few_for_the_shots() -> None:
    with pytest.raises(InputError) as caught:
        shots(numbered([0, 0, 1, 2, 2, 3, 3]), 2, 0)
    assert str(caught.value) == "set has 1 of class 'class 1': too few for 2 per class"
    with pytest.raises(InputError, match=r"^expected at least one shot per class, got 0$"):
        shots(numbered([0, 1, 2, 3]), 0, 0)


def test_several_labels_have_no_balance() -> None:
    pixels = np.zeros((3, 1, 1, 1), np.uint8)
    dataset = ArrayDataset("set", ["a", "b"], np.ones((3, 2), np.uint8), pixels)
    assert len(subset(dataset, 2, 0)) == 2
    with pytest.raises(InputError) as caught:
        balanced_subset(dataset, 2, 0)
    assert str(caught.value) == "a balanced subset needs one label per image; set has several"
    with pytest.raises(InputError, match=r"^sampling shots needs one label per image"):
        shots(dataset, 1, 0)


def names(data: str, split: str = "train") -> set[str]:
    dataset = open_data(data, split=split)
    assert isinstance(dataset, ImageDataset)
    return {dataset.where(index) for index in range(len(dataset))}


@pytest.mark.parametrize("data", ["digits", "shapes:easy,count=300,seed=3", "{folder}", "{csv}"])
def test_data_asks_for_nested_subsets(data: str, tmp_path: Path) -> None:
    folder = small_folder(tmp_path / "photos")
    data = data.format(folder=folder, csv=f"csv:{folder / 'list.csv'}")
    everything = names(data)
    sizes = [f"{data},take=5", f"{data},take=10%", f"{data},take=20", data]
    sets = [names(each) for each in sizes]
    assert [len(each) for each in sets] == [5, round(len(everything) / 10), 20, len(everything)]
    for smaller, larger in zip(sorted(sets, key=len), sorted(sets, key=len)[1:], strict=False):
        assert smaller < larger
    assert names(f"{data},take=20,seed=0") == sets[2]
    assert names(f"{data},take=20,seed=1") != sets[2]
    few, more = names(f"{data},per_class=2"), names(f"{data},per_class=3")
    assert few < more
    per_class = open_data(f"{data},per_class=2")
    assert isinstance(per_class, ImageDataset)
    assert set(per_class.class_counts()) == {2}


def small_folder(folder: Path) -> Path:
    """Make 30 training images of each of three classes, and a list of them."""
    from PIL import Image

    lines = ["path,label,split"]
    for number in range(90):
        kind = "abc"[number % 3]
        path = folder / "train" / kind / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8), number).save(path)
        lines.append(f"{path.relative_to(folder)},{kind},train")
    (folder / "list.csv").write_text("\n".join(lines) + "\n")
    return folder


def test_a_run_takes_its_training_images_only(tmp_path: Path) -> None:
    tiny = "ViT/4@8,depth=1,width=16,heads=2,mlp=32,channels=1"
    run = train("digits,take=40", model=tiny, steps=2, batch=8, out=tmp_path / "run", report=False)
    assert run.images == len(names("digits", "val"))
    train_set = open_run_data(tmp_path / "run", "train")
    assert {train_set.where(n) for n in range(40)} == names("digits,take=40")
    assert len(open_run_data(tmp_path / "run", "test")) == run.images
    log = (tmp_path / "run" / "log.txt").read_text()
    assert "40 training images of 10 classes" in log


def test_a_path_with_such_a_name_is_what_it_is(tmp_path: Path) -> None:
    odd = small_folder(tmp_path / "photos,take=5")
    assert len(names(str(odd))) == 81  # nine of the ninety are held out
    assert whole_data(str(odd)) == str(odd)
    assert whole_data("digits,take=7,seed=2") == "digits"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("digits,take=0", "take must be a whole number of at least 1 or a percentage"),
        ("digits,take=", "take must be a whole number"),
        ("digits,take=-5", "take must be a whole number"),
        ("digits,take=101%", r"take must be in \(0 %, 100 %\], got 101%"),
        ("digits,per_class=2.5", "per_class must be a whole number of at least 1, got '2.5'"),
        ("digits,take=5,seed=x", "seed must be a whole number of at least 0, got 'x'"),
        ("digits,take=5,per_class=5", "give take or per_class, and each option once"),
        ("digits,take=5,take=6", "give take or per_class, and each option once"),
        ("digits,take=999999", "has 1,442 images; 999,999 of them can't be taken"),
        ("digits,per_class=9999", "too few for 9999 per class"),
        ("digits,tak=5", "a subset is written DATA,take=5000"),
    ],
)
def test_subsets_that_can_not_be_taken(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        open_data(text)


def test_a_check_is_of_the_whole() -> None:
    assert split_subset("digits") == ("digits", None)
    with pytest.raises(InputError, match="expected a whole dataset; leave take and per_class out"):
        open_splits("digits,take=5")
