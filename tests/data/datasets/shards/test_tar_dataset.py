"""Shards: written by webdataset, read as it reads them; from a server, and in other processes."""

import json
import multiprocessing
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.data.datasets.shards.tars import image, numbered, read_all, tar
from tests.data.datasets.shards.tars import open_indexed as open_shards
from tests.shelf import Shelf, refusal, serving
from vitrail.data.datasets.shards import tar_dataset as shards


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shelf]:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    with serving() as shelf:
        shelf.files = {}
        yield shelf


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <_io.FileIO:pytest.PytestUnraisableExceptionWarning"
)
def test_reads_what_webdataset_reads(tmp_path: Path) -> None:
    webdataset = pytest.importorskip("webdataset")
    with webdataset.ShardWriter(f"{tmp_path}/train-%04d.tar", maxcount=30, verbose=0) as writer:
        for n in range(100):
            meta = {"label": 99, "caption": "an image"}
            key = f"{'deep/' * (n % 40)}k{n}"
            writer.write({"__key__": key, "png": image(n), "json": meta, "cls": n % 7})
    numbered(tmp_path / "val-0000.tar", range(5))
    dataset = open_shards(f"{tmp_path}/*.tar", "all")
    urls = [str(path) for path in sorted(tmp_path.glob("*.tar"))]
    theirs = list(webdataset.WebDataset(urls, shardshuffle=False))
    assert len(dataset) == len(theirs) == 105
    assert dataset.classes == tuple("0123456")
    for index, sample in enumerate(theirs):
        kind = "png" if "png" in sample else "jpg"
        assert dataset.read(index) == sample[kind]
        assert dataset.labels[index] == int(sample["cls"])
        shard = os.path.basename(sample["__url__"])
        assert dataset.where(index) == f"{shard}:{sample['__key__']}.{kind}"
    assert dataset.root == tmp_path
    assert dataset.name == f"{tmp_path.name}/all"


def test_splits(tmp_path: Path) -> None:
    numbered(tmp_path / "d" / "train-0.tar", range(6))
    numbered(tmp_path / "d" / "train-1.tar", range(6, 9))
    numbered(tmp_path / "d" / "validation-0.tar", range(9, 12))
    expected = {"train": range(9), "val": range(9, 12), "all": range(12)}
    for place in (f"{tmp_path}/d", f"{tmp_path}/d/{{train-0,train-1,validation-0}}.tar"):
        for split, numbers in expected.items():
            dataset = open_shards(place, split)
            assert read_all(dataset) == [image(n) for n in numbers]
            assert dataset.labels.tolist() == [n % 3 for n in numbers]
            assert dataset.name == f"d/{split}"
    text = refusal(open_shards, f"{tmp_path}/d", "test")
    assert text == f"wds:{tmp_path}/d has no split 'test'; it has train, val, all"
    for split in ("train", "val"):
        shutil.copytree(tmp_path / "d", tmp_path / "e" / split)
    assert (
        open_shards(f"{tmp_path}/e", "val").where(0)
        == f"{tmp_path}/e/train/validation-0.tar:0009.jpg"
    )


def test_shards_without_splits_give_a_part_to_val(tmp_path: Path) -> None:
    numbered(tmp_path / "a.tar", range(60))
    parts = {split: open_shards(str(tmp_path), split) for split in ("train", "val", "all")}
    found = {split: set(read_all(dataset)) for split, dataset in parts.items()}
    assert len(found["val"]) == 6
    assert not found["train"] & found["val"]
    assert found["train"] | found["val"] == found["all"] == {image(n) for n in range(60)}
    assert set(read_all(open_shards(str(tmp_path), "val", seed=1))) != found["val"]


def test_samples(tmp_path: Path) -> None:
    """What belongs to a sample, and what is passed by."""
    files: dict[str, bytes | str] = {
        "./a.cls": "1\n", "./a.JPG": b"a", "./a.seg.png": b"mask", "b.json": '{"class": "0"}',
        "b.webp": b"b", "README.md": "x", "x/": "", "x/.c.jpg": b"hidden", "noext": b"",
        "v1.2/c.npy": b"c", "v1.2/c.txt": " 2 ", "d.json": '{"width": 3}', "d.txt": "1",
        "d.ppm": b"d",
    }  # fmt: skip
    dataset = open_shards(str(tar(tmp_path / "a.tar", files)), "all")
    assert read_all(dataset) == [b"a", b"b", b"c", b"d"]
    assert dataset.labels.tolist() == [1, 0, 2, 1]
    assert [dataset.where(i) for i in range(4)] == [
        "a.tar:./a.JPG", "a.tar:b.webp", "a.tar:v1.2/c.npy", "a.tar:d.ppm"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("labels", "beside", "classes", "expected"),
    [
        (["0", "4", "1"], {}, "0 1 2 3 4", [0, 4, 1]),
        (["ox", "ant", "ox"], {}, "ant ox", [1, 0, 1]),
        (["ox", "2", "ox"], {"classes.txt": "ant\n\nox\n bee \n"}, "ant ox bee", [1, 2, 1]),
        (["[0, 2]", "[]", '["ox"]'], {"classes.txt": "ant\nbee\nox"}, "ant bee ox", [5, 0, 4]),
        (["[0, 2]", "1", "[]"], {}, "0 1 2", [5, 2, 0]),
        (
            ["1", "1", "0"],
            {
                "dataset_info.json": {
                    "features": {"y": {"_type": "ClassLabel", "names": ["b", "a"]}}
                }
            },
            "b a",
            [1, 1, 0],
        ),
    ],
)
def test_labels(
    tmp_path: Path, labels: list[str], beside: dict[str, Any], classes: str, expected: list[int]
) -> None:
    """Several labels are compared as bits."""
    files: dict[str, bytes | str] = {}
    for number, label in enumerate(labels):
        files |= {f"{number}.jpg": b"x", f"{number}.cls": label}
    for name, content in beside.items():
        (tmp_path / name).write_text(content if isinstance(content, str) else json.dumps(content))
    dataset = open_shards(str(tar(tmp_path / "a.tar", files)), "all")
    assert dataset.classes == tuple(classes.split())
    assert dataset.multilabel == any("[" in label for label in labels)
    bits = 1 << np.arange(len(dataset.classes))
    assert (dataset.labels @ bits if dataset.multilabel else dataset.labels).tolist() == expected


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "a.tar has no images"),
        ({"a.cls": "1", "a.heic": b""}, "sample 'a': it has no image; expected one of jpg"),
        ({"a.jpg": b""}, "sample 'a': it has no label; expected KEY.cls"),
        ({"a.jpg": b"", "a.cls": ""}, "sample 'a': it has no label"),
        ({"a.jpg": b"", "a.json": "{}"}, "it has no label"),
        ({"a.jpg": b"", "a.json": "{"}, "its .json can't be read as text or JSON"),
        ({"a.jpg": b"", "a.json": "[" * 10**5}, "its .json can't be read"),
        ({"a.jpg": b"", "a.cls": b"\xff"}, "its .cls can't be read"),
        ({"a.jpg": b"", "a.cls": "a\nb"}, "expected a class index or name, got 'a\\nb'"),
        ({"a.jpg": b"", "a.json": '{"label": 0.5}'}, "index or name, got 0.5"),
        ({"a.jpg": b"", "a.json": '{"label": {"a": 1}}'}, "index or name, got {'a': 1}"),
        ({"a.jpg": b"", "a.cls": "-1"}, "a.tar:a.jpg: it has no label"),
        ({"a.jpg": b"", "a.cls": "9" * 15}, "is not a class; expected numbers from 0"),
        ({"a.jpg": b"", "a.png": b"", "a.cls": "1"}, "several images (jpg, png); expected one"),
        ({"a.jpg": b"", "a.JPG": b"", "a.cls": "1"}, "a.JPG appears twice"),
        (
            {"a.jpg": b"", "a.cls": "1", "b.jpg": b"", "b.cls": "1", "a.png": b""},
            "sample 'a': it appears twice; files of one key must be adjacent",
        ),
        ({"a.jpg": b"", "a.cls": "1", "b.jpg": b"", "b.cls": "x"}, "has both numbers and words"),
    ],
)
def test_samples_that_are_refused(tmp_path: Path, files: dict[str, Any], said: str) -> None:
    path = tar(tmp_path / "d" / "a.tar", files)
    assert said in refusal(open_shards, str(path), "train")


def test_files_that_are_refused(tmp_path: Path) -> None:
    path = numbered(tmp_path / "a.tar", range(3))
    whole = path.read_bytes()
    path.write_bytes(whole[:2000])
    assert f"{path} is cut off: it ends at byte 2,000" in refusal(open_shards, str(path), "all")
    path.write_bytes(b"")
    assert f"{path} is empty" in refusal(open_shards, str(path), "all")
    path.write_bytes(whole)
    for text, said in {
        "a\na": "unique class names",
        "a\nb\n": "expected a class from 0 to 1, got 2",
    }.items():
        (tmp_path / "classes.txt").write_text(text)
        assert said in refusal(open_shards, str(path), "all")
    (tmp_path / "classes.txt").unlink()
    for text in ("{", "[]", '{"features": {"a": 1}}'):
        (tmp_path / "dataset_info.json").write_text(text)
        assert "dataset_info.json: expected class names" in refusal(open_shards, str(path), "all")
    (tmp_path / "dataset_info.json").write_text('{"features": {"cls": {"_type": "Value"}}}')
    (tmp_path / "classes.txt").write_text("\n")
    dataset = open_shards(str(path), "all")
    assert dataset.classes == ("0", "1", "2")
    os.truncate(path, 600)
    with pytest.raises(OSError, match="was cut off after it was opened"):
        dataset.read(2)
    other = open_shards(str(numbered(tmp_path / "b.tar", range(3))), "all")
    (tmp_path / "b.tar").unlink()
    with pytest.raises(FileNotFoundError):
        other.read(0)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_threads_and_processes_read_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for shard in range(8):
        numbered(tmp_path / f"{shard}.tar", range(shard * 10, shard * 10 + 10))
    dataset = open_shards(str(tmp_path), "all")
    expected = [image(n) for n in range(80)]
    for method in ("fork", "spawn"):
        with multiprocessing.get_context(method).Pool(2) as processes:
            assert processes.map(read_all, [dataset] * 4, chunksize=1) == [expected] * 4
    few = shards.lru_cache(2)(shards._open.__wrapped__)  # files are closed while others read them
    monkeypatch.setattr(shards, "_open", few)
    before = len(os.listdir("/dev/fd"))
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(read_all, [dataset] * 12)) == [expected] * 12
    assert len(os.listdir("/dev/fd")) <= before + 2


def test_a_file_is_not_closed_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset, pread = open_shards(str(numbered(tmp_path / "a.tar", range(3))), "all"), os.pread

    def forgotten_meanwhile(*args: int) -> bytes:
        shards._open.cache_clear()
        return pread(*args)

    monkeypatch.setattr(os, "pread", forgotten_meanwhile)
    assert read_all(dataset) == [image(n) for n in range(3)]


def test_open_files_are_bounded_and_closed_in_silence(tmp_path: Path) -> None:
    for shard in range(70):
        numbered(tmp_path / f"{shard:02}.tar", range(shard, shard + 1))
    code = (
        "import os, sys; from vitrail.data.datasets.shards.open_shards import open_shards\n"
        "source = open_shards(sys.argv[1], 'all')\n"
        "assert sum(len(source.read(i)) for i in range(70))\n"
        "print(len(os.listdir('/dev/fd')))"
    )
    run = [sys.executable, "-W", "error", "-X", "dev", "-c", code, str(tmp_path)]
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    assert 64 < int(done.stdout) < 70
    assert done.stderr == ""


def test_a_shard_that_is_replaced(tmp_path: Path) -> None:
    for numbers in (range(3), range(5, 9)):
        path = numbered(tmp_path / "new.tar", numbers)
        path = path.rename(tmp_path / "a.tar")
        assert read_all(open_shards(str(path), "all")) == [image(n) for n in numbers]
        os.utime(path, (1, 1))


def test_shards_are_downloaded_once(shelf: Shelf, tmp_path: Path) -> None:
    for shard in range(3):
        path = numbered(tmp_path / f"train-{shard}.tar", range(shard * 5, shard * 5 + 5))
        shelf.files[f"/set/train-{shard}.tar"] = path.read_bytes()
    shelf.files["/set/classes.txt"] = b"ant\nbee\nox\nyak"
    shelf.cuts = [10**9, 10**9, 3000]  # the second shard comes in two parts
    text = f"{shelf.address}/set/train-{{0..2}}.tar"
    for _ in range(2):
        dataset = open_shards(text, "all")
        assert read_all(dataset) == [image(n) for n in range(15)]
        assert dataset.classes == ("ant", "bee", "ox", "yak")
        assert dataset.where(7) == "train-1.tar:0007.jpg"
        assert dataset.root is not None
        assert dataset.root.parent == tmp_path / "cache" / "shards"
        assert dataset.root.name.startswith("127.0.0.1-")
    files = ["classes.txt", "dataset_info.json", *(f"train-{shard}.tar" for shard in (0, 1, 1, 2))]
    assert [path for path, _ in shelf.asked] == [f"/set/{file}" for file in files]
    assert shelf.asked[4] == ("/set/train-1.tar", "bytes=3000-")
    shelf.files["/other/train-0.tar"] = shelf.files["/set/train-2.tar"]
    other = open_shards(f"{shelf.address}/other/train-0.tar", "all")
    assert read_all(other) == [image(n) for n in range(10, 15)]


def test_a_new_signature_does_not_download_a_shard_again(shelf: Shelf, tmp_path: Path) -> None:
    data = [numbered(tmp_path / f"{n}.tar", range(n, n + 3)).read_bytes() for n in range(3)]

    def signed(version: int, signature: str) -> str:
        query = f"versionId={version}&X-Amz-Date={signature}&X-Amz-Signature={signature}"
        shelf.files[f"/set/a.tar?{query}"] = data[version]
        return f"{shelf.address}/set/a.tar?{query}"

    for signature in ("one", "two"):
        found = open_shards(signed(1, signature), "all")
        assert read_all(found) == [image(n) for n in (1, 2, 3)]
    assert [path for path, _ in shelf.asked if ".tar" in path] == [
        "/set/a.tar?versionId=1&X-Amz-Date=one&X-Amz-Signature=one"
    ]
    other = open_shards(signed(2, "two"), "all")  # another parameter is another file
    assert read_all(other) == [image(n) for n in (2, 3, 4)]


def test_downloads_that_are_refused(
    shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = numbered(tmp_path / "a.tar", range(5)).read_bytes()
    shelf.files = {"/train-0.tar": data}
    text = refusal(open_shards, f"{shelf.address}/train-{{0..1}}.tar,stream=false", "train")
    assert text == f"{shelf.address}/train-1.tar: the server answers 404 Not Found"
    usage = shutil.disk_usage(tmp_path)._replace(free=len(data) * 2)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    shelf.files |= {f"/b/{n}.tar": data for n in range(4)}
    text = refusal(open_shards, f"{shelf.address}/b/{{0..3}}.tar", "all")
    assert "no room for 3 more shards in " in text
    assert [path for path, _ in shelf.asked if path.startswith("/b/")][-1] == "/b/0.tar"
    assert len(open_shards(f"{shelf.address}/b/{{0..2}}.tar", "all")) == 15


@pytest.mark.parametrize("lacking", ["all", "one"])
def test_images_without_labels_are_one_class_where_none_are_needed(
    tmp_path: Path, lacking: str
) -> None:
    files: dict[str, bytes | str] = {f"{n}.jpg": image(n) for n in range(20)}
    labels = {f"{n}.cls": "0" for n in range(20 if lacking == "one" else 0) if n != 7}
    tar(tmp_path / "a.tar", dict(sorted((files | labels).items())))
    assert "it has no label" in refusal(open_shards, str(tmp_path), "train")
    whole = open_shards(str(tmp_path), "all", labels=False)
    assert (whole.classes, whole.labels.tolist()) == (("image",), [0] * 20)
    assert sorted(map(bytes, read_all(whole))) == sorted(image(n) for n in range(20))
    numbered(tmp_path / "labeled" / "b.tar", range(20))
    one, two = (open_shards(f"{tmp_path}/labeled", "val", labels=each) for each in (True, False))
    assert one.fingerprint() == two.fingerprint()
