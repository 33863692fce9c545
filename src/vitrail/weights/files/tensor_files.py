"""Untrusted weights files: nothing in them is executed or allocated on their word alone.

The format is recognized from the content, not the name. Any decoder's error becomes one line.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as shorten
from typing import Any, Literal, NoReturn

import torch
from safetensors.torch import load_file
from torch import Tensor

from vitrail.config import InputError, suggest
from vitrail.files import utf8_path
from vitrail.weights.files.archives import (
    HEADER_LIMIT,
    Header,
    check_count,
    open_zip,
    read_npz,
)
from vitrail.weights.files.pickles import first_name
from vitrail.weights.files.torch_files import LEGACY, read_legacy, read_torch_zip

Kind = Literal["safetensors", "npz", "torch"]

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_KINDS = "safetensors, npz or torch weights"
_OTHERS = {
    b"version https://git-lfs": "only points to the weights (git-LFS): run 'git lfs pull', or "
    "download the file itself",
    b"\x93NUMPY": "is one array (npy) without a name; weights are npz",
    b"\x1f\x8b": "is compressed (gzip): unpack it first",
    b"\x89HDF": "is HDF5, as Keras writes; weights are read from npz or safetensors",
    b"GGUF": "is GGUF, which holds language models",
    b"PK\x05\x06": "is an empty zip archive",
}
_SCRIPT = "refused: TorchScript is a program, not weights; save its state_dict() as safetensors"
_EXPORT = "refused: a .pt2 archive is a program, not weights; save the state_dict() as safetensors"


@dataclass(frozen=True, kw_only=True)
class WeightsFile:
    """A file of tensors by name, of which only the header has been read."""

    path: Path
    kind: Kind
    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, torch.dtype]
    metadata: dict[str, str]
    ignored: tuple[str, ...]
    """What the file holds besides tensors."""
    load: Callable[[], dict[str, Tensor]]
    """Read without the checks of `read`."""
    parts: tuple[Path, ...] = ()
    """The files that it consists of, if several."""

    def read(self) -> dict[str, Tensor]:
        """Read all tensors, mapped into memory where the format allows that.

        They are what the header said, or nothing is given back.
        """
        with _explain(self.path, self.kind):
            tensors = self.load()
            if {name: tuple(tensor.shape) for name, tensor in tensors.items()} != self.shapes:
                raise InputError("its tensors do not have the shapes that its header says")
            if {name: tensor.dtype for name, tensor in tensors.items()} != self.dtypes:
                raise InputError("its tensors do not have the types that its header says")
            return tensors


def weights_in_memory(tensors: Mapping[str, Tensor], name: str) -> WeightsFile:
    """Take a state dict for a file of that name."""
    return WeightsFile(
        path=Path(name),
        kind="torch",
        shapes={key: tuple(tensor.shape) for key, tensor in tensors.items()},
        dtypes={key: tensor.dtype for key, tensor in tensors.items()},
        metadata={},
        ignored=(),
        load=lambda: dict(tensors),
    )


def open_weights(path: Path) -> WeightsFile:
    """Recognize a weights file and read its header."""
    _check_place(path)
    with _explain(path):
        kind = _recognize(path)
    with _explain(path, kind):
        header = _HEADERS[kind](path)
        check_count(len(header.shapes))
        if not header.shapes:
            others = ", ".join(shorten(name) for name in header.ignored[:5])
            raise InputError(f"holds no tensors{f', only {others}' if others else ''}")
        for name, shape in header.shapes.items():  # one side may be 0, and the others absurd
            if math.prod(max(side, 1) for side in shape) >= 2**62:
                raise InputError(f"{shorten(name)} has an impossible shape, {str(shape)[:80]}")
    return WeightsFile(
        path=path,
        kind=kind,
        shapes=header.shapes,
        dtypes=header.dtypes,
        metadata=header.metadata,
        ignored=header.ignored,
        load=header.read,
    )


@contextmanager
def _explain(path: Path, kind: str = "") -> Iterator[None]:
    """Make one line of whatever goes wrong, with the file's name and format."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{path}: {kind}{': ' if kind else ''}{error}") from None
    except Exception as error:  # decoders raise a dozen types, some of them only when attacked
        if isinstance(error, OSError) and error.filename:
            raise InputError(f"{path}: cannot be read: {error.strerror}") from None
        cause = (str(error).splitlines() or [""])[0][:120]
        raise InputError(
            f"{path}: damaged {kind or 'weights'} file ({type(error).__name__}: {cause})"
        ) from None


def _check_place(path: Path) -> None:
    try:
        if path.is_dir():
            raise InputError(f"{path}: is a folder; {_explain_folder(path)}")
        if not path.exists():
            near = (other.name for other in path.parent.glob("*") if not other.is_dir())
            raise InputError(f"{path}: no such file{suggest(path.name, near)}")
        if not path.is_file():
            raise InputError(f"{path}: is not a regular file")
        if not path.stat().st_size:
            raise InputError(f"{path}: is empty (0 bytes): the download went wrong")
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        cause = getattr(error, "strerror", None) or error  # ValueError is of a NUL in the name
        raise InputError(f"{shorten(str(path))}: cannot be read: {cause}") from None


def _explain_folder(path: Path) -> str:
    if (path / ".metadata").exists():
        return "refused: a distributed checkpoint holds code; save the weights as safetensors"
    if (path / "model.json").exists():
        return "our own model folders are loaded as a whole"
    return "expected a weights file"


def _recognize(path: Path) -> Kind:
    with path.open("rb") as file:
        head = file.read(1 << 16)
    if head.startswith(b"PK\x03\x04"):
        return _recognize_zip(path)
    if head.startswith(LEGACY):
        return "torch"
    if head[6:9] == b"\0\0{":  # first, because a header's length may look like anything
        return "safetensors"
    if re.match(rb"(\xef\xbb\xbf)?\s*<(!|\?xml|html|head|body)", head, re.IGNORECASE):
        raise InputError(f"is a web page, not {_KINDS}: the download went wrong")
    for start, what in _OTHERS.items():
        if head.startswith(start):
            raise InputError(what)
    if head[:1] == b"\x80" and 2 <= (head[1:2] or b"\0")[0] <= 5:
        name = first_name(head)
        raise InputError(
            f"refused: a bare pickle can run code{f' (here {name[:80]!r})' if name else ''}; "
            "ask its author for safetensors"
        )
    if head[8:9] == b"{":
        return "safetensors"
    _refuse_unknown(head, path)


def _refuse_unknown(head: bytes, path: Path) -> NoReturn:
    if head[257:262] == b"ustar":
        raise InputError(f"is a tar archive, not {_KINDS}: unpack it first")
    # An ONNX model opens with its version, then its producer, graph or opset.
    if len(head) > 3 and head[0] == 8 and head[1] < 32 and head[2] in b"\x12\x1a\x3a\x42":
        raise InputError("seems to be ONNX, which holds a program; give the weights that it is of")
    if all(32 <= byte < 127 or byte in b"\t\r\n" for byte in head):
        raise InputError(f"is text ({shorten(head[:40].decode())}), not {_KINDS}")
    size = path.stat().st_size
    raise InputError(f"its {size:_} bytes are not {_KINDS}; is it complete, and the right file?")


def _recognize_zip(path: Path) -> Kind:
    with open_zip(path) as archive:
        names = archive.namelist()
    leaves = {name.rpartition("/")[2] for name in names}
    if "constants.pkl" in leaves:
        raise InputError(_SCRIPT)
    if leaves & {"archive_format", "serialized_exported_program.json"}:
        raise InputError(_EXPORT)
    if "data.pkl" in leaves:
        return "torch"
    if names and all(name.endswith(".npy") for name in names):
        return "npz"
    found = ", ".join(shorten(name) for name in names[:3])
    raise InputError(f"a zip archive of other things ({found}), not {_KINDS}")


def _read_safetensors(path: Path) -> Header:
    """Read a header and check all that the format's own reader checks."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = struct.unpack("<Q", file.read(8))[0]
        if length > HEADER_LIMIT:
            told = f"says its header has {length:_} of {size:_} bytes"
            raise InputError(f"refused: {told}; the limit is {HEADER_LIMIT:_}")
        if 8 + length > size:
            raise InputError(f"the file is not complete: its {length:_}-byte header is cut off")
        entries = json.loads(file.read(length), object_pairs_hook=_unique)
    metadata = entries.pop("__metadata__", {})
    if not all(isinstance(text, str) for item in metadata.items() for text in item):
        raise InputError("its metadata is not text")
    check_count(len(entries))
    shapes: dict[str, tuple[int, ...]] = {}
    dtypes: dict[str, torch.dtype] = {}
    place = 0
    for name, entry in sorted(entries.items(), key=lambda item: item[1]["data_offsets"]):
        if entry["dtype"] not in _DTYPES:
            raise InputError(f"{shorten(name)} holds {entry['dtype']!r}, which is not supported")
        shapes[name], dtypes[name] = tuple(entry["shape"]), _DTYPES[entry["dtype"]]
        sides = [side for side in shapes[name] if type(side) is int and 0 <= side < 2**62]
        start, end = entry["data_offsets"]
        needed = math.prod(sides[:64]) * dtypes[name].itemsize
        if len(sides) != len(shapes[name]) or start != place or end - start != needed:
            raise InputError(f"the header gives an impossible place for {shorten(name)}")
        place = end
    there = size - 8 - length
    if place > there:
        raise InputError(f"the file is not complete: {there:_} of {place:_} bytes of numbers")
    if place < there:
        raise InputError(f"{there - place:_} bytes belong to no tensor")

    def read() -> dict[str, Tensor]:
        with utf8_path(path) as name:
            return load_file(name)

    return Header(shapes=shapes, dtypes=dtypes, metadata=metadata, read=read)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise InputError("the header names something twice")
    return found


def _read_torch(path: Path) -> Header:
    with path.open("rb") as file:
        legacy = file.read(len(LEGACY)) == LEGACY
    if legacy:
        return read_legacy(path)
    with open_zip(path) as archive:
        return read_torch_zip(path, archive)


_HEADERS: dict[Kind, Callable[[Path], Header]] = {
    "safetensors": _read_safetensors,
    "npz": read_npz,
    "torch": _read_torch,
}


def check_numbers(tensors: Mapping[str, Tensor], source: str) -> None:
    """Refuse weights with NaN or Inf."""
    # A sum is one pass and needs no memory; it is finite only if all numbers are.
    suspects = [n for n, t in tensors.items() if t.is_floating_point() and not t.sum().isfinite()]
    counts = {n: tensors[n].numel() - int(tensors[n].isfinite().sum()) for n in suspects}
    if bad := [f"{name} ({count})" for name, count in counts.items() if count]:
        raise InputError(f"{source} holds NaN or Inf: {', '.join(bad[:5])}; it is not usable")


def sha256_of(*paths: Path) -> str:
    """Compute the SHA-256 of files, one after the other, without holding them in memory."""
    digest = hashlib.sha256()
    for path in paths:
        try:
            with path.open("rb") as file:
                hashlib.file_digest(file, lambda: digest)
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    return digest.hexdigest()
