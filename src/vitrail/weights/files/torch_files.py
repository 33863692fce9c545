"""torch's own files (`.pth`, `.pt`, `.bin`): checked first, then loaded with `weights_only=True`.

There is no less careful second try. The pickle's declarations are compared with the file before,
so that torch allocates no more than the file holds.
"""

from __future__ import annotations

import io
import struct
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from reprlib import repr as shorten
from typing import Any

import torch
from torch import Tensor

from vitrail.config import InputError
from vitrail.weights.files.archives import CHUNK, HEADER_LIMIT, Header, open_zip
from vitrail.weights.files.pickles import PickleReader, TensorRecord

LEGACY = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
"""How files begin that torch wrote before version 1.6: its magic number, pickled."""
WRAPPERS = ("state_dict", "model", "teacher", "module")
"""Where training programs put the weights in what they save, the likeliest first."""


def unwrap(saved: Any, kind: type) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Find the dictionary of tensors in what was saved; also name what was ignored."""
    ignored: list[str] = []
    for _ in WRAPPERS:
        inner = [key for key in WRAPPERS if isinstance(saved, Mapping) and _holds(saved, key)]
        if not inner:
            break
        ignored += [str(key) for key in saved if key != inner[0]]
        saved = saved[inner[0]]
    if not isinstance(saved, Mapping):
        raise InputError(f"holds a {type(saved).__name__}, not a dictionary of tensors by name")
    tensors = {k: v for k, v in saved.items() if isinstance(k, str) and isinstance(v, kind)}
    return tensors, (*ignored, *(str(key) for key in saved if key not in tensors))


def _holds(saved: Mapping[Any, Any], key: str) -> bool:
    return isinstance(saved.get(key), Mapping)


def read_torch_zip(path: Path, archive: zipfile.ZipFile) -> Header:
    """Read what a file of torch's present format says that it holds."""
    members = {member.filename: member for member in archive.infolist()}
    pickles = [name for name in members if name.rpartition("/")[2] == "data.pkl"]
    room = pickles[0].removesuffix("data.pkl")
    if len(pickles) > 1 or not all(name.startswith(room) for name in members):
        raise InputError("refused: torch writes one pickle and one folder, here are more")
    if any(m.compress_type or m.compress_size != m.file_size for m in members.values()):
        raise InputError("refused: its members are compressed, which torch never does")
    if members[pickles[0]].file_size > HEADER_LIMIT:
        raise InputError(f"refused: its pickle is over {HEADER_LIMIT:_} bytes")
    follower = PickleReader()
    saved = follower.follow(io.BytesIO(archive.read(pickles[0])))
    for key, storage in follower.storages.items():
        member = members.get(f"{room}data/{key}")
        there = member.file_size if member else 0
        if there != storage.nbytes:
            raise InputError(
                f"the pickle says {storage.nbytes:_} bytes of {shorten(key)}, not {there:_}"
            )
    return _header(saved, path, zipped=True)


def read_legacy(path: Path) -> Header:
    """Read what a file of torch's old format says that it holds."""
    with path.open("rb") as file:
        stream = io.BytesIO(file.read(HEADER_LIMIT))
        follower = PickleReader()
        _magic, _version, _system, saved, keys = (follower.follow(stream) for _ in range(5))
        if not all(isinstance(key, str) for key in keys) or {*keys} != {*follower.storages}:
            raise InputError("the storages that its tensors need are not those that it holds")
        place = stream.tell()
        for key in keys:
            storage = follower.storages[key]
            file.seek(place)
            count = file.read(8)
            place += 8 + storage.nbytes
            if len(count) < 8 or place > path.stat().st_size:
                raise InputError(f"the file is not complete: {shorten(key)} ends beyond its end")
            if struct.unpack("<q", count)[0] != storage.numel:
                raise InputError(f"the storage {shorten(key)} says two sizes of itself")
    return _header(saved, path, zipped=False)


def _header(saved: Any, path: Path, *, zipped: bool) -> Header:
    tensors, ignored = unwrap(saved, TensorRecord)
    return Header(
        shapes={name: tensor.shape for name, tensor in tensors.items()},
        dtypes={name: tensor.dtype for name, tensor in tensors.items()},
        ignored=ignored,
        read=lambda: _load(path, zipped),
    )


def _load(path: Path, zipped: bool) -> dict[str, Tensor]:
    if zipped:
        _check_sums(path)
    # torch decides by the name's end whether it reads safetensors, and maps only what it opens.
    mapped = zipped and path.suffix != ".safetensors"
    with path.open("rb") as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a pickle's protocol, which has been followed
        place: Any = path if mapped else file
        saved = torch.load(place, map_location="cpu", weights_only=True, mmap=mapped)
    tensors, _ = unwrap(saved, Tensor)
    return {name: tensor.detach() for name, tensor in tensors.items()}


def _check_sums(path: Path) -> None:
    """Compare the members' checksums, which torch does not."""
    with open_zip(path) as archive:
        for member in archive.infolist():
            with archive.open(member) as file:
                while file.read(CHUNK):
                    pass
