"""Sets of the `datasets` library: written by it, read by us, each image by its number."""

import logging
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.data.datasets.hub_sets import (
    NAMES,
    PARTS,
    as_arrow,
    as_images,
    as_parquet,
    as_saved,
    datasets,
    number_in,
    own_cache,
    png,
    table,
    write_parquet,
)
from tests.shelf import refusal
from vitrail.data.dataset import ImageDataset
from vitrail.data.datasets.hub.hub_dataset import HubDataset, open_hub


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path) -> Iterator[None]:
    with own_cache(tmp_path / "cache"):
        yield


@pytest.mark.parametrize("write", [as_parquet, as_saved, as_arrow, as_images])
def test_folders(tmp_path: Path, write: Callable[[Path], None]) -> None:
    folder = tmp_path / "photos"
    write(folder)
    for split, stored in {"train": "train", "val": "validation", "test": "test"}.items():
        dataset = open_hub(str(folder), split)
        assert isinstance(dataset, HubDataset)
        assert dataset.classes == tuple(NAMES)
        assert (dataset.root, dataset.multilabel) == (folder, False)
        assert dataset.name == f"{folder}/{split}"
        assert dataset.where(1) == f"{split}[1]"  # however the folder is spelled
        contents = [dataset.read(index) for index in range(len(dataset))]
        numbers = [number_in(content) for content in contents]
        assert sorted(numbers) == list(PARTS[stored])
        assert contents == [png(n) for n in numbers]
        assert dataset.labels.tolist() == [n % 3 for n in numbers]
    assert len(open_hub(str(folder), "validation")) == 7  # type: ignore[arg-type]
    everything = open_hub(str(folder), "all")
    assert isinstance(everything, ImageDataset)
    assert sorted(number_in(everything.read(i)) for i in range(32)) == list(range(32))
    assert len({everything.where(i) for i in range(32)}) == 32
    for split in ("train", "val", "test"):
        part = open_hub(str(folder), split)
        assert isinstance(part, ImageDataset)
        names = {part.where(i): part.read(i) for i in range(len(part))}
        assert names.items() <= {everything.where(i): everything.read(i) for i in range(32)}.items()


def test_a_set_in_one_piece_gives_a_part_to_val(tmp_path: Path) -> None:
    table(range(60)).save_to_disk(tmp_path / "one")
    parts = {split: open_hub(str(tmp_path / "one"), split) for split in ("train", "val", "all")}
    found: dict[str, set[int]] = {}
    for split, dataset in parts.items():
        assert isinstance(dataset, ImageDataset)
        found[split] = {number_in(dataset.read(i)) for i in range(len(dataset))}
        assert [number_in(dataset.read(i)) % 3 for i in range(len(dataset))] == list(dataset.labels)
    assert len(found["val"]) == 6
    assert not found["train"] & found["val"]
    assert found["train"] | found["val"] == found["all"] == set(range(60))
    assert "has no split 'test'; it has train, val, all" in refusal(
        open_hub, str(tmp_path / "one"), "test"
    )


def test_a_split_saved_alone_keeps_its_name(tmp_path: Path) -> None:
    as_saved(tmp_path / "photos")
    rows = datasets.load_from_disk(tmp_path / "photos")["test"]
    datasets.Dataset(rows.data, split=datasets.Split.TEST).save_to_disk(tmp_path / "alone")
    assert open_hub(str(tmp_path / "alone"), "test").name == f"{tmp_path}/alone/test"
    assert "has no split 'train'" in refusal(open_hub, str(tmp_path / "alone"), "train")


Value, ClassLabel = datasets.Value, datasets.ClassLabel


@pytest.mark.parametrize(
    ("kind", "labels", "classes", "expected"),
    [
        (Value("int64"), [0, 3, 1], "0 1 2 3 4", [0, 3, 1]),
        (Value("uint8"), [2, 0, 2], "0 1 2 3 4", [2, 0, 2]),
        (Value("bool"), [True, False, True], "0 1 2 3 4", [1, 0, 1]),
        (Value("string"), ["ox", "ant", "ox"], "ant bee ox", [2, 0, 2]),
        (ClassLabel(names=["1", "2", "0"]), [1, 2, 1], "1 2 0", [1, 2, 1]),
        (ClassLabel(num_classes=3), [1, 0, 1], "0 1 2", [1, 0, 1]),
        (datasets.List(ClassLabel(names=["a", "b"])), [[1], [], [1, 0]], "a b", [2, 0, 3]),
        (datasets.List(Value("int32")), [[1], [], [0, 1]], "0 1 2 3 4", [2, 0, 3]),
        (datasets.List(Value("string")), [["ox"], [], ["ox", "ant"]], "ant bee ox", [4, 0, 5]),
    ],
)
def test_kinds_of_labels(
    tmp_path: Path, kind: Any, labels: list[Any], classes: str, expected: list[int]
) -> None:
    """Classes that only another split has count too; several labels are compared as bits."""
    several = isinstance(labels[0], list)
    other = {"string": "bee", "bool": False}.get(getattr(kind, "dtype", ""), 4)
    inner = getattr(kind, "feature", kind)
    other = "bee" if getattr(inner, "dtype", "") == "string" else other
    other = 0 if isinstance(inner, ClassLabel) else other
    write_parquet(tmp_path / "p", "train", table(range(3), kind, labels))
    write_parquet(tmp_path / "p", "test", table(range(1), kind, [[other] if several else other]))
    dataset = open_hub(str(tmp_path / "p"), "train")
    assert isinstance(dataset, ImageDataset)
    expected_classes = "0 1" if getattr(kind, "dtype", "") == "bool" else classes
    assert dataset.classes == tuple(expected_classes.split())
    assert dataset.multilabel == several
    found = dataset.labels @ (1 << np.arange(len(dataset.classes))) if several else dataset.labels
    assert found.tolist() == expected


@pytest.mark.parametrize(
    ("kind", "labels", "said"),
    [
        (ClassLabel(names=NAMES), [0, -1], "p/train: train[1]: it has no label"),
        (Value("int64"), [0, None], "[1]: it has no label"),
        (Value("int64"), [0, -7], "[1]: expected a class from 0 to 0, got -7"),
        (
            Value("int64"),
            [0, 10**12],
            "1000000000000 is not a class; expected numbers from 0, or names",
        ),
        (Value("float32"), [0.0, 1.0], "expected labels in column 'label', got Value('float32')"),
        (datasets.List(Value("int64")), [[0, 1, 0], [1]], "expected a list of classes, each once"),
        (datasets.List(datasets.List(Value("int8"))), [[[0]], [[1]]], "expected labels in column"),
    ],
)
def test_labels_that_are_refused(tmp_path: Path, kind: Any, labels: list[Any], said: str) -> None:
    folder = write_parquet(tmp_path / "p", "train", table(range(2), kind, labels))
    write_parquet(folder, "test", table(range(1), kind, labels[:1]))
    assert said in refusal(open_hub, str(folder), "train")


def test_the_columns_are_found_or_named(tmp_path: Path) -> None:
    rows = table(range(6))
    rows = rows.add_column("coarse", [0] * 6).cast_column("coarse", ClassLabel(names=["x"]))
    write_parquet(tmp_path / "p", "train", rows)
    write_parquet(tmp_path / "p", "test", rows)
    place = str(tmp_path / "p")
    assert (
        f"{place} has several label columns; write ,label=COLUMN with one of 'label', 'coarse'"
        == (refusal(open_hub, place, "train"))
    )
    for option, classes in (("label", tuple(NAMES)), ("coarse", ("x",))):
        assert open_hub(f"{place},label={option}", "train").classes == classes
    assert "has no column 'coarze'; did you mean 'coarse'?" in refusal(
        open_hub, f"{place},label=coarze", "train"
    )
    text = refusal(open_hub, f"{place},label=label,image=photo", "train")
    assert text.endswith("has no column 'photo'; it has 'id', 'image', 'label', 'coarse'")
    plain = rows.cast_column("image", {"bytes": Value("binary"), "path": Value("string")})
    write_parquet(tmp_path / "q", "train", plain)
    write_parquet(tmp_path / "q", "test", plain)
    text = refusal(open_hub, f"{tmp_path}/q,label=label", "train")
    assert "no column that must be its image; write ,image=COLUMN with one of 'id', 'image'" in text
    dataset = open_hub(f"{tmp_path}/q,image=image,label=label", "train")
    assert isinstance(dataset, ImageDataset)
    assert dataset.read(4) == png(4)
    write_parquet(
        tmp_path / "r", "train", rows.rename_column("label", "y").remove_columns("coarse")
    )
    assert open_hub(f"{tmp_path}/r", "train").classes == tuple(NAMES)
    assert "no column that must be its label" in refusal(
        open_hub,
        str(write_parquet(tmp_path / "s", "train", rows.select_columns(["image"]))),
        "train",
    )


def read_all(dataset: ImageDataset) -> list[Any]:
    return [dataset.read(index) for index in range(len(dataset))]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_threads_and_processes_read_the_same(tmp_path: Path) -> None:
    as_parquet(tmp_path / "p")
    dataset = open_hub(str(tmp_path / "p"), "train")
    assert isinstance(dataset, ImageDataset)
    expected = [png(n) for n in PARTS["train"]]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(read_all, [dataset] * 8)) == [expected] * 8
    for method in ("fork", "spawn"):
        with multiprocessing.get_context(method).Pool(1) as processes:
            assert processes.map(read_all, [dataset] * 2) == [expected] * 2


def test_rows_name_files_of_their_own_dataset_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stranger's row opens no connection to elsewhere, and no file of this machine."""
    import fsspec
    from huggingface_hub import constants

    from vitrail.data.datasets.hub import hub_dataset as hub
    from vitrail.data.datasets.hub.hub_library import parse_name

    opened: list[str] = []

    def opening(path: str, mode: str) -> BytesIO:
        opened.append(path)
        return BytesIO(f"{path} {mode}".encode())

    cache, folder, secret = tmp_path / "cache", tmp_path / "photos", tmp_path / "secret.png"
    for each in (cache, folder):
        each.mkdir()
        (each / "1.png").write_bytes(b"mine")
    secret.write_bytes(b"secret")
    monkeypatch.setattr(fsspec, "open", opening)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    there, local = parse_name("o/n"), parse_name(str(folder))
    for path in ("hf://datasets/o/n/1.png", "zip://1.png::hf://datasets/o/n@main/a.zip"):
        assert hub.read_row({"bytes": None, "path": path}, there) == f"{path} rb".encode()
    inner = f"zip://1.png::{folder}/a.zip"
    assert hub.read_row({"path": inner}, local) == f"{inner} rb".encode()
    assert hub.read_row({"path": str(cache / "1.png")}, there) == b"mine"
    assert hub.read_row({"path": "1.png"}, local) == b"mine"
    del opened[:]
    for path in (
        "ftp://127.0.0.1/a.png?hf://",
        "https://example.org/1.png",
        "hf://datasets/o/nother/1.png",
        "hf://datasets/o/n/../../p/secret/1.png",
        "hf://models/o/n/1.png",
        "zip://1.png::ftp://127.0.0.1/hf://datasets/o/n/a.zip",
        "ftp://127.0.0.1/::hf://datasets/o/n/a.zip",
        "file:///etc/passwd",
        str(secret),
        "../secret.png",
        f"zip://1.png::{secret}",
        f"{folder}/../secret.png",
    ):
        for source in (there, local):
            with pytest.raises(PermissionError, match="Not in this dataset"):
                hub.read_row({"bytes": None, "path": path}, source)
    with pytest.raises(PermissionError):
        hub.read_row({"path": "hf://datasets/o/n/1.png"}, local)
    assert opened == []


def test_what_the_library_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def load(*args: Any, **options: Any) -> Any:
        asked.append((args, options))
        rows = table(range(3)).rename_columns({"image": "img", "label": "fine_label"})
        return datasets.DatasetDict({"train": rows, "test": rows})

    monkeypatch.setattr(datasets, "load_dataset", load)
    monkeypatch.chdir(tmp_path)
    dataset = open_hub("org/cifar@v1.0/x,config=plain_text,image=img,label=fine_label", "train")
    assert (dataset.name, dataset.classes) == ("org/cifar/train", tuple(NAMES))
    assert open_hub("cifar", "val").name == "cifar/test"
    plain: dict[str, Any] = {"revision": None, "streaming": False}
    assert asked == [
        (("org/cifar", "plain_text"), {"revision": "v1.0/x", "streaming": False}),
        (("cifar", None), plain),
    ]
    (tmp_path / "a,b=c@d").mkdir()  # a folder's name is not taken apart
    assert open_hub("a,b=c@d", "train").name == "a,b=c@d/train"
    assert asked[2:] == [((str(tmp_path / "a,b=c@d"), None), plain)]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Lay out sets that something is wrong with."""
    root = tmp_path_factory.mktemp("places")
    for name in ("photos", "script", "torn", "two"):
        (root / name).mkdir()
    (root / "file").touch()
    (root / "script" / "script.py").write_text("open('run', 'w')")
    (root / "torn" / "train.parquet").write_bytes(b"PAR1 nonsense")
    write_parquet(root / "one", "train", table(range(1)))
    table(range(1)).save_to_disk(root / "saved")
    configs = "".join(f"- config_name: {c}\n  data_files: {c}-*.parquet\n" for c in "ab")
    (root / "two" / "README.md").write_text(f"---\nconfigs:\n{configs}---\n")
    for config in "ab":
        write_parquet(root / "two", config, table(range(1)))
    return root


@pytest.mark.parametrize(
    ("rest", "said"),
    [
        ("", "expected hf:NAME, hf:ORG/NAME@REVISION or hf:FOLDER, got 'hf:'"),
        ("a/b/c", "got 'hf:a/b/c'"),
        ("a\0b", "expected hf:NAME"),
        ("a b", "expected hf:NAME"),
        ("x" * 300, "hf:xxx"),
        ("./nothing", "no folder nothing"),
        ("~nobody-has-this-name/x", "no folder ~nobody"),
        ("file", "no folder file"),
        ("phtos", "HF_HUB_OFFLINE"),
        ("./phtos", "no folder phtos; did you mean 'photos'?"),
        ("photos,strem=true", "hf:photos,strem=true: unknown key 'strem'; did you mean 'stream'?"),
        ("photos,stream=maybe", "stream: expected true or false, got 'maybe'"),
        ("photos,buffer=0", "at least 1"),
        ("photos,classes=-1", "at least 1"),
        ("photos,trust_remote_code=true", "unknown key 'trust_remote_code'"),
        ("photos", "The directory at"),
        ("script", "Dataset scripts are no longer supported, but found script.py"),
        ("torn", "Parquet magic bytes not found"),
        ("torn,stream=true", "Parquet magic bytes not found"),
        ("two", "available configs: ['a', 'b']"),
        ("two", "config=NAME chooses one"),
        ("two,config=c", "BuilderConfig 'c' not found. Available: ['a', 'b']; config=NAME"),
        ("one,config=b", "one,config=b: BuilderConfig 'b' not found"),
        ("saved,stream=true", "saved is on this machine"),
    ],
)
def test_what_is_refused(
    places: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any, rest: str, said: str
) -> None:
    monkeypatch.chdir(places)
    assert said in refusal(open_hub, rest, "train")
    assert not (places / "run").exists()
    assert capfd.readouterr() == ("", "")


def test_without_a_network_or_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("no_proxy", "*")
        patch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
        patch.setattr(datasets.config, "HF_ENDPOINT", "http://127.0.0.1:9")
        text = refusal(open_hub, "org/name", "train")
        assert text.startswith("cannot reach 127.0.0.1:9 (")
        assert text.endswith(
            "set HF_HUB_OFFLINE=1 to use what was downloaded before, or write hf:FOLDER"
        )
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert refusal(open_hub, "org/name", "train") == (
        "hf: needs another package: pip install 'vitrail[data]'"
    )


def test_the_library_is_quiet_only_meanwhile(tmp_path: Path, capfd: Any) -> None:
    as_parquet(tmp_path / "p")
    datasets.enable_progress_bars()
    before = datasets.logging.get_verbosity()
    datasets.logging.set_verbosity(logging.INFO)
    try:
        open_hub(str(tmp_path / "p"), "train")
        refusal(open_hub, str(tmp_path / "p"), "nothing")
        assert not datasets.are_progress_bars_disabled()
        assert datasets.logging.get_verbosity() == logging.INFO
    finally:
        datasets.logging.set_verbosity(before)
    assert capfd.readouterr() == ("", "")
    assert os.listdir(tmp_path / "cache")  # where the user has it


@pytest.mark.parametrize("stream", ["", ",stream=true"])
def test_images_without_labels_are_one_class_where_none_are_needed(
    tmp_path: Path, stream: str
) -> None:
    write_parquet(tmp_path / "p", "train", table(range(20)).remove_columns("label"))
    place = f"{tmp_path}/p{stream}"
    assert "no column that must be its label" in refusal(open_hub, place, "train")
    found = open_hub(place, "all" if not stream else "train", labels=False)
    assert found.classes == ("image",)
    if isinstance(found, ImageDataset):
        assert found.labels.tolist() == [0] * 20
    else:
        items = [item for _, item in found.read_shard(0)]
        assert sorted(number_in(item.content) for item in items) == list(range(20))
        assert [item.label for item in items] == [0] * 20
