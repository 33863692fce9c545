"""Locate the files in a tar file by its headers, without reading them.

The standard library's reader stops silently at a damaged header and takes three times as long. Long
names are read as GNU tar and POSIX (PAX) write them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, NoReturn

from vitrail.config import InputError
from vitrail.text import printable, show

_BLOCK = 512
_WINDOW = 4096  # bytes read at once: a header, and maybe small files and headers after it
_LARGEST = 1 << 20  # bytes of extended headers and wanted files
_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
_FILE, _EMPTY, _EXTENDED = b"07\0", b"3456", b"xgLK"  # types of entries
_AGAIN = "download or write it again"


class Member(NamedTuple):
    """A file in a tar file."""

    name: str
    offset: int
    size: int
    content: bytes | None
    """Its content, if wanted and at most one mebibyte."""


def read_members(path: Path, wanted: Callable[[str], bool]) -> Iterator[Member]:
    """List the files in a tar file, with the content of those whose names are wanted."""
    with path.open("rb", buffering=0) as file:
        yield from _Reader(path, file.fileno()).members(wanted)


class _Reader:
    def __init__(self, path: Path, descriptor: int) -> None:
        self._path, self._descriptor = path, descriptor
        self._end = os.fstat(descriptor).st_size
        self._window, self._start = b"", 0

    def members(self, wanted: Callable[[str], bool]) -> Iterator[Member]:
        self._check_start()
        at, extended = 0, dict[bytes, bytes]()
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
                        f"{show(self._path)}: {printable(name)} is a link or has holes; "
                        "write the tar with --dereference --hard-dereference"
                    )
                elif at + size > self._end:
                    self._refuse_cut(printable(name), at)
                elif not name.endswith("/"):  # which marks a folder in old files
                    small = size <= _LARGEST and wanted(name)
                    content = self._read(at, size, printable(name)) if small else None
                    yield Member(name, at, size, content)
                extended = {}
            at += -(-size // _BLOCK) * _BLOCK
        if any(os.pread(self._descriptor, _LARGEST, at)):
            raise InputError(
                f"{show(self._path)} continues after its end mark at byte {at:,}: "
                "several tars in one file? write them as files of their own"
            )

    def _check_start(self) -> None:
        start = os.pread(self._descriptor, 6, 0)
        if not start:
            raise InputError(f"{show(self._path)} is empty (0 bytes); {_AGAIN}")
        for magic, compression in _COMPRESSED.items():
            if start.startswith(magic):
                raise InputError(
                    f"{show(self._path)} is compressed ({compression}), so that images "
                    "can't be read by index; unpack it to a .tar"
                )

    def _read(self, at: int, size: int, what: str) -> bytes:
        """Read a few bytes, usually from the buffer."""
        if not self._start <= at <= at + size <= self._start + len(self._window):
            if size > _LARGEST:
                self._refuse_damaged(f"{what} of {size:,} bytes", at)
            self._window, self._start = os.pread(self._descriptor, max(size, _WINDOW), at), at
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
        where = f"it ends at byte {self._end:,}, in or before {what} at byte {at:,}"
        raise InputError(f"{show(self._path)} is cut off: {where}; {_AGAIN}")

    def _refuse_damaged(self, what: str, at: int) -> NoReturn:
        raise InputError(f"{show(self._path)} is damaged or not a tar: {what} at {at:,}; {_AGAIN}")


def _octal(field: bytes) -> int:
    text = field.split(b"\0", 1)[0].strip() or b"0"
    if not _is_number(text):
        raise ValueError
    return int(text, 8)


def _is_number(text: bytes) -> bool:
    return text.isdigit() and len(text) < 20  # not -1, and not so long that int() refuses it
