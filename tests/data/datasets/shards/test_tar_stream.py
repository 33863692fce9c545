"""Streamed shards: the same samples from a disk, a server and a bucket, whatever goes wrong."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.data.datasets.shards.tars import image, numbered, open_indexed, tar
from tests.shelf import Shelf, refusal, serving
from vitrail import download
from vitrail.data.dataset import ImageStream
from vitrail.data.datasets.open import open_data, open_dataset
from vitrail.data.datasets.shards import shard_bytes
from vitrail.data.datasets.shards.open_shards import open_shards
from vitrail.data.datasets.shards.tar_stream import TarStream


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shelf]:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(shard_bytes, "_PIECE", 700)  # so that a shard takes many reads
    with serving() as shelf:
        shelf.files = {}
        yield shelf


def put(shelf: Shelf, folder: Path, shards: int = 3, classes: str = "ant\nbee\nox") -> str:
    """Write shards of 5 images, and put them on the server; give their names."""
    for shard in range(shards):
        path = numbered(folder / f"train-{shard}.tar", range(shard * 5, shard * 5 + 5))
        shelf.files[f"/set/train-{shard}.tar"] = path.read_bytes()
    shelf.files["/set/classes.txt"] = classes.encode()
    (folder / "classes.txt").write_text(classes)
    return f"train-{{0..{shards - 1}}}.tar"


def streamed(place: str, split: str = "train", **options: bool) -> TarStream:
    stream = open_shards(place, split, **options)
    assert isinstance(stream, TarStream)
    return stream


def samples(stream: ImageStream) -> list[tuple[object, object, str]]:
    """Read all shards, and check that each goes on from any offset that it gave."""
    found = []
    for shard in range(stream.shards):
        rows = [(after, str(item.content), item) for after, item in stream.read_shard(shard)]
        for number, (after, _, _) in enumerate(rows, 1):
            rest = [(end, str(item.content)) for end, item in stream.read_shard(shard, after)]
            assert rest == [(end, content) for end, content, _ in rows[number:]]
        found += [(item.content, item.label, item.where) for *_, item in rows]
    return found


def expected(folder: Path, names: str) -> list[tuple[object, object, str]]:
    dataset = open_indexed(f"{folder}/{names}", "all")
    return [
        (dataset.read(n), int(dataset.labels[n]), dataset.where(n)) for n in range(len(dataset))
    ]


def test_a_stream_has_the_images_of_the_index(shelf: Shelf, tmp_path: Path) -> None:
    names = put(shelf, tmp_path / "d")
    wanted = expected(tmp_path / "d", names)
    local = streamed(f"{tmp_path}/d/{names},stream=true")
    assert samples(local) == wanted
    assert (local.classes, local.shards, local.length) == (("ant", "bee", "ox"), 3, None)
    remote = streamed(f"{shelf.address}/set/{names}")
    assert samples(remote) == wanted
    assert not list((tmp_path / "cache").rglob("*.tar"))
    assert [path for path, _ in shelf.asked[:2]] == ["/set/classes.txt", "/set/dataset_info.json"]
    options = streamed(f"{shelf.address}/set/{names},classes=5,length=99,buffer=7")
    assert (options.classes, options.length, options.buffer) == (tuple("01234"), 99, 7)


def test_a_stream_of_a_bucket(tmp_path: Path, shelf: Shelf) -> None:
    """What fsspec can read, by its file system in memory."""
    fsspec = pytest.importorskip("fsspec")
    names = put(shelf, tmp_path / "d")
    memory = fsspec.filesystem("memory")
    for path in (tmp_path / "d").iterdir():
        memory.pipe(f"/bucket/set/{path.name}", path.read_bytes())
    try:
        stream = streamed(f"memory://bucket/set/{names}")
        assert samples(stream) == expected(tmp_path / "d", names)
        whole = open_indexed(f"memory://bucket/set/{names}", "all")
        assert [whole.read(n) for n in range(15)] == [image(n) for n in range(15)]
        memory.rm("/bucket/set/train-1.tar")
        assert "cannot read memory://bucket/set/train-1.tar" in refusal(list, stream.read_shard(1))
    finally:
        memory.rm("/bucket", recursive=True)


def test_cut_connections_are_resumed(shelf: Shelf, tmp_path: Path) -> None:
    names = put(shelf, tmp_path / "d", 1)
    stream = streamed(f"{shelf.address}/set/{names}")
    shelf.cuts = [100, 3000, 1, 512]
    shelf.errors = [503]
    shelf.asked.clear()
    found = [item.content for _, item in stream.read_shard(0)]
    assert found == [image(n) for n in range(5)]
    assert [span for _, span in shelf.asked] == [
        *(None, None, "bytes=100-", "bytes=3100-", "bytes=3101-", "bytes=3613-")
    ]
    shelf.ranges = False  # a server that always begins at the start
    shelf.cuts = [2000]
    assert [item.content for _, item in stream.read_shard(0)] == found


def test_a_server_that_hangs_or_changes_is_given_up(
    shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = put(shelf, tmp_path / "d", 1)
    stream = streamed(f"{shelf.address}/set/{names}")
    shelf.cuts = [0] * download.PATIENT
    said = refusal(list, stream.read_shard(0))
    assert said.endswith(f"{download.PATIENT} times in a row")
    shelf.cuts = []
    monkeypatch.setattr(download, "TIMEOUT", 0.05)
    monkeypatch.setattr(download, "PATIENT", 2)
    shelf.pause = 0.5
    assert "timed out" in refusal(list, stream.read_shard(0))
    shelf.pause, shelf.cuts = 0.0, [8000]
    items = stream.read_shard(0)
    next(items)
    shelf.etag = '"2"'
    assert "changed on the server while it was read" in refusal(list, items)


def test_a_missing_shard_is_one_line(shelf: Shelf, tmp_path: Path) -> None:
    names = put(shelf, tmp_path / "d")
    stream = streamed(f"{shelf.address}/set/{names}")
    local = streamed(f"{tmp_path}/d/{names},stream=true")
    del shelf.files["/set/train-2.tar"]
    (tmp_path / "d" / "train-2.tar").unlink()
    text = refusal(list, stream.read_shard(2))
    assert text == f"{shelf.address}/set/train-2.tar: the server answers 404 Not Found"
    assert "train-2.tar: No such file or directory" in refusal(list, local.read_shard(2))
    shelf.files = {"/set/classes.txt": b"a\nb\nc"}
    assert "404" in refusal(open_shards, f"{shelf.address}/set/{names}", "train")


@pytest.mark.parametrize("damage", ["cut", "header", "empty"])
def test_what_is_lost_of_a_damaged_shard_is_counted(
    shelf: Shelf, tmp_path: Path, damage: str
) -> None:
    names = put(shelf, tmp_path / "d", 2)
    stream = streamed(f"{shelf.address}/set/{names}")
    whole = bytearray(shelf.files["/set/train-1.tar"])
    if damage == "cut":
        whole = whole[:5000]
    elif damage == "header":
        whole[4096:4106] = b"damaged..."
    else:
        whole = bytearray(1024)  # the end mark alone
    shelf.files["/set/train-1.tar"] = bytes(whole)
    *good, (_, lost) = stream.read_shard(1)
    assert [item.content for _, item in good] == [image(n + 5) for n in range(len(good))]
    assert len(good) == {"cut": 2, "header": 1, "empty": 0}[damage]
    assert isinstance(lost.content, OSError)
    assert lost.where.startswith("train-1.tar, from byte ")
    said = {"cut": "cut off: it ends at byte 5,000", "header": "is damaged", "empty": "no images"}
    assert said[damage] in str(lost.content.strerror)
    assert len(samples(stream)) == 5 + len(good) + 1


def test_labels_of_a_stream(tmp_path: Path) -> None:
    tar(tmp_path / "a.tar", {"0.jpg": b"a", "0.cls": "[0, 2]", "1.jpg": b"b", "1.cls": "[]"})
    place = f"{tmp_path}/a.tar,stream=true"
    assert "whose classes no classes.txt names; write ,classes=NUMBER" in refusal(
        open_shards, place, "train"
    )
    unlabeled = streamed(place, labels=False)
    assert unlabeled.classes == ("image",)
    assert [label for _, label, _ in samples(unlabeled)] == [0, 0]
    stream = streamed(f"{place},classes=3")
    assert stream.multilabel
    assert np.array([item.label for _, item in stream.read_shard(0)]).tolist() == [
        [1, 0, 1],
        [0, 0, 0],
    ]
    few = streamed(f"{place},classes=2")
    assert "a.tar:0.jpg: expected a class from 0 to 1, got 2" in refusal(list, few.read_shard(0))


def test_which_split_is_streamed(shelf: Shelf, tmp_path: Path) -> None:
    """Of a URL, what is trained on; what is evaluated on must be reached by number."""
    put(shelf, tmp_path / "d", 1)
    shelf.files["/set/val-0.tar"] = shelf.files["/set/train-0.tar"]
    both = f"{shelf.address}/set/{{train,val}}-0.tar"
    assert isinstance(open_shards(both, "train"), TarStream)
    assert len(open_indexed(both, "val")) == 5
    assert len(open_indexed(f"{both},stream=false", "train")) == 5
    alone = f"{shelf.address}/set/train-0.tar"
    assert "of a stream none is held out; write ,stream=false" in refusal(open_shards, alone, "val")
    assert len(open_indexed(alone, "all")) == 5
    assert "such as this one with ,stream=false" in refusal(open_dataset, f"wds:{alone}")
    stream = open_data(f"wds:{alone}")
    assert isinstance(stream, TarStream)
    shelf.files["/set/train-0.tar?X-Amz-Signature=1"] = shelf.files["/set/train-0.tar"]
    assert stream.fingerprint() == streamed(f"{alone}?X-Amz-Signature=1").fingerprint()
    for wrong, said in {"buffer=0": "expected at least 1", "stream=perhaps": "stream"}.items():
        assert said in refusal(open_shards, f"{alone},{wrong}", "train")


def test_a_compressed_shard_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(b"\x1f\x8b" + bytes(600))
    text = refusal(open_shards, f"{tmp_path}/a.tar,stream=true,classes=2", "train")
    assert "is compressed (gzip)" in text
