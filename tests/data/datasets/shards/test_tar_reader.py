"""The places of files in tar files, against Python's reader; and files that are cut or damaged."""

import bz2
import gzip
import io
import lzma
import tarfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.shelf import refusal
from vitrail.config import InputError
from vitrail.data.datasets.shards.tar_reader import Member, read_members

FORMATS: list[Any] = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]


def write_tar(path: Path, files: dict[str, bytes], format: Any = tarfile.PAX_FORMAT) -> bytes:
    with tarfile.open(path, "w", format=format) as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(content), 1.5  # which PAX has an extended header for
            tar.addfile(info, io.BytesIO(content))
    return path.read_bytes()


def members_of(path: Path) -> list[Member]:
    return list(read_members(path, lambda name: True))


NAME = st.text(st.characters(exclude_characters="\0/", exclude_categories=["Cs"]), min_size=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tar")


@settings(max_examples=60)
@given(
    st.dictionaries(
        st.lists(NAME, min_size=1, max_size=12).map("/".join),
        st.sampled_from([0, 1, 511, 512, 513, 5000]).map(
            lambda size: bytes(range(250)) * 20 + b"x" * size
        ),
        max_size=5,
    ),
    st.sampled_from(FORMATS[1:]),
)
def test_finds_what_python_finds(folder: Path, files: dict[str, bytes], format: Any) -> None:
    path = folder / "a.tar"
    write_tar(path, files, format)
    with tarfile.open(path) as tar:
        expected = [(info.name, info.offset_data, info.size) for info in tar]
    found = members_of(path)
    assert [(name, offset, size) for name, offset, size, _ in found] == expected
    assert [member.content for member in found] == list(files.values())
    data = path.read_bytes()
    assert [data[m.offset : m.offset + m.size] for m in found] == list(files.values())
    assert all(member.content is None for member in read_members(path, lambda name: False))


@pytest.mark.parametrize("format", FORMATS)
def test_names_and_folders(tmp_path: Path, format: Any) -> None:
    names = ["a.jpg", "é/" * 20 + "ü.jpg", "d" * 90 + "/" + "e" * 95 + ".jpg"]
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w", format=format) as tar:
        for name in names:
            folder = tarfile.TarInfo(name.rpartition("/")[0] or ".")
            folder.type = tarfile.DIRTYPE
            tar.addfile(folder)
            tar.addfile(tarfile.TarInfo(name))
    assert [member.name for member in members_of(path)] == names


@pytest.mark.parametrize("format", FORMATS[1:])
def test_files_of_more_than_8_gibibytes(tmp_path: Path, format: Any) -> None:
    info = tarfile.TarInfo("large.jpg")
    info.size = 9 << 30
    header = info.tobuf(format)
    small = tarfile.TarInfo("small.jpg").tobuf(format)
    with (tmp_path / "a.tar").open("wb") as file:
        file.write(header)
        file.seek(info.size, io.SEEK_CUR)  # a hole: the disk holds a few blocks
        file.write(small + bytes(1024))
    found = list(read_members(tmp_path / "a.tar", lambda name: True))
    assert found == [
        ("large.jpg", len(header), info.size, None),
        ("small.jpg", len(header) + info.size + len(small), 0, b""),
    ]


@pytest.mark.parametrize("format", FORMATS)
def test_every_cut_is_noticed(tmp_path: Path, format: Any) -> None:
    path = tmp_path / "a.tar"
    files = {"a.jpg": b"a" * 700, "b" * 90 + "/c.jpg": b"b" * 512}
    data = write_tar(path, files, format)
    end = -(-len(data.rstrip(b"\0")) // 512) * 512
    for length in [*range(0, end + 512, 64), end + 511]:
        path.write_bytes(data[:length])
        text = refusal(members_of, path)
        assert text.startswith(f"{path} is ")
        assert text.endswith("download or write it again")
        if length:
            assert f"cut off: it ends at byte {length:,}, in or before " in text
    path.write_bytes(data[: end + 512])  # one block of the end mark is enough
    assert [member.content for member in members_of(path)] == list(files.values())


@settings(max_examples=150)
@given(st.data(), st.sampled_from(FORMATS))
def test_damaged_bytes(folder: Path, data: st.DataObject, format: Any) -> None:
    """Whatever is overwritten, it ends, with members or with one line."""
    path = folder / "b.tar"
    whole = bytearray(write_tar(path, {"a.jpg": b"1" * 20, "b/" * 70 + "c.cls": b"2"}, format))
    expected = members_of(path)
    where = data.draw(st.integers(0, 4000))
    piece = data.draw(st.sampled_from([b"\xff", b"-7", b"9" * 30, b"\x80", b"x", bytes(12)]))
    changed = whole[:where] + piece + whole[where + len(piece) :]
    path.write_bytes(changed)
    found = expected
    with suppress(InputError):
        found = members_of(path)
    if format == tarfile.USTAR_FORMAT:  # all of whose headers have a checksum
        assert [member[:3] for member in found] == [member[:3] for member in expected]


def rewrite(path: Path, change: Any) -> str:
    path.write_bytes(change(path.read_bytes()))
    return refusal(members_of, path)


def test_what_is_no_tar(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    data = write_tar(path, {"a.jpg": b"1"})
    for compress, name in ((gzip.compress, "gzip"), (bz2.compress, "bzip2"), (lzma.compress, "xz")):
        path.write_bytes(data)
        text = rewrite(path, compress)
        assert text.startswith(f"{path} is compressed ({name})")
        assert text.endswith("unpack it to a .tar")
    path.write_bytes(data)
    text = rewrite(path, lambda data: data + data)
    assert f"{path} continues after its end mark at byte " in text
    assert "is empty (0 bytes)" in rewrite(path, lambda data: b"")
    assert "is damaged or not a tar: no header at 0" in rewrite(path, lambda data: b"x" * 5000)


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.GNUTYPE_SPARSE])
def test_links_are_refused(tmp_path: Path, kind: bytes) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        info = tarfile.TarInfo("a.jpg")
        info.type, info.linkname = kind, "b.jpg"
        tar.addfile(info)
    text = refusal(members_of, tmp_path / "a.tar")
    assert "a.jpg is a link or has holes; write the tar with --dereference" in text


def test_too_large_to_be_a_header(tmp_path: Path) -> None:
    info = tarfile.TarInfo("a")
    info.type, info.size = tarfile.XHDTYPE, 1 << 30
    (tmp_path / "a.tar").write_bytes(info.tobuf(tarfile.USTAR_FORMAT) + bytes(4096))
    text = refusal(members_of, tmp_path / "a.tar")
    assert "damaged or not a tar: an extended header of 1,073,741,824 bytes at 512" in text
