"""Untrusted zip archives and the arrays in an `.npz`: all sizes are known before any is read.

Errors raised here do not name the file; the caller does.
"""

from __future__ import annotations

import io
import json
import math
import os
import struct
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from reprlib import repr as shorten
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrail.config import InputError

HEADER_LIMIT = 4_000_000
"""Most bytes of a list of tensors; python needs up to 60 times as many to hold it."""
TENSOR_LIMIT = 10_000
"""Most tensors of a file; published ones have up to about 2,000, and each is looked at often."""
EXPANSION = 8
"""Most times its own size that a compressed file may hold; trained weights reach 1.1."""
EXPANSION_FREE = 100_000_000
"""Bytes beyond that which any file may hold: a tiny model of zeros is not an attack."""
CHUNK = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Header:
    """What a file says that it holds, and how to read it."""

    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, torch.dtype]
    read: Callable[[], dict[str, Tensor]]
    metadata: dict[str, str] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()


class _Capped(io.FileIO):
    """A file that never reads more at once than the limit of a header."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or size < 0:
            size = max(os.fstat(self.fileno()).st_size - self.tell(), 0)
        if size > HEADER_LIMIT:
            raise InputError(f"refused: its list of members is over {HEADER_LIMIT:_} bytes")
        return super().read(size) or b""


@contextmanager
def open_zip(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open an archive and check that its members have room in the file, one name each.

    Checksums are not compared if the writer computed none, as torch may.
    """
    with _Capped(path) as file:
        try:
            archive = zipfile.ZipFile(file)
        except zipfile.BadZipFile:
            raise InputError("the file is not complete: the zip archive's end is missing") from None
        members, size = archive.infolist(), path.stat().st_size
        file.seek(size - 22 - len(archive.comment))
        sign, count, comment = struct.unpack("<4s6xH8xH", file.read(22))
        if sign == b"PK\x05\x06" and comment != len(archive.comment):  # which zipfile lets pass
            raise InputError("the file is not complete: the zip archive's end is missing")
        if sign != b"PK\x05\x06" or count not in (
            len(members),
            0xFFFF,
        ):  # then it is told elsewhere
            raise InputError(f"the archive is damaged: {len(members)} members are not all of it")
        names = {member.filename.casefold() for member in members}  # as torch compares them
        if len(names) < len(members):
            raise InputError("refused: two members of the archive have the same name")
        if sum(member.compress_size for member in members) > size:
            raise InputError(f"the archive's members do not fit into its {size:_} bytes")
        if not any(member.CRC for member in members):
            for member in members:
                del member.CRC
        with archive:
            yield archive


def check_count(tensors: int) -> None:
    """Refuse a file of more tensors than any model has."""
    if tensors > TENSOR_LIMIT:
        raise InputError(
            f"refused: says it holds {tensors:_} tensors; the limit is {TENSOR_LIMIT:_}"
        )


def read_npz(path: Path) -> Header:
    """Read the headers of an archive of arrays, of which none may be a pickle."""
    shapes: dict[str, tuple[int, ...]] = {}
    dtypes: dict[str, torch.dtype] = {}
    ignored = []
    total = 0
    with open_zip(path) as archive:
        check_count(len(archive.infolist()))
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            shape, _, kind, start = _read_npy(archive, member)
            total += member.file_size
            if start + math.prod(shape) * kind.itemsize != member.file_size:
                told = f"{shorten(name)} says {shape} of {kind}, but has {member.file_size:_} bytes"
                raise InputError(f"the array {told}")
            if (dtype := _torch_dtype(kind)) is None:
                ignored.append(name)
            else:
                shapes[name], dtypes[name] = shape, dtype
        size = path.stat().st_size
        if total > EXPANSION * size + EXPANSION_FREE:
            raise InputError(f"refused: says it holds {total / 1e6:_.0f} MB in {size / 1e6:.1f} MB")
        metadata = _read_comment(archive.comment)
    return Header(
        shapes=shapes,
        dtypes=dtypes,
        metadata=metadata,
        ignored=tuple(ignored),
        read=lambda: _read_arrays(path, dtypes),
    )


def _read_arrays(path: Path, dtypes: dict[str, torch.dtype]) -> dict[str, Tensor]:
    with open_zip(path) as archive:
        members = {member.filename.removesuffix(".npy"): member for member in archive.infolist()}
        return {name: _read_array(archive, members[name], dtypes[name]) for name in dtypes}


def _read_array(archive: zipfile.ZipFile, member: zipfile.ZipInfo, dtype: torch.dtype) -> Tensor:
    shape, fortran, kind, start = _read_npy(archive, member)
    data = np.empty(member.file_size - start, np.uint8)
    with archive.open(member) as file:
        file.read(start)
        place = 0
        while place < len(data):
            piece = file.read(min(CHUNK, len(data) - place))
            if not piece:
                raise InputError(f"the file is not complete: {shorten(member.filename)} ends early")
            data[place : place + len(piece)] = np.frombuffer(piece, np.uint8)
            place += len(piece)
        file.read(1)  # the end, where the checksum is compared
    if dtype == torch.bfloat16:
        tensor = torch.from_numpy(data).view(torch.bfloat16)
    else:
        array = data.view(kind)
        if not kind.isnative:
            array = array.byteswap(inplace=True).view(kind.newbyteorder())
        tensor = torch.from_numpy(array)
    if fortran:
        return tensor.reshape(shape[::-1]).permute(*reversed(range(len(shape))))
    return tensor.reshape(shape)


def _read_npy(
    archive: zipfile.ZipFile, member: zipfile.ZipInfo
) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Read an array's shape, order, type and the place where its numbers begin."""
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise InputError(f"{shorten(member.filename)} is compressed in a way that npz does not use")
    with archive.open(member) as file:
        head = io.BytesIO(file.read(1 << 16))
    readers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    version = np.lib.format.read_magic(head)
    if version not in readers:
        raise InputError(f"{shorten(member.filename)} has npy version {version}, not 1.0 or 2.0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that Python 2 wrote it
        shape, fortran, kind = readers[version](head)
    if kind.hasobject:
        raise InputError(
            f"refused: {shorten(member.filename)} wants to run code (pickled Python objects); "
            "ask its author for safetensors"
        )
    if any(side < 0 for side in shape):
        raise InputError(f"{shorten(member.filename)} says the shape {shape}")
    return tuple(map(int, shape)), fortran, kind, head.tell()


def _torch_dtype(kind: np.dtype[Any]) -> torch.dtype | None:
    """Give torch's dtype for numpy's, or None for what is not a number.

    numpy has no bfloat16: jax and big_vision write it as an opaque type of two bytes.
    """
    if kind.kind == "V" and kind.itemsize == 2 and kind.names is None and kind.subdtype is None:
        return torch.bfloat16
    if kind.kind not in "fiub":
        return None
    with suppress(TypeError):  # long doubles
        return torch.from_numpy(np.empty(0, kind.newbyteorder("="))).dtype
    return None


def _read_comment(comment: bytes) -> dict[str, str]:
    """Read the archive's comment where it is keys and values in JSON."""
    with suppress(ValueError, RecursionError):
        found = json.loads(comment)
        if isinstance(found, dict):
            return {k: v if isinstance(v, str) else json.dumps(v) for k, v in found.items()}
    return {}
