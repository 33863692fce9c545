"""Archives: what is in them comes out; what leads out, links, repeats or explodes does not."""

import gzip
import io
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest

from tests.shelf import refusal
from vitrail.data.datasets.public import unpack as module
from vitrail.data.datasets.public.unpack import unpack

Add = Callable[[tarfile.TarFile], None]


def member(name: str, content: bytes = b"x", **fields: object) -> Add:
    def add(archive: tarfile.TarFile) -> None:
        info = tarfile.TarInfo(name)
        info.size = len(content)
        for field, value in fields.items():
            setattr(info, field, value)
        archive.addfile(info, io.BytesIO(content))

    return add


def tar(path: Path, *members: Add, mode: Literal["w:gz", "w"] = "w:gz") -> Path:
    with tarfile.open(path, mode) as archive:
        for add in members:
            add(archive)
    return path


def zipped(path: Path, *members: tuple[str | zipfile.ZipInfo, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return path


def contents(folder: Path) -> dict[str, bytes]:
    files = [file for file in folder.rglob("*") if file.is_file()]
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in files}


@pytest.mark.parametrize("mode", ["w:gz", "w"])
def test_tar(tmp_path: Path, mode: Literal["w:gz", "w"]) -> None:
    folder = member("a", b"", type=tarfile.DIRTYPE)
    parts = (folder, member("a/b.jpg", b"123"), member("./c/d/e.txt", b""), member("f" * 150))
    unpack(tar(tmp_path / "a.tar.gz", *parts, mode=mode), tmp_path / "out")
    wanted = {"a/b.jpg": b"123", "c/d/e.txt": b"", "f" * 150: b"x"}
    assert contents(tmp_path / "out") == wanted


def test_zip_and_one_file_of_it(tmp_path: Path) -> None:
    archive = zipped(tmp_path / "a.zip", ("a/", b""), ("a/b.tar.gz", b"12"), ("c.txt", b"3"))
    unpack(archive, tmp_path / "out")
    assert contents(tmp_path / "out") == {"a/b.tar.gz": b"12", "c.txt": b"3"}
    unpack(archive, tmp_path / "one", only="a/b.tar.gz")
    assert contents(tmp_path / "one") == {"a/b.tar.gz": b"12"}
    told = f"{archive}: expected d.txt in it"
    assert told in refusal(unpack, archive, tmp_path / "two", only="d.txt")


OUTSIDE = ["../a", "a/../../b", "/etc/a", "a\\..\\b", "C:a", "."]


@pytest.mark.parametrize("name", OUTSIDE)
@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_names_that_lead_out(tmp_path: Path, name: str, kind: str) -> None:
    if kind == "tar":
        archive = tar(tmp_path / "a.tar.gz", member("good"), member(name))
    else:
        archive = zipped(tmp_path / "a.zip", ("good", b""), (name, b""))
    before = contents(tmp_path)
    text = refusal(unpack, archive, tmp_path / "deep" / "out")
    assert f"{archive}: refused: {name!r} would be written outside" in text
    assert contents(tmp_path).keys() - before.keys() == {"deep/out/good"}


@pytest.mark.parametrize(
    "type_", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE]
)
def test_links_and_devices_in_a_tar(tmp_path: Path, type_: bytes) -> None:
    link = member("link", b"", type=type_, linkname="/etc/passwd")
    archive = tar(tmp_path / "a.tar.gz", link, member("link/file"))
    told = "refused: 'link' is a link or a device"
    assert told in refusal(unpack, archive, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_links_in_a_zip(tmp_path: Path) -> None:
    info = zipfile.ZipInfo("link")
    info.create_system, info.external_attr = 3, 0o120777 << 16
    archive = zipped(tmp_path / "a.zip", (info, b"/etc/passwd"))
    assert "refused: 'link' is a link" in refusal(unpack, archive, tmp_path / "out")


def test_names_that_repeat(tmp_path: Path) -> None:
    archive = tar(tmp_path / "a.tar.gz", member("a", b"1"), member("./a", b"2"))
    assert f"{tmp_path / 'out' / 'a'} is in it twice" in refusal(unpack, archive, tmp_path / "out")
    assert contents(tmp_path / "out") == {"a": b"1"}
    archive = tar(tmp_path / "b.tar.gz", member("a", b"1"), member("a/b", b"2"))
    assert "b.tar.gz: " in refusal(unpack, archive, tmp_path / "other")


@pytest.fixture
def _little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EXPANSION_FREE", 50_000)


@pytest.mark.usefixtures("_little_room")
def test_bombs(tmp_path: Path) -> None:
    """A megabyte of zeros; a thousand empty files; a header of a megabyte; the same as a zip."""
    bombs = {
        "zeros.tar.gz": [member("a", bytes(1_000_000))],
        "files.tar.gz": [member(str(number), b"") for number in range(1000)],
        "header.tar.gz": [member("a", b"", pax_headers={"comment": "0" * 1_000_000})],
    }
    archives = [tar(tmp_path / name, *members) for name, members in bombs.items()]
    archives += [
        zipped(tmp_path / "zeros.zip", ("a", bytes(1_000_000))),
        zipped(tmp_path / "files.zip", *((str(number), b"") for number in range(1000))),
    ]
    for archive in archives:
        told = "refused: it holds far more than its own size"
        assert told in refusal(unpack, archive, tmp_path / "out" / archive.name)
        written = contents(tmp_path / "out" / archive.name)
        assert sum(map(len, written.values())) + 4096 * len(written) < 1_300_000
        assert len(written) < 300


def test_a_zip_that_lies_about_a_size(tmp_path: Path) -> None:
    archive = zipped(tmp_path / "a.zip", ("a", bytes(100_000)))
    content = archive.read_bytes()
    size = (100_000).to_bytes(4, "little")
    assert content.count(size) == 2
    archive.write_bytes(content.replace(size, (10).to_bytes(4, "little")))
    assert "a.zip: " in refusal(unpack, archive, tmp_path / "out")
    assert (tmp_path / "out" / "a").stat().st_size <= 10


def test_damaged_archives(tmp_path: Path) -> None:
    noise = bytes(range(256)) * 40
    whole = tar(tmp_path / "w.tar.gz", member("a", noise), member("b", noise)).read_bytes()
    packed = zipped(tmp_path / "w.zip", ("a", noise)).read_bytes()
    cases = {
        "cut.tar.gz": whole[: len(whole) // 2],
        "bits.tar.gz": whole[:100] + b"\xff\xff\xff" + whole[103:],
        "cut.tar": gzip.decompress(whole)[:6000],
        "text.tar.gz": b"<html>not found</html>" * 40,
        "cut.zip": packed[:-30],
        "bits.zip": packed[:60] + b"\xff\xff\xff" + packed[63:],
        "empty.tar.gz": b"",
    }
    for name, content in cases.items():
        archive = tmp_path / name
        archive.write_bytes(content)
        assert f"{archive}: is damaged (" in refusal(unpack, archive, tmp_path / f"out-{name}")


def test_what_can_not_be_written(tmp_path: Path) -> None:
    archive = tar(tmp_path / "a.tar.gz", member("a"))
    (tmp_path / "out").touch()
    assert "a.tar.gz: " in refusal(unpack, archive, tmp_path / "out")
    missing = tmp_path / "b.tar.gz"
    assert "No such file" in refusal(unpack, missing, tmp_path / "out2")
