"""Photo sets in their published layouts, made tiny; torchvision reads some of them alike."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from tests.parity import peers
from tests.shelf import refusal
from vitrail.data.dataset import ImageDataset, select
from vitrail.data.datasets.public.official import (
    open_caltech,
    open_flowers,
    open_imagenet,
    open_pets,
    read_real,
)

PETS = {
    "trainval": ["Abyssinian_100 1 1 1", "american_bulldog_1 2 2 1", "Abyssinian_2 1 1 1"],
    "test": ["Egyptian_Mau_7 3 1 2", "american_bulldog_12 2 2 1"],
}


def touch(file: Path) -> None:
    """Make an image that says its own name."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(file.name.encode())


def files(dataset: ImageDataset) -> list[str]:
    """Name a source's images, and hold that each reads its own file."""
    names = [dataset.where(index) for index in range(len(dataset))]
    for index, name in enumerate(names):
        content = dataset.read(index)
        assert isinstance(content, bytes)
        assert content == Path(name).name.encode()
    return names


def labeled(dataset: ImageDataset) -> list[tuple[str, str]]:
    """Pair the names of images and classes."""
    return [
        (Path(name).stem, dataset.classes[label])
        for name, label in zip(files(dataset), dataset.labels, strict=True)
    ]


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    (tmp_path / "annotations").mkdir()
    for name, lines in PETS.items():
        (tmp_path / "annotations" / f"{name}.txt").write_text("".join(f"{s} \n" for s in lines))
        for line in lines:
            touch(tmp_path / "images" / f"{line.split()[0]}.jpg")
    return tmp_path


def test_pets(pets: Path) -> None:
    dataset = open_pets(pets, "train")
    assert dataset.classes == ("Abyssinian", "American Bulldog", "Egyptian Mau")
    wanted = [("Abyssinian_100", "Abyssinian"), ("american_bulldog_1", "American Bulldog")]
    assert labeled(dataset) == [*wanted, ("Abyssinian_2", "Abyssinian")]
    wanted = [("Egyptian_Mau_7", "Egyptian Mau"), ("american_bulldog_12", "American Bulldog")]
    assert labeled(open_pets(pets, "test")) == labeled(open_pets(pets, "val")) == wanted
    assert len(open_pets(pets, "all")) == 5
    assert dataset.root == pets
    assert dataset.where(0) == "images/Abyssinian_100.jpg"


def test_pets_as_torchvision_reads_them(tmp_path: Path) -> None:
    """On lists in which each split has all classes, because torchvision names those of one list."""
    datasets = peers.load("torchvision.datasets")
    base = tmp_path / "oxford-iiit-pet"
    (base / "annotations").mkdir(parents=True)
    (base / "images").mkdir()
    for name, rows in (
        ("trainval", ["pug_10 2 2 1\n", "Maine_Coon_3 1 1 1\n"]),
        ("test", ["Maine_Coon_4 1 1 1\n", "pug_9 2 2 1\n", "pug_8 2 2 1\n"]),
    ):
        (base / "annotations" / f"{name}.txt").write_text("".join(rows))
        for row in rows:
            Image.new("RGB", (4, 4)).save(base / "images" / f"{row.split()[0]}.jpg")
    for theirs, ours in (("trainval", "train"), ("test", "test")):
        peer = datasets.OxfordIIITPet(tmp_path, theirs)
        dataset = open_pets(base, ours)
        assert tuple(peer.classes) == dataset.classes
        assert [label for _, label in peer] == dataset.labels.tolist()


def test_pets_with_faults(pets: Path) -> None:
    listed = pets / "annotations" / "test.txt"
    assert "it has train, test, all" in refusal(open_pets, pets, "trainval")
    (pets / "images" / "Egyptian_Mau_7.jpg").unlink()
    assert "'images/Egyptian_Mau_7.jpg' not there" in refusal(open_pets, pets, "test")
    assert len(open_pets(pets, "train")) == 3
    for line in ("Abyssinian_100 1", "../x_1 one 1 1", ""):
        listed.write_text(f"Egyptian_Mau_7 3 1 2\n{line}\n")
        assert f"{listed}, line 2: expected NAME CLASS" in refusal(open_pets, pets, "train")
    listed.write_text("pug_1 5 1 2\n")
    assert "expected classes from 1 on, got [1, 2, 5]" in refusal(open_pets, pets, "train")
    listed.write_text("../secret_1 3 1 2\n")
    assert "'images/../secret_1.jpg' not there" in refusal(open_pets, pets, "test")
    listed.unlink()
    assert f"{listed}: No such file" in refusal(open_pets, pets, "train")


@pytest.fixture
def flowers(tmp_path: Path) -> Path:
    labels = np.array([[77, 102, 1, 77, 5, 60]], np.uint8)
    savemat(tmp_path / "imagelabels.mat", {"labels": labels}, do_compression=True)
    sets = {"trnid": [[2, 1]], "valid": [[5]], "tstid": [[3, 6, 4]]}
    sets = {name: np.array(numbers, np.uint16) for name, numbers in sets.items()}
    savemat(tmp_path / "setid.mat", sets, do_compression=True)
    for number in range(1, 7):
        touch(tmp_path / "jpg" / f"image_{number:05d}.jpg")
    return tmp_path


def test_flowers(flowers: Path) -> None:
    train = [("image_00002", "blackberry lily"), ("image_00001", "passion flower")]
    assert labeled(open_flowers(flowers, "train")) == train
    assert labeled(open_flowers(flowers, "val")) == [("image_00005", "english marigold")]
    test = [("image_00003", "pink primrose"), ("image_00006", "pink-yellow dahlia")]
    assert labeled(open_flowers(flowers, "test")) == [*test, ("image_00004", "passion flower")]
    assert open_flowers(flowers, "all").labels.tolist() == [76, 101, 0, 76, 4, 59]


def test_names_of_flowers_are_the_published_ones(flowers: Path) -> None:
    datasets = peers.load("torchvision.datasets")
    wanted = [name.removesuffix("?") for name in datasets.Flowers102.classes]
    assert list(open_flowers(flowers, "test").classes) == wanted


def test_flowers_with_faults(flowers: Path) -> None:
    file = flowers / "setid.mat"
    for numbers in ([0, 1], [7], []):
        savemat(file, {"trnid": np.array(numbers, np.uint16)})
        told = f"{file}: expected 'trnid', a list of numbers from 1 to 6"
        assert told in refusal(open_flowers, flowers, "train")
    assert "expected 'valid', a list" in refusal(open_flowers, flowers, "val")
    (flowers / "jpg" / "image_00004.jpg").unlink()
    assert "'jpg/image_00004.jpg' not there" in refusal(open_flowers, flowers, "all")
    savemat(flowers / "imagelabels.mat", {"labels": [[1, 103]]})
    assert "numbers from 1 to 102" in refusal(open_flowers, flowers, "all")


@pytest.fixture
def caltech(tmp_path: Path) -> Path:
    for name, count in (("accordion", 31), ("BACKGROUND_Google", 45), ("Faces", 33)):
        for number in range(1, count + 1):
            touch(tmp_path / "101_ObjectCategories" / name / f"image_{number:04d}.jpg")
    touch(tmp_path / "101_ObjectCategories" / "BACKGROUND_Google" / "tmp")
    touch(tmp_path / "101_ObjectCategories" / "Faces" / "._image_0001.jpg")
    return tmp_path


def test_caltech(caltech: Path) -> None:
    train, test, every = (open_caltech(caltech, split) for split in ("train", "test", "all"))
    assert every.classes == ("accordion", "BACKGROUND_Google", "Faces")
    assert np.bincount(train.labels).tolist() == [30, 30, 30]
    assert np.bincount(test.labels).tolist() == [1, 15, 3]
    assert sorted(labeled(train) + labeled(test)) == sorted(labeled(every))
    assert set(files(train)).isdisjoint(files(test))
    last = [f"Faces/image_{number:04d}.jpg" for number in range(31, 34)]
    assert files(test)[-3:] != last  # drawn at random
    inside = open_caltech(caltech / "101_ObjectCategories", "train")
    assert inside.fingerprint() == train.fingerprint()


def test_caltech_with_faults(caltech: Path, tmp_path: Path) -> None:
    assert "it has train, test, all" in refusal(open_caltech, caltech, "dev")
    assert "found no folder 101_ObjectCategories" in refusal(open_caltech, tmp_path / "x", "train")
    for number in (5, 6, 7):
        (caltech / "101_ObjectCategories" / "Faces" / f"image_{number:04d}.jpg").unlink()
    assert "Faces: only 30 images, 30 are for training" in refusal(open_caltech, caltech, "all")


WNIDS = ("n01440764", "n01443537", "n02099601")


def imagenet(root: Path, *, flat: bool) -> None:
    """Make four training images of three classes, and five validation images."""
    for number, wnid in enumerate((*WNIDS, WNIDS[0])):
        touch(root / "train" / wnid / f"{wnid}_{number}.JPEG")
    for number, wnid in enumerate((WNIDS[2], WNIDS[0], WNIDS[2], WNIDS[1], WNIDS[0]), 1):
        name = f"ILSVRC2012_val_{number:08d}.JPEG"
        touch(root / "val" / name if flat else root / "val" / wnid / name)


VALIDATION = [
    ("ILSVRC2012_val_00000001", WNIDS[2]),
    ("ILSVRC2012_val_00000002", WNIDS[0]),
    ("ILSVRC2012_val_00000003", WNIDS[2]),
    ("ILSVRC2012_val_00000004", WNIDS[1]),
    ("ILSVRC2012_val_00000005", WNIDS[0]),
]


def test_imagenet_in_class_folders(tmp_path: Path) -> None:
    imagenet(tmp_path, flat=False)
    touch(tmp_path / "val" / "notes" / "a.JPEG")
    train = open_imagenet(tmp_path, "train")
    assert train.classes == WNIDS
    names = ["n01440764/n01440764_0", "n01440764/n01440764_3"]
    names += ["n01443537/n01443537_1", "n02099601/n02099601_2"]
    assert files(train) == [f"train/{name}.JPEG" for name in names]
    assert train.labels.tolist() == [0, 0, 1, 2]
    assert sorted(labeled(open_imagenet(tmp_path, "val"))) == VALIDATION
    assert len(open_imagenet(tmp_path, "all")) == 9
    assert "ImageNet has no split 'test'; it has train, val, all" in refusal(
        open_imagenet, tmp_path, "test"
    )


@pytest.mark.parametrize("place", ["", "val"])
@pytest.mark.parametrize("name", ["ILSVRC2012_val_labels.txt", "synset_labels.txt"])
def test_imagenet_with_a_list_of_classes(tmp_path: Path, place: str, name: str) -> None:
    imagenet(tmp_path, flat=True)
    (tmp_path / place / name).write_text("".join(f"{wnid}\n" for _, wnid in VALIDATION))
    assert labeled(open_imagenet(tmp_path, "val")) == VALIDATION
    (tmp_path / "val" / "ILSVRC2012_val_00000002.JPEG").unlink()
    assert labeled(open_imagenet(tmp_path, "val")) == [VALIDATION[0], *VALIDATION[2:]]


def test_imagenet_as_kaggle_has_it(tmp_path: Path) -> None:
    imagenet(tmp_path / "ILSVRC" / "Data" / "CLS-LOC", flat=True)
    rows = [f"{name},{wnid} 85 1 499 272 {wnid} 1 2 3 4 \n" for name, wnid in VALIDATION[::-1]]
    solution = tmp_path / "LOC_val_solution.csv"
    solution.write_text("ImageId,PredictionString\n" + "".join(rows))
    assert labeled(open_imagenet(tmp_path, "val")) == VALIDATION
    assert len(open_imagenet(tmp_path, "train")) == 4
    solution.write_text("ImageId,PredictionString\n" + "".join(rows[1:]))
    told = "found no class for 'val/ILSVRC2012_val_00000005.JPEG'"
    assert told in refusal(open_imagenet, tmp_path, "val")


def test_imagenet_with_faults(tmp_path: Path) -> None:
    assert "found neither train nor val" in refusal(open_imagenet, tmp_path, "train")
    imagenet(tmp_path, flat=True)
    assert len(open_imagenet(tmp_path, "train")) == 4
    for split in ("val", "all"):
        text = refusal(open_imagenet, tmp_path, split)
        assert "images without class folders need a list ILSVRC2012_val_labels.txt" in text
    touch(tmp_path / "val" / "cat.jpeg")
    told = "val/cat.jpeg: expected an image named ILSVRC2012_val_XXXXXXXX.JPEG"
    assert told in refusal(open_imagenet, tmp_path, "val")
    (tmp_path / "b" / "train").mkdir(parents=True)
    touch(tmp_path / "b" / "train" / "n01440764.tar")
    assert "found no images; unpack each" in refusal(open_imagenet, tmp_path / "b", "train")


def test_folders_that_can_not_be_listed(pets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(folder: Path) -> None:
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr("os.scandir", forbidden)
    assert f"{pets / 'images'}: Permission denied" in refusal(open_pets, pets, "train")


def thousand(root: Path) -> ImageDataset:
    """Open validation images of ImageNet's thousand classes, most of which have none."""
    imagenet(root, flat=False)
    for number in range(997):
        (root / "val" / f"n9{number:07d}").mkdir()
    return open_imagenet(root, "val")


def test_real_labels_follow_the_numbers_of_images(tmp_path: Path) -> None:
    dataset = thousand(tmp_path)
    file = tmp_path / "real.json"
    file.write_text(json.dumps([[5, 7], [], [999], [0, 0], [1]]))
    by_name = dict(zip(files(dataset), read_real(file, dataset), strict=True))
    assert by_name == {
        "val/n02099601/ILSVRC2012_val_00000001.JPEG": {5, 7},
        "val/n01440764/ILSVRC2012_val_00000002.JPEG": frozenset(),
        "val/n02099601/ILSVRC2012_val_00000003.JPEG": {999},
        "val/n01443537/ILSVRC2012_val_00000004.JPEG": {0},
        "val/n01440764/ILSVRC2012_val_00000005.JPEG": {1},
    }
    some = select(dataset, np.array([4, 0]))
    assert read_real(file, some) == (frozenset({999}), frozenset())


def test_real_labels_with_faults(tmp_path: Path) -> None:
    dataset = thousand(tmp_path)
    file = tmp_path / "real.json"
    for content in ("{}", "[[1000]]", "[[true]]", "[[-1]]", "[3]", '[["1"]]'):
        file.write_text(content)
        assert "expected a list of lists of classes from 0 to 999" in refusal(
            read_real, file, dataset
        )
    for content in ("[[1]", "[" * 100_000):
        file.write_text(content)
        assert f"{file}: " in refusal(read_real, file, dataset)
    file.write_text("[[1], [2]]")
    assert "2 rows are not enough for imagenet/val" in refusal(read_real, file, dataset)
    assert "No such file" in refusal(read_real, tmp_path / "x.json", dataset)
    few = tmp_path / "few"
    imagenet(few, flat=False)
    told = "imagenet/val: ReaL needs ImageNet's 1,000 classes"
    assert told in refusal(read_real, file, open_imagenet(few, "val"))
