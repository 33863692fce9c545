"""open.py: each kind of DATA reaches its reader, and each mistake gets its one line."""

import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.data.datasets.hub_sets import table as hub_table
from tests.data.datasets.hub_sets import write_parquet
from vitrail.config import InputError
from vitrail.data.checks.trainable import check_trainable
from vitrail.data.dataset import ArrayDataset, FixedSizeDataset, ImageDataset
from vitrail.data.datasets.open import (
    notes,
    open_data,
    open_splits,
    open_stand_in,
)
from vitrail.data.datasets.unreadable_list import FilteredDataset, write_unreadable_list


def make(root: Path, *names: str) -> Path:
    """Make files that contain their own names; a name that ends in / is a folder."""
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).mkdir() if name.endswith("/") else (root / name).write_text(name)
    return root


def open_source(text: str | Path, **options: Any) -> ImageDataset:
    dataset = open_data(str(text), **options)
    assert isinstance(dataset, ImageDataset)
    return dataset


def refused(text: str | Path, **options: Any) -> str:
    with pytest.raises(InputError) as caught:
        open_data(str(text), **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, "my photos/train/a/1", "my photos/train/b/2", "my photos/val/b/3")
    for text in (f"{tmp_path}/my photos", f"{tmp_path}/my photos/", f"folder:{tmp_path}/my photos"):
        assert [open_source(text).read(index) for index in range(2)] == [
            b"my photos/train/a/1", b"my photos/train/b/2"
        ]  # fmt: skip
        assert open_source(text, split="validation").labels.tolist() == [1]
    monkeypatch.setenv("HOME", str(tmp_path))
    assert len(open_source("~/my photos")) == 2
    assert len(open_source("folder:~/my photos")) == 2
    make(tmp_path, "a:b/x/1", "a:b/y/1")
    monkeypatch.chdir(tmp_path)
    assert len(open_source("a:b", split="all")) == 2


@pytest.mark.parametrize("kind", ["folder", "csv", "parquet", "parquet of images", "wds", "hf"])
def test_a_test_split_that_stands_in_is_called_so(tmp_path: Path, kind: str) -> None:
    """By its name, by which runs know on which images they must not choose."""
    rows = [(split, number) for split in ("train", "test") for number in range(4)]
    table: dict[str, list[Any]] = {
        "path": [f"{split}/{'ab'[number % 2]}/{number}" for split, number in rows],
        "label": [number % 2 for _, number in rows],
        "split": [split for split, _ in rows],
    }
    make(tmp_path / "set", *table["path"])
    if kind == "folder":
        text = str(tmp_path / "set")
    elif kind == "csv":
        lines = [",".join(map(str, row)) for row in zip(*table.values(), strict=True)]
        (tmp_path / "set" / "list.csv").write_text("path,label,split\n" + "\n".join(lines))
        text = f"csv:{tmp_path}/set/list.csv"
    elif kind.startswith("parquet"):
        import pyarrow as pa
        from pyarrow import parquet

        if kind == "parquet of images":
            table = {"image": [name.encode() for name in table.pop("path")], **table}
        parquet.write_table(pa.table(table), tmp_path / "set" / "list.parquet")
        text = f"parquet:{tmp_path}/set/list.parquet"
    elif kind == "wds":
        for split in ("train", "test"):
            with tarfile.open(tmp_path / f"{split}.tar", "w") as tar:
                for number in range(4):
                    for name, content in ((f"{number}.png", b"x"), (f"{number}.cls", b"0")):
                        entry = tarfile.TarInfo(name)
                        entry.size = len(content)
                        tar.addfile(entry, io.BytesIO(content))
        text = f"wds:{tmp_path}/{{train,test}}.tar"
    else:
        for split in ("train", "test"):
            write_parquet(tmp_path / "hub", split, hub_table(range(4)))
        text = f"hf:{tmp_path}/hub"
    stand_in = open_stand_in(text)
    assert stand_in is not None
    assert stand_in.name == open_data(text, split="val").name
    assert "test" in stand_in.name
    assert set(open_splits(text)) == {"train", "test"}


def test_the_seed_draws_what_is_held_out(tmp_path: Path) -> None:
    make(tmp_path, *(f"{name}/{number}" for name in "ab" for number in range(30)))

    def held_out(seed: int) -> list[str]:
        dataset = open_source(tmp_path, split="val", seed=seed)
        return [dataset.where(index) for index in range(len(dataset))]

    assert len(held_out(0)) == 6
    assert held_out(0) == held_out(0) != held_out(1)


def test_lists(tmp_path: Path) -> None:
    (tmp_path / "l.csv").write_text("path,label,kind\n1,a,x\n2,b,y\n")
    (tmp_path / "l.jsonl").write_text('{"path": "1", "label": "a"}\n{"path": "2", "label": "b"}')
    for text in (f"csv:{tmp_path}/l.csv", f"{tmp_path}/l.csv", f"jsonl:{tmp_path}/l.jsonl"):
        assert open_source(text, split="all").classes == ("a", "b")
    for text in (f"csv:{tmp_path}/l.csv,label=kind", f"{tmp_path}/l.csv,label=kind"):
        assert open_source(text, split="all").classes == ("x", "y")
    assert refused(f"csv:{tmp_path}/m.csv") == f"no file {tmp_path}/m.csv; did you mean 'l.csv'?"


def test_parquet(tmp_path: Path) -> None:
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pa.table({"image": [b"1", b"2"], "label": [0, 1]}), tmp_path / "l.parquet")
    for text in (f"parquet:{tmp_path}/l.parquet", f"{tmp_path}/l.parquet"):
        assert open_source(text, split="all").read(1) == b"2"


@pytest.mark.parametrize(
    ("scheme", "sought"),
    [
        ("cifar10", "test_batch.bin"),
        ("cifar100", "cifar-100-binary"),
        ("mnist", "train-images-idx3-ubyte"),
        ("fashion-mnist", "train-images-idx3-ubyte"),
        ("pets", "annotations"),
        ("flowers102", "imagelabels.mat"),
        ("caltech101", "101_ObjectCategories"),
        ("imagenet", "nXXXXXXXX"),
        ("wds", ".tar"),
    ],
)
def test_each_public_set_looks_for_its_own_files(tmp_path: Path, scheme: str, sought: str) -> None:
    problem = refused(f"{scheme}:{tmp_path}")
    assert str(tmp_path) in problem
    assert sought in problem


def test_a_set_that_was_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path))
    make(tmp_path, "data/mnist/ORIGIN.txt").joinpath("data/mnist/ORIGIN.txt").write_text("mnist\n")
    for text in ("mnist", "mnist:"):
        assert refused(text).startswith(f"{tmp_path}/data/mnist: found no train-images-idx3-ubyte")


def test_the_hub(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    assert refused(f"hf:{tmp_path}").startswith(f"hf:{tmp_path}: ")


def test_sets_of_the_package() -> None:
    assert len(open_source("digits", split="all")) == 1797
    assert open_source("digits:", split="dev").name == "digits/test"
    shapes = open_source("shapes:size=16,count=20", split="val")
    assert isinstance(shapes, FixedSizeDataset)
    assert len(shapes) == 2
    assert refused("digits:hard") == "digits has no options; write digits instead of 'digits:hard'"


def test_shards_are_opened_with_the_seed(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "s.tar", "w") as tar:
        for number in range(40):
            for suffix, content in (("cls", b"%d" % (number % 2)), ("jpg", b"image")):
                member = tarfile.TarInfo(f"{number:03}.{suffix}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    held_out = [open_source(f"wds:{tmp_path}/s.tar", split="val", seed=seed) for seed in (0, 0, 1)]
    first, same, other = ([each.where(i) for i in range(len(each))] for each in held_out)
    assert len(first) == 4
    assert first == same != other


def test_bad_images_are_left_out_and_noted(tmp_path: Path) -> None:
    make(
        tmp_path,
        *(f"{part}/{name}/{n}" for part in ("train", "val") for name in "ab" for n in "12"),
    )
    make(tmp_path, "extra")
    beside = f"{tmp_path}: 'extra' left out, not in the folder of a split"
    assert notes(open_source(tmp_path)) == (beside,)
    write_unreadable_list(tmp_path, {"train/a/2": "cut off", "val/b/1": "cut off"})
    train = open_source(tmp_path)
    assert isinstance(train, FilteredDataset)
    assert train.skipped == 1
    assert [train.where(index) for index in range(3)] == ["train/a/1", "train/b/1", "train/b/2"]
    said = f"{tmp_path}/train: vitrail-unreadable.tsv leaves out 1 of 4 images"
    assert notes(train) == (beside, said)
    assert notes(open_source("digits")) == ()
    (tmp_path / "vitrail-unreadable.tsv").write_text("train/a/2")
    assert refused(tmp_path).startswith(
        f"{tmp_path}/vitrail-unreadable.tsv: expected a first line of"
    )


def test_the_list_does_not_change_what_is_held_out(tmp_path: Path) -> None:
    make(tmp_path, *(f"{name}/{number}" for name in "ab" for number in range(30)))
    before = open_source(tmp_path, split="val")
    names = [before.where(index) for index in range(len(before))]
    write_unreadable_list(tmp_path, {names[0]: "bad", "a/0": "bad", "a/1": "bad"})
    after = open_source(tmp_path, split="val")
    left = [name for name in names if name not in (names[0], "a/0", "a/1")]
    assert [after.where(index) for index in range(len(after))] == left


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "expected data, such as a folder of images or digits, got ''"),
        (" ", "expected data, such as a folder of images or digits, got ' '"),
        ("a\0b", "expected data, such as a folder of images or digits, got 'a\\x00b'"),
        ("digit", "no folder or dataset 'digit'; did you mean 'digits'?"),
        ("phtos/", "no folder or dataset 'phtos/'; did you mean 'photos'?"),  # not pets
        ("photo", "no folder or dataset 'photo'; did you mean 'photos'?"),
        ("nothing-like-it", "no folder or dataset 'nothing-like-it'"),
        ("~nobody-here/x", "no folder or dataset '~nobody-here/x'"),
        ("csv:~nobody-here/x", "no file ~nobody-here/x"),
        (
            "cifar10",
            "cifar10 was not fetched; write cifar10:DIR with its folder, "
            "or run: vitrail data fetch cifar10",
        ),
        ("imagenet", "imagenet needs its place: write imagenet:DIR"),
        ("hf", "hf needs its place: write hf:NAME"),
        ("imagenet:", "imagenet: needs its DIR; write imagenet:DIR"),
        ("csv:", "csv: needs its FILE; write csv:FILE"),
        ("folder:", "folder: needs its PATH; write folder:PATH"),
        ("folder:photo", "no folder photo; did you mean 'photos'?"),
        (
            "ylecun/mnist",
            "no folder or dataset 'ylecun/mnist'; "
            "write hf:ylecun/mnist if it is a dataset of the hub",
        ),
        ("https://x.org/a.zip", "https://x.org/a.zip: download it, then give its folder"),
        (
            "shapes",
            "'shapes' is a dataset, and also the name of something here; "
            "write shapes: for the dataset, ./shapes for what is here",
        ),
        ("x.jpg", "x.jpg is one image; expected a folder with one folder of images per class"),
        ("x.zip", "x.zip is an archive; unpack it and give its folder"),
        (
            "x.tar",
            "x.tar is an archive; unpack it and give its folder, "
            "or write wds:x.tar if it is a shard",
        ),
        (
            "x.tar.gz",
            "x.tar.gz is an archive; unpack it and give its folder, "
            "or write wds:x.tar.gz if it is a shard",
        ),
        (
            "x.pdf",
            "x.pdf is not a dataset; expected a folder with one folder of images per class, "
            "or csv:FILE, jsonl:FILE, …",
        ),
        ("photos", "photos is empty; expected a folder of images for each class"),
        ("x" * 5000, f"no folder or dataset '{'x' * 5000}'"),
    ],
)
def test_mistakes(text: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, "photos/", "shapes/", "x.jpg", "x.zip", "x.tar", "x.tar.gz", "x.pdf")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    assert refused(text) == problem


def test_a_path_that_may_not_be_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "stat", refuse)
    assert refused("a/b") == "cannot read a/b: Permission denied"
    assert refused("folder:a/b") == "cannot read the folder a/b: Permission denied"


def test_an_unknown_beginning() -> None:
    problem = refused("cifar-10:data")
    assert problem.startswith("unknown data 'cifar-10:data': it may begin with folder:, csv:, ")
    assert problem.endswith("; did you mean 'cifar10' or 'cifar100'?")


def test_an_unknown_split(tmp_path: Path) -> None:
    make(tmp_path, "train/a/1", "train/b/1", "test/a/1")
    assert refused(tmp_path, split="holdout") == (
        f"{tmp_path} has no split 'holdout'; it has train, test, all"
    )
    assert refused("digits", split="trian") == (
        "digits has no split 'trian'; it has train, test, all; did you mean 'train'?"
    )


def untrainable(train: ImageDataset, val: ImageDataset | None = None) -> str:
    with pytest.raises(InputError) as caught:
        check_trainable(train, val)
    return str(caught.value)


def test_what_can_be_trained_on(tmp_path: Path) -> None:
    make(tmp_path, "train/a/1", "train/b/1", "val/a/1", "val/b/1")
    assert check_trainable(open_source(tmp_path), open_source(tmp_path, split="val")) == ()
    (tmp_path / "val/b/1").unlink()
    train, val = open_source(tmp_path), open_source(tmp_path, split="val")
    assert check_trainable(train) == ()
    assert check_trainable(train, val) == (f"{tmp_path}/val has no image of 'b'",)


def test_one_class_only(tmp_path: Path) -> None:
    make(tmp_path, *(f"cats/{number}" for number in range(10)))
    assert untrainable(open_source(tmp_path)) == (
        f"{tmp_path} (train) has only the class 'cats'; a classifier needs two or more"
    )


def test_a_class_without_images(tmp_path: Path) -> None:
    make(tmp_path, "train/a/1", "train/b/1", "train/c/", "val/a/1", "val/b/1")
    assert untrainable(open_source(tmp_path)) == (
        f"class 'c' of {tmp_path}/train has no image; add some, or remove the class"
    )
    make(tmp_path, "train/c/1", "train/c/2", "train/c/3")
    write_unreadable_list(tmp_path, {f"train/c/{number}": "cut off" for number in (1, 2, 3)})
    assert untrainable(open_source(tmp_path)) == (
        f"class 'c' of {tmp_path}/train has no readable image (3 skipped)"
    )


def test_sets_that_do_not_fit_each_other() -> None:
    def pixels(name: str, classes: str, labels: list[int]) -> ImageDataset:
        shape = (len(labels), 1, 1, 3)
        return ArrayDataset(name, classes, np.array(labels, np.int64), np.zeros(shape, np.uint8))

    train = pixels("train", "ab", [0, 1])
    assert untrainable(train, pixels("val", "abc", [0])) == "class 'c' of val is not in train"
    assert untrainable(train, pixels("val", "ab", [])) == "val has no images"
    assert untrainable(pixels("train", "ab", [])) == "train has no images to train on"
    text = untrainable(train, pixels("val", "ba", [0]))
    assert text.startswith("val numbers its classes differently")


def test_several_labels_may_lack_a_class() -> None:
    labels = np.array([[1, 0], [1, 0]], np.uint8)
    train = ArrayDataset("train", "ab", labels, np.zeros((2, 1, 1, 3), np.uint8))
    assert check_trainable(train, train) == ("train has no image of 'b'",)
