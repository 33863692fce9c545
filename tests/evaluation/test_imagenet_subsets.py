"""ImageNet's other test sets: classes from the sets themselves, ObjectNet by its own mapping."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.shelf import refusal
from vitrail.evaluation.imagenet_subsets import SUBSETS, open_subset
from vitrail.weights.class_names import imagenet_classes, imagenet_wnids

NAMES, WNIDS = imagenet_classes(1000), imagenet_wnids(1000)


def draw(path: Path, size: tuple[int, int] = (6, 5)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (255, 0, 0)).save(path)


@pytest.fixture(scope="module")
def objectnet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ObjectNet as published, in small; its list of labels is in an order of its own."""
    assert NAMES
    root = tmp_path_factory.mktemp("objectnet-1.0")
    for folder in ("alarm_clock", "backpack", "bookend", "weight"):
        draw(root / "images" / folder / "0.png")
    pixels = np.full((6, 7, 3), 200, np.uint8)
    pixels[2:-2, 2:-2] = 7
    Image.fromarray(pixels).save(root / "images" / "backpack" / "1.png")
    (root / "mappings").mkdir()
    order = np.random.default_rng(0).permutation(1000)  # of 2012: line n is usual class order[n]
    labels = [f"label {number}" for number in range(1000)]
    lines = [labels[number] for number in order]
    late = {str(number): int(line) for line, number in enumerate(order)}
    titles = {"alarm_clock": "Alarm clock", "backpack": "Backpack"}
    titles |= {"bookend": "Bookend", "weight": "Weight (exercise)"}
    shared = {
        "Alarm clock": f"{labels[409]}; {labels[530]}",
        "Backpack": labels[414],
        "Weight (exercise)": f"{labels[422]}; {labels[543]}",
    }
    for name, found in {
        "folder_to_objectnet_label.json": titles,
        "objectnet_to_imagenet_1k.json": shared,
        "pytorch_to_imagenet_2012_id.json": late,
    }.items():
        (root / "mappings" / name).write_text(json.dumps(found))
    (root / "mappings" / "imagenet_to_label_2012_v2").write_text("\n".join(lines) + "\n")
    return root


@pytest.mark.parametrize("names", [NAMES, WNIDS])
def test_objectnet_keeps_the_classes_that_its_mapping_shares(
    objectnet: Path, names: tuple[str, ...]
) -> None:
    source, matching = open_subset("objectnet", str(objectnet), "all", names, 1000)
    found = {
        source.classes[number]: np.flatnonzero(matching.owner == number).tolist()
        for number in range(4)
    }
    assert found == {
        "alarm_clock": [409, 530],
        "backpack": [414],
        "bookend": [],
        "weight": [422, 543],
    }
    assert [source.where(index) for index in range(len(source))] == [
        "alarm_clock/0.png", "backpack/0.png", "backpack/1.png", "weight/0.png"
    ]  # fmt: skip
    assert not matching.restricted
    assert "3 of ObjectNet's 4 classes" in matching.notes[0]


def test_objectnets_red_frame_is_cut_off(objectnet: Path) -> None:
    source, _ = open_subset("objectnet", str(objectnet), "all", NAMES, 1000)
    image = source.read(2)
    assert isinstance(image, np.ndarray)
    assert image.shape == (2, 3, 3)
    assert (image == 7).all()


def test_a_damaged_objectnet_is_one_line(objectnet: Path, tmp_path: Path) -> None:
    ask = ("all", NAMES, 1000)
    draw(tmp_path / "images" / "backpack" / "0.png")
    text = refusal(open_subset, "objectnet", str(tmp_path), *ask)
    assert "folder_to_objectnet_label.json: No such file" in text
    assert "images/ and mappings/" in text
    file = objectnet / "mappings" / "objectnet_to_imagenet_1k.json"
    before = file.read_text()
    for after, problem in (("{", "Expecting"), ("[]", "expected an object"),
                           ('{"Backpack": "no such label"}', "no list explains")):  # fmt: skip
        file.write_text(after)
        assert problem in refusal(open_subset, "objectnet", str(objectnet), *ask)
    file.write_text(before)
    text = refusal(open_subset, "objectnet", str(objectnet), "all", ("a",) * 1000, 1000)
    assert "the model has others" in text
    text = refusal(open_subset, "objectnet", str(objectnet), "all", None, 37)
    assert "the model has others" in text


def test_imagenet_v2s_folders_are_numbers_of_classes(tmp_path: Path) -> None:
    for number in range(1000):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "0.jpg").write_bytes(b"")
    source, matching = open_subset("imagenet-v2", str(tmp_path), "all", NAMES, 1000)
    assert source.classes[:3] == ("0", "1", "10")
    assert [source.classes[number] for number in matching.owner] == list(map(str, range(1000)))
    assert not matching.restricted


def test_a_set_that_is_not_whole_is_refused(tmp_path: Path) -> None:
    assert WNIDS
    for wnid in WNIDS[:3]:
        draw(tmp_path / wnid / "0.png")
    text = refusal(open_subset, "imagenet-r", str(tmp_path), "all", NAMES, 1000)
    assert text.startswith("ImageNet-R has 200 classes, ")
    assert "has 3; is it complete?" in text
    assert {name: row.classes for name, row in SUBSETS.items()} == {
        "imagenet-a": 200, "imagenet-r": 200, "imagenet-v2": 1000, "sketch": 1000, "objectnet": 113
    }  # fmt: skip
