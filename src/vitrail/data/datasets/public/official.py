"""Oxford Pets, Flowers-102, Caltech-101 and ImageNet in their official layouts.

Files that are listed but missing, or the other way round, are reported when a dataset is opened.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from vitrail.config import InputError
from vitrail.data.dataset import ImageDataset
from vitrail.data.datasets.filenames import Names
from vitrail.data.datasets.folder import FolderDataset
from vitrail.data.datasets.public.matlab import read_mat
from vitrail.data.rng import shuffled
from vitrail.data.split import choose_split
from vitrail.text import quoted

_FLOWERS = """
pink primrose; hard-leaved pocket orchid; canterbury bells; sweet pea; english marigold; tiger lily;
moon orchid; bird of paradise; monkshood; globe thistle; snapdragon; colt's foot; king protea;
spear thistle; yellow iris; globe-flower; purple coneflower; peruvian lily; balloon flower;
giant white arum lily; fire lily; pincushion flower; fritillary; red ginger; grape hyacinth;
corn poppy; prince of wales feathers; stemless gentian; artichoke; sweet william; carnation;
garden phlox; love in the mist; mexican aster; alpine sea holly; ruby-lipped cattleya; cape flower;
great masterwort; siam tulip; lenten rose; barbeton daisy; daffodil; sword lily; poinsettia;
bolero deep blue; wallflower; marigold; buttercup; oxeye daisy; common dandelion; petunia;
wild pansy; primula; sunflower; pelargonium; bishop of llandaff; gaura; geranium; orange dahlia;
pink-yellow dahlia; cautleya spicata; japanese anemone; black-eyed susan; silverbush;
californian poppy; osteospermum; spring crocus; bearded iris; windflower; tree poppy; gazania;
azalea; water lily; rose; thorn apple; morning glory; passion flower; lotus; toad lily; anthurium;
frangipani; clematis; hibiscus; columbine; desert-rose; tree mallow; magnolia; cyclamen; watercress;
canna lily; hippeastrum; bee balm; ball moss; foxglove; bougainvillea; camellia; mallow;
mexican petunia; bromelia; blanket flower; trumpet creeper; blackberry lily
"""
_CALTECH_TRAIN = 30  # images per class (arXiv 1910.04867, table 1: 3,060 of 102 classes)
_WNID = re.compile(r"\bn\d{8}\b")
_VALIDATION = re.compile(r"ILSVRC2012_val_(\d{8})")
_VALIDATION_LABELS = (
    "ILSVRC2012_val_labels.txt",
    "synset_labels.txt",
    "imagenet_2012_validation_synset_labels.txt",
    "LOC_val_solution.csv",
)


def open_pets(path: Path, split: str) -> ImageDataset:
    """Open Oxford-IIIT Pets, with its breeds as classes: a folder with `images`, `annotations`."""
    part = choose_split(split, ("train", "test"), "Oxford Pets")
    lists = path / "annotations"
    train, test = _read_pets(lists / "trainval.txt"), _read_pets(lists / "test.txt")
    breeds = {number: name.rpartition("_")[0] for name, number in train + test}
    if sorted(breeds) != list(range(1, len(breeds) + 1)):
        raise InputError(f"{lists}: expected classes from 1 on, got {sorted(breeds)}")
    classes = [breeds[number].replace("_", " ").title() for number in sorted(breeds)]
    rows = {"train": train, "test": test, "all": train + test}[part]
    files = [f"images/{name}.jpg" for name, _ in rows]
    _check_there(path / "images", files)
    return _open(f"pets/{part}", path, classes, files, [number - 1 for _, number in rows])


def _read_pets(file: Path) -> list[tuple[str, int]]:
    """Read images' names and classes from lines of NAME CLASS SPECIES BREED."""
    rows = []
    for place, line in enumerate(_read_lines(file), 1):
        match = re.fullmatch(r"(\S+_\d+) (\d+) \d+ \d+\s*", line, re.ASCII)
        if not match:
            raise InputError(f"{file}, line {place}: expected NAME CLASS SPECIES BREED")
        rows.append((match[1], int(match[2])))
    return rows


def open_flowers(path: Path, split: str) -> ImageDataset:
    """Open Oxford Flowers-102: a folder with `jpg`, `imagelabels.mat` and `setid.mat`."""
    part = choose_split(split, ("train", "val", "test"), "Flowers-102")
    classes = [" ".join(name.split()) for name in _FLOWERS.split(";")]
    labels = _read_list(path / "imagelabels.mat", "labels", len(classes))
    if part == "all":
        numbers = np.arange(1, len(labels) + 1)
    else:
        name = {"train": "trnid", "val": "valid", "test": "tstid"}[part]
        numbers = _read_list(path / "setid.mat", name, len(labels))
    files = [f"jpg/image_{number:05d}.jpg" for number in numbers]
    _check_there(path / "jpg", files)
    return _open(f"flowers102/{part}", path, classes, files, (labels[numbers - 1] - 1).tolist())


def _read_list(file: Path, name: str, most: int) -> np.ndarray:
    """Read a list of numbers from 1 to most."""
    found = read_mat(file).get(name)
    if found is None or not len(found) or found.min() < 1 or found.max() > most:
        raise InputError(f"{file}: expected {name!r}, a list of numbers from 1 to {most:,}")
    return found


def open_caltech(path: Path, split: str) -> ImageDataset:
    """Open Caltech-101: the folder `101_ObjectCategories`, or one that holds it.

    It has no official split: 30 random images of each class are for training, the rest for
    testing. `BACKGROUND_Google` is a class like the others, the 102nd, as in VTAB and most papers
    on transfer.
    """
    part = choose_split(split, ("train", "test"), "Caltech-101")
    name = "101_ObjectCategories"
    places = (path, path / name, path / "caltech-101" / name)
    root = next((place for place in places if (place / "accordion").is_dir()), None)
    if root is None:
        raise InputError(f"{path}: found no folder {name} with a folder for each class")
    classes = sorted((entry.name for entry in _list(root) if entry.is_dir()), key=str.lower)
    files, labels = [], []
    for label, name in enumerate(classes):
        images = _images(root, name)
        if len(images) <= _CALTECH_TRAIN:
            found = f"only {len(images)} images, {_CALTECH_TRAIN} are for training"
            raise InputError(f"{root / name}: {found}; unpack the archive again")
        order = shuffled(len(images), 0, "split", label)
        train, test = order[:_CALTECH_TRAIN], order[_CALTECH_TRAIN:]
        chosen = np.sort({"train": train, "test": test, "all": order}[part])
        files += [images[index] for index in chosen]
        labels += [label] * len(chosen)
    return _open(f"caltech101/{part}", root, classes, files, labels)


def open_imagenet(path: Path, split: str) -> ImageDataset:
    """Open ImageNet (ILSVRC-2012): a folder with `train` and `val`, or with one of them.

    Classes are WordNet ids, sorted, each a folder of images. The images of `val` may also be in one
    folder, with their classes in a list of one nXXXXXXXX per line (`ILSVRC2012_val_labels.txt`,
    `synset_labels.txt`) or in Kaggle's `LOC_val_solution.csv`.
    """
    within = (path, *(each for each in _folders(path) if each.name not in ("train", "val", "test")))
    inner = (Path(), Path("Data", "CLS-LOC"), Path("ILSVRC", "Data", "CLS-LOC"))
    places = [folder / below for folder in within for below in inner]
    root = next((p for p in places if (p / "train").is_dir() or (p / "val").is_dir()), None)
    if root is None:
        layout = "train/nXXXXXXXX/*.JPEG and val/nXXXXXXXX/*.JPEG"
        raise InputError(f"{path}: found neither train nor val; expected {layout}")
    there = [name for name in ("train", "val") if (root / name).is_dir()]
    part = choose_split(split, there, "ImageNet")
    folders = {name: _class_folders(root / name) for name in there}
    flat = {} if part == "train" or folders.get("val", True) else _read_flat(path, root)
    classes = sorted({*flat.values()}.union(*folders.values()))
    number = {wnid: label for label, wnid in enumerate(classes)}
    files, labels = [], []
    for name in there if part == "all" else [part]:
        for wnid in folders[name]:
            images = _images(root, f"{name}/{wnid}")
            files += images
            labels += [number[wnid]] * len(images)
        if not folders[name]:
            files += flat
            labels += [number[wnid] for wnid in flat.values()]
    if not files:
        raise InputError(f"{root / part}: found no images; unpack each class's archive there")
    return _open(f"imagenet/{part}", root, classes, files, labels)


def _folders(path: Path) -> list[Path]:
    try:
        return sorted(each for each in path.iterdir() if each.is_dir())
    except OSError:
        return []


_TINY_VAL = Path("val", "val_annotations.txt")


def is_tiny_imagenet(path: Path) -> bool:
    """Tell whether a folder is Tiny-ImageNet as published."""
    return (path / "wnids.txt").is_file() and (path / _TINY_VAL).is_file()


def open_tiny_imagenet(path: Path, split: str) -> ImageDataset:
    """Open Tiny-ImageNet: `train/nXXXXXXXX/images`, and `val/images` with a list of their classes.

    The images of `test` were published without labels.
    """
    part = choose_split(split, ("train", "val"), "Tiny-ImageNet")
    classes = [line.strip() for line in _read_lines(path / "wnids.txt") if line.strip()]
    number = {wnid: label for label, wnid in enumerate(sorted(classes))}
    files, labels = [], []
    if part in ("train", "all"):
        for wnid in number:
            images = _images(path, f"train/{wnid}/images")
            files += images
            labels += [number[wnid]] * len(images)
    if part in ("val", "all"):
        for place, line in enumerate(_read_lines(path / _TINY_VAL), 1):
            name, wnid, *_ = [*line.split("\t"), "", ""]
            if wnid not in number:
                raise InputError(f"{path / _TINY_VAL}, line {place}: expected NAME, tab, nXXXXXXXX")
            files.append(f"val/images/{name}")
            labels.append(number[wnid])
    if not files:
        raise InputError(f"{path / part}: found no images")
    return _open(f"tiny-imagenet/{part}", path, list(number), files, labels)


def _class_folders(folder: Path) -> list[str]:
    names = (entry.name for entry in _list(folder) if entry.is_dir())
    return sorted(name for name in names if _WNID.fullmatch(name))


def _read_flat(path: Path, root: Path) -> dict[str, str]:
    """Find the class of each validation image where all are in one folder."""
    images = _images(root, "val")
    numbers = [_validation_number(name) for name in images]
    places = [folder / name for folder in (path, root, root / "val") for name in _VALIDATION_LABELS]
    file = next((place for place in places if place.is_file()), None)
    if file is None:
        why = "the devkit's ground truth has another order of classes"
        wanted = f"a list {_VALIDATION_LABELS[0]} with a line of nXXXXXXXX for each image ({why})"
        raise InputError(f"{root / 'val'}: images without class folders need {wanted}")
    classes: dict[int, str] = {}
    for place, line in enumerate(_read_lines(file), 1):
        wnid, image = _WNID.search(line), _VALIDATION.search(line)
        if wnid:
            classes[int(image[1]) if image else place] = wnid[0]
    found = dict(zip(images, map(classes.get, numbers), strict=True))
    if missing := [name for name, wnid in found.items() if wnid is None]:
        raise InputError(f"{file}: found no class for {quoted(missing)}")
    return {name: wnid for name, wnid in found.items() if wnid}


def _validation_number(name: str) -> int:
    """Return the number of a validation image, from 1 to 50,000."""
    match = _VALIDATION.search(name)
    if not match:
        raise InputError(f"{name}: expected an image named ILSVRC2012_val_XXXXXXXX.JPEG")
    return int(match[1])


def read_real(path: Path, dataset: ImageDataset) -> tuple[frozenset[int], ...]:
    """Read the reassessed labels ("ReaL", arXiv 2006.07159) of ImageNet's validation images.

    `path` is their `real.json`: a list of classes for each image, in the order of file names. An
    image counts as correct if its top class is in its list; those with an empty list are left out.
    """
    if len(dataset.classes) != 1000:
        raise InputError(f"{dataset.name}: ReaL needs ImageNet's 1,000 classes")
    try:
        table = json.loads(path.read_bytes())
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: {error}") from None
    allowed = set(range(1000))
    if not isinstance(table, list) or not all(
        isinstance(row, list) and all(type(label) is int and label in allowed for label in row)
        for row in table
    ):
        raise InputError(f"{path}: expected a list of lists of classes from 0 to 999")
    numbers = [_validation_number(dataset.where(index)) for index in range(len(dataset))]
    if not all(1 <= number <= len(table) for number in numbers):
        raise InputError(f"{path}: {len(table):,} rows are not enough for {dataset.name}")
    return tuple(frozenset(table[number - 1]) for number in numbers)


def _read_lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise InputError(f"{file}: {error.strerror}; unpack the archive again") from None


def _images(root: Path, folder: str) -> list[str]:
    """List a folder's images by their paths from the root, sorted."""
    names = sorted(entry.name for entry in _list(root / folder))
    ends = (".jpg", ".jpeg")
    return [f"{folder}/{name}" for name in names if name.lower().endswith(ends) and name[0] != "."]


def _list(folder: Path) -> list[os.DirEntry[str]]:
    try:
        return list(os.scandir(folder))
    except OSError as error:
        raise InputError(f"{folder}: {error.strerror}; unpack the archive again") from None


def _check_there(folder: Path, files: Iterable[str]) -> None:
    """Check that the files that a dataset's lists name are in their folder."""
    there = {entry.name for entry in _list(folder)}
    if missing := [file for file in files if file.partition("/")[2] not in there]:
        raise InputError(f"{folder}: {quoted(missing)} not there; unpack the archive again")


def _open(
    name: str, root: Path, classes: Sequence[str], files: Sequence[str], labels: Sequence[int]
) -> ImageDataset:
    names = Names([os.fsencode(file) for file in files])
    return FolderDataset(name, classes, np.array(labels, np.int64), root, names)
