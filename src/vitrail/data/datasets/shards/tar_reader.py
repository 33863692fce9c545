"""Locate the files in a tar file by its headers, without reading those that are not wanted.

The standard library's reader stops silently at a damaged header and takes three times as long. Long
names are read as GNU tar and POSIX (PAX) write them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, NoReturn, Protocol

from vitrail.config import InputError
from vitrail.text import printable, show

_BLOCK = 512
_WINDOW = 4096  # bytes read at once: a header, and maybe small files and headers after it
_LARGEST = 1 << 20  # bytes of extended headers and wanted files
_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
_FILE, _EMPTY, _EXTENDED = b"07\0", b"3456", b"xgLK"  # types of entries
_AGAIN = "download or write it again"


class DamagedError(InputError):
    """A tar file is cut off, damaged or not a tar at all."""


class Bytes(Protocol):
    """What a tar file is read from."""

    size: int | None
    """How many bytes there are, if that is known."""

    def read(self, size: int, at: int) -> bytes:
        """Read so many bytes from a place on; fewer only at the end."""
        ...


class FileBytes:
    """An open file, read without a file position, so that threads and processes can share it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.size: int | None = os.fstat(descriptor).st_size

    def read(self, size: int, at: int) -> bytes:
        """Read so many bytes from a place on; fewer only at the end."""
        return os.pread(self._descriptor, size, at)


class Member(NamedTuple):
    """A file in a tar file."""

    name: str
    offset: int
    size: int
    content: bytes | None
    """Its content, if wanted and not too large."""

    @property
    def end(self) -> int:
        """Where the next header begins."""
        return self.offset + _padded(self.size)


def read_members(path: Path, wanted: Callable[[str], bool]) -> Iterator[Member]:
    """List the files in a tar file, with the content of those that are wanted, up to a mebibyte."""
    with path.open("rb", buffering=0) as file:
        yield from TarReader(show(path), FileBytes(file.fileno())).members(wanted)


class TarReader:
    """Reads the headers of a tar file, and what is wanted of the rest."""

    def __init__(self, name: str, source: Bytes) -> None:
        self._name, self._source = name, source
        self._window, self._start = b"", 0

    def members(
        self, wanted: Callable[[str], bool], *, start: int = 0, largest: int = _LARGEST
    ) -> Iterator[Member]:
        """List the files from a header on, with the content of those that are wanted."""
        if not start:
            self._check_start()
        at, extended = start, dict[bytes, bytes]()
        while any(header := self._read(at, _BLOCK, "a header")):
            kind, name, size = self._parse(header, at)
            at += _BLOCK
            if kind in _EXTENDED:
                extended |= self._extend(kind, self._read(at, size, "an extended header"), at)
            else:
                name = os.fsdecode(extended.pop(b"path", name))
                size = int(extended.pop(b"size", size))
                if kind in _EMPTY:
                    size = 0
                elif kind not in _FILE or extended.keys() & {b"GNU.sparse.major"}:
                    raise InputError(
                        f"{self._name}: {printable(name)} is a link or has holes; "
                        "write the tar with --dereference --hard-dereference"
                    )
                elif at + size > (self._source.size or at + size):
                    self._refuse_cut(printable(name), at)
                elif not name.endswith("/"):  # which marks a folder in old files
                    small = size <= largest and wanted(name)
                    content = self._read(at, size, printable(name), largest) if small else None
                    yield Member(name, at, size, content)
                extended = {}
            at += _padded(size)
        if any(self._source.read(_LARGEST, at)):
            raise DamagedError(
                f"{self._name} continues after its end mark at byte {at:,}: "
                "several tars in one file? write them as files of their own"
            )

    def _check_start(self) -> None:
        start = self._source.read(6, 0)
        if not start:
            raise DamagedError(f"{self._name} is empty (0 bytes); {_AGAIN}")
        for magic, compression in _COMPRESSED.items():
            if start.startswith(magic):
                raise InputError(
                    f"{self._name} is compressed ({compression}), so that images "
                    "can't be read by index; unpack it to a .tar"
                )

    def _read(self, at: int, size: int, what: str, largest: int = _LARGEST) -> bytes:
        """Read a few bytes, usually from the buffer."""
        if not self._start <= at <= at + size <= self._start + len(self._window):
            if size > largest:
                self._refuse_damaged(f"{what} of {size:,} bytes", at)
            self._window, self._start = self._source.read(max(size, _WINDOW), at), at
            if len(self._window) < size:
                self._refuse_cut(what, at)
        return self._window[at - self._start : at - self._start + size]

    def _parse(self, header: bytes, at: int) -> tuple[bytes, bytes, int]:
        """Read an entry's type, name and size."""
        try:
            # The sum of all bytes, its own field counted as spaces.
            if _octal(header[148:156]) != sum(header) - sum(header[148:156]) + 8 * ord(" "):
                raise ValueError
            size = header[124:136]
            number = int.from_bytes(size[1:], "big") if size[0] == 0x80 else _octal(size)
        except ValueError:
            self._refuse_damaged("no header", at)
        name = header[:100].split(b"\0", 1)[0]
        if header[257:263] == b"ustar\0" and header[345]:
            name = header[345:500].split(b"\0", 1)[0] + b"/" + name
        return header[156:157], name, number

    def _extend(self, kind: bytes, content: bytes, at: int) -> dict[bytes, bytes]:
        """Read what an extended header says about the entry after it."""
        if kind == b"L":
            return {b"path": content.split(b"\0", 1)[0]}
        records: dict[bytes, bytes] = {}
        while kind == b"x" and content:  # "LENGTH KEY=VALUE\n", the length being that of all
            length, _, _ = content.partition(b" ")
            if not _is_number(length) or not len(length) < int(length) <= len(content):
                self._refuse_damaged("no extended header", at)
            key, _, value = content[len(length) + 1 : int(length) - 1].partition(b"=")
            records[key], content = value, content[int(length) :]
        if not _is_number(records.get(b"size", b"0")):
            self._refuse_damaged("no extended header", at)
        return records

    def _refuse_cut(self, what: str, at: int) -> NoReturn:
        end = self._source.size or self._start + len(self._window)
        where = f"it ends at byte {end:,}, in or before {what} at byte {at:,}"
        raise DamagedError(f"{self._name} is cut off: {where}; {_AGAIN}")

    def _refuse_damaged(self, what: str, at: int) -> NoReturn:
        text = f"{self._name} is damaged or not a tar: {what} at {at:,}"
        raise DamagedError(f"{text}; {_AGAIN}")


def _padded(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK


def _octal(field: bytes) -> int:
    text = field.split(b"\0", 1)[0].strip() or b"0"
    if not _is_number(text):
        raise ValueError
    return int(text, 8)


def _is_number(text: bytes) -> bool:
    return text.isdigit() and len(text) < 20  # not -1, and not so long that int() refuses it
