"""parquet.py: images in a Parquet file, and named by one."""

import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vitrail.config import InputError
from vitrail.data.datasets.hub import parquet as parquet_module
from vitrail.data.datasets.hub.parquet import open_parquet
from vitrail.data.datasets.lists import Columns

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


def write(path: Path, columns: dict[str, Any], **options: Any) -> Path:
    parquet.write_table(pa.table(columns), path, **options)
    return path


HELD = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def images(count: int) -> Any:
    return pa.array([{"bytes": b"%d" % n, "path": "same.jpg"} for n in range(count)], HELD)


def test_a_file_as_the_hubs_library_writes_it(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    features = {"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])}
    held = [{"bytes": b"%d" % n, "path": None} for n in range(40)]
    rows = {"image": held, "label": [1] * 20 + [0] * 20}
    datasets.disable_progress_bars()
    path = tmp_path / "train-00000-of-00001.parquet"
    datasets.Dataset.from_dict(rows, features=datasets.Features(features)).to_parquet(path)
    dataset = open_parquet(path, "all")
    assert dataset.classes == ("cat", "dog")
    assert dataset.labels.tolist() == rows["label"]
    assert [dataset.read(index) for index in range(40)] == [b"%d" % n for n in range(40)]
    assert dataset.where(2) == "train-00000-of-00001.parquet[3]"
    val = open_parquet(path, "val")
    assert np.bincount(val.labels).tolist() == [2, 2]
    places = [int(val.where(index).partition("[")[2][:-1]) - 1 for index in range(4)]
    assert [int(val.read(index)) for index in range(4)] == places


@pytest.mark.parametrize("group", [1, 7, 100])
def test_images_as_bytes_in_groups_of_rows(tmp_path: Path, group: int) -> None:
    columns = {"image": [b"%d" % n for n in range(50)], "label": [f"{n % 3}x" for n in range(50)]}
    dataset = open_parquet(write(tmp_path / "p.parquet", columns, row_group_size=group), "all")
    assert [dataset.read(index) for index in (49, 0, 7)] == [b"49", b"0", b"7"]
    assert dataset.classes == ("0x", "1x", "2x")
    copy = pickle.loads(pickle.dumps(dataset))
    assert copy.read(33) == b"33"
    assert copy.root == tmp_path


def test_paths(tmp_path: Path) -> None:
    (tmp_path / "1.jpg").write_bytes(b"one")
    columns = {"file": ["1.jpg", "2.jpg"], "label": [3, 5], "split": ["train", "test"], "x": [1, 2]}
    dataset = open_parquet(write(tmp_path / "p.parquet", columns), "train")
    assert dataset.read(0) == b"one"
    assert (dataset.where(0), dataset.classes) == ("1.jpg", ("3", "5"))
    named = pa.array([{"bytes": None, "path": "1.jpg"}, {"bytes": None, "path": "2.jpg"}], HELD)
    dataset = open_parquet(
        write(tmp_path / "p.parquet", {"image": named, "label": ["a", "b"]}), "all"
    )
    assert [dataset.where(index) for index in range(2)] == ["1.jpg", "2.jpg"]
    assert dataset.read(0) == b"one"


def test_labels_of_several_kinds(tmp_path: Path) -> None:
    several = {"image": images(3), "labels": [["a", "b"], [], ["b"]]}
    dataset = open_parquet(write(tmp_path / "p.parquet", several), "all")
    assert dataset.labels.tolist() == [[1, 1], [0, 0], [0, 1]]
    packed = {"image": images(2), "label": pa.array(["b", "a"]).dictionary_encode()}
    assert open_parquet(write(tmp_path / "p.parquet", packed), "all").labels.tolist() == [1, 0]
    chosen = {"image": images(2), "label": [0, 0], "kind": ["b", "a"], "use": ["val", "train"]}
    path = write(tmp_path / "p.parquet", chosen)
    dataset = open_parquet(path, "val", columns=Columns(label="kind", split="use"))
    assert (dataset.classes, dataset.labels.tolist(), dataset.read(0)) == (("a", "b"), [1], b"0")


def refused(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        open_parquet(path, "all")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_bad_files(tmp_path: Path) -> None:
    path = tmp_path / "p.parquet"
    assert refused(path) == f"no file {path}"
    path.write_bytes(b"path,label\n1,a\n")
    assert refused(path).startswith(f"cannot read {path}: Parquet magic bytes not found in footer")
    write(path, {"image": images(2), "label": ["a", None]})
    assert refused(path) == f"{path} row 2: it has no label"
    write(path, {"image": ["1", None], "label": ["a", "b"]})
    assert refused(path) == f"{path} row 2: expected an image's path, got None"
    write(path, {"image": [[1, 2]], "label": ["a"]})
    assert refused(path) == f"{path} row 1: expected an image's path, got [1, 2]"
    write(path, {"image": images(0), "label": pa.array([], pa.string())})
    assert refused(path) == f"{path} is empty; expected a row for each image"
    whole = write(path, {"image": images(500), "label": ["a"] * 500}).read_bytes()
    path.write_bytes(whole[:100] + b"\xff" * 200 + whole[300:])
    assert refused(path).startswith(f"cannot read {path}: ")


def test_a_row_without_a_image(tmp_path: Path) -> None:
    held = pa.array([{"bytes": None, "path": "x"}, {"bytes": b"1", "path": None}], HELD)
    dataset = open_parquet(write(tmp_path / "p.parquet", {"image": held, "label": [0, 1]}), "all")
    with pytest.raises(OSError, match="No image in this row"):
        dataset.read(0)
    assert dataset.read(1) == b"1"


def test_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert refused(tmp_path / "p.parquet") == (
        "Parquet files need pyarrow: pip install 'vitrail[data]'"
    )


def test_images_are_read_by_row_groups_and_few_are_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = {"image": [b"%04d" % n * 250 for n in range(100)], "label": ["a", "b"] * 50}
    path = write(tmp_path / "p.parquet", columns, row_group_size=10)
    monkeypatch.setattr(parquet_module, "_HELD", 25_000)  # two groups of 10 kB
    read: list[int] = []
    plain = parquet.ParquetFile.read_row_group

    def count(self: Any, group: int, *arguments: Any, **options: Any) -> Any:
        read.append(group)
        return plain(self, group, *arguments, **options)

    monkeypatch.setattr(parquet.ParquetFile, "read_row_group", count)
    dataset = open_parquet(path, "all")
    assert read == []
    assert [int(dataset.read(index)[:4]) for index in (5, 15, 0, 99, 9, 12)] == [
        5,
        15,
        0,
        99,
        9,
        12,
    ]
    assert read == [0, 1, 9, 1]
    held = parquet_module._groups._held
    assert len(held) == 2
    assert sum(group.nbytes for group in held.values()) <= 25_000
    read.clear()
    assert dataset.fingerprint() == open_parquet(path, "all").fingerprint()
    assert len(set(read)) == 4


def test_a_changed_image_is_noticed(tmp_path: Path) -> None:
    columns = {"image": [b"%d" % n for n in range(50)], "label": ["a", "b"] * 25}
    before = open_parquet(write(tmp_path / "p.parquet", columns), "train").fingerprint()
    columns["image"][1] = b"8"
    after = open_parquet(write(tmp_path / "p.parquet", columns), "train").fingerprint()
    assert before != after


def test_a_file_that_is_damaged_while_it_is_used(tmp_path: Path) -> None:
    path = write(tmp_path / "p.parquet", {"image": images(4), "label": ["a", "b"] * 2})
    dataset = open_parquet(path, "all")
    path.write_bytes(b"PAR1")
    with pytest.raises(OSError, match="damaged"):
        dataset.read(0)
