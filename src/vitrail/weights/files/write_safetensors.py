"""Write safetensors so that the same tensors give the same bytes, with a file's usual rights."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from vitrail.files import permit


def save_safetensors(tensors: Mapping[str, Tensor], path: Path, metadata: dict[str, str]) -> None:
    """Write tensors of any layout, also such as share memory, and metadata in sorted order."""
    save_file(_separate(tensors), path, metadata=metadata)
    permit(path)
    _sort_metadata(path)


def _sort_metadata(path: Path) -> None:
    """Sort the header's metadata in place; the library's order is random."""
    with path.open("r+b") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = file.read(length)
        said = json.loads(header)["__metadata__"]
        old, new = (_compact(said), _compact({key: said[key] for key in sorted(said)}))
        start = b'{"__metadata__":'
        assert header.startswith(start + old), "the library writes metadata first, as compact JSON"
        file.seek(8 + len(start))
        file.write(new)


def _compact(data: Mapping[str, str]) -> bytes:
    return json.dumps(data, separators=(",", ":"), ensure_ascii=False).encode()


def _separate(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Give each tensor contiguous memory of its own, which the library asks for."""
    ready: dict[str, Tensor] = {}
    end = 0
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    for name, tensor in sorted(plain.items(), key=lambda item: item[1].data_ptr()):
        shared = tensor.data_ptr() < end
        end = max(end, tensor.data_ptr() + tensor.nbytes)
        ready[name] = tensor.clone() if shared else tensor
    return {name: ready[name] for name in tensors}
