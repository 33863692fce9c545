"""Lists of numbers in MATLAB files (version 5, format of 1996), as Flowers-102 has them.

The format is described in "MAT-File Format" by The MathWorks. Text, cells, structures, sparse and
complex arrays are refused. No size in a file is trusted before it is checked.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from vitrail.config import InputError

_LIMIT = 1_000_000  # bytes of a file, and of each array in it; those of Flowers-102 have 66,000
_HEADER = 128
_MATRIX, _COMPRESSED = 14, 15
_NUMBERS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8"}
_NUMBERS |= {12: "i8", 13: "u8"}
_CLASSES = range(6, 16)  # of arrays: double, single, and whole numbers of 8 to 64 bits


def read_mat(path: Path) -> dict[str, np.ndarray]:
    """Read all arrays by name, each as one list of whole numbers (int64)."""
    try:
        with path.open("rb") as file:
            content = file.read(_LIMIT + 1)
        if len(content) > _LIMIT:
            raise ValueError(f"over {_LIMIT:,} bytes")
        if len(content) < _HEADER or content[126:128] not in (b"IM", b"MI"):
            raise ValueError("not a MATLAB file of version 5")
        order = "<" if content[126:128] == b"IM" else ">"
        return dict(_read_array(body, order) for body in _matrices(content[_HEADER:], order))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except (ValueError, struct.error, zlib.error) as error:
        raise InputError(f"{path}: {error}; expected lists of numbers, download it again") from None


def _elements(data: bytes, order: str) -> Iterator[tuple[int, bytes]]:
    """Split data into elements of a type; each starts at a multiple of 8 bytes."""
    place = 0
    while place < len(data):
        kind, size = struct.unpack_from(f"{order}II", data, place)
        start = place + 8
        following = start + size + (0 if kind == _COMPRESSED else -size % 8)
        if kind >> 16:  # a short one has its size and at most 4 bytes of data in its tag
            kind, size, start, following = kind & 0xFFFF, kind >> 16, place + 4, place + 8
        if start + size > min(following, len(data)):
            raise ValueError("an element does not end where it should")
        yield kind, data[start : start + size]
        place = following


def _matrices(data: bytes, order: str) -> Iterator[bytes]:
    """Yield the arrays of a file, decompressed."""
    for kind, body in _elements(data, order):
        if kind == _COMPRESSED:
            unpacker = zlib.decompressobj()
            unpacked = unpacker.decompress(body, _LIMIT)
            if not unpacker.eof:
                raise ValueError(f"an array does not end, or has over {_LIMIT:,} bytes")
            kind, body = next(_elements(unpacked, order), (0, b""))
        if kind != _MATRIX:
            raise ValueError(f"found an element of type {kind} for an array")
        yield body


def _read_array(body: bytes, order: str) -> tuple[str, np.ndarray]:
    """Read an array's name and numbers: flags, dimensions, name, values."""
    parts = list(_elements(body, order))
    if len(parts) != 4 or len(parts[0][1]) != 8:
        raise ValueError("an array has other parts than numbers have")
    (_, flags), (_, dimensions), (_, name), (kind, values) = parts
    text = repr(name.decode("ascii", "replace"))
    if struct.unpack(f"{order}II", flags)[0] & 0xFF not in _CLASSES or kind not in _NUMBERS:
        raise ValueError(f"{text} has no numbers")
    numbers = np.frombuffer(values, f"{order}{_NUMBERS[kind]}")
    shape = np.frombuffer(dimensions, f"{order}i4").astype(object)  # Python's integers don't wrap
    if shape.prod() != len(numbers):
        raise ValueError(f"{text} has {len(numbers)} numbers, and says it has {shape.prod()}")
    with np.errstate(invalid="ignore"):  # what is beyond all integers is not whole below
        whole = numbers.astype(np.int64)
    if (whole != numbers).any():
        raise ValueError(f"{text} has numbers that are not whole")
    return name.decode("ascii", "replace"), whole
