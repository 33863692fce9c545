"""State dicts as named tensors and plain data: nothing is executed when they are read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from vitrail.files import utf8_path


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors as safetensors, whatever their device, layout and shared memory."""
    path.touch()
    mode = path.stat().st_mode  # as the user's other files; safetensors makes its own 0600
    ready: dict[str, Tensor] = {}
    taken: set[int] = set()
    for name, tensor in tensors.items():
        plain = tensor.detach().cpu().contiguous()
        place = plain.untyped_storage().data_ptr()
        ready[name] = plain.clone() if place in taken else plain
        taken.add(place)
    save_file(ready, path)
    path.chmod(mode)


def load_tensors(path: Path, device: torch.device | str = "cpu") -> dict[str, Tensor]:
    """Read tensors into memory of their own, so that the file may be deleted."""
    with utf8_path(path) as name, safe_open(name, framework="pt") as file:
        return {name: file.get_tensor(name).to(device, copy=True) for name in file.keys()}  # noqa: SIM118


def flatten_state_dict(state: Mapping[Any, Any]) -> tuple[dict[str, Tensor], Any]:
    """Split a nested state such as `optimizer.state_dict()` into named tensors and plain JSON.

    `unflatten_state_dict` restores it with all types: int keys, tuples, None, 0-d tensors.
    """
    tensors: dict[str, Tensor] = {}

    def plain(value: Any, where: str) -> Any:
        if isinstance(value, Tensor):
            while where in tensors:  # keys may have dots, and 0 reads like "0"
                where += "'"
            tensors[where] = value
            return {"tensor": where}
        if isinstance(value, Mapping):
            return {
                "dict": [[plain(k, where), plain(v, _join(where, k))] for k, v in value.items()]
            }
        if type(value) in (list, tuple):
            items = [plain(item, _join(where, index)) for index, item in enumerate(value)]
            return items if type(value) is list else {"tuple": items}
        if type(value) in (bool, int, float, str, type(None)):
            return value
        raise TypeError(f"{where} is of {type(value)}, which a checkpoint can't hold")

    return tensors, plain(state, "")


def unflatten_state_dict(tensors: Mapping[str, Tensor], plain: Any) -> Any:
    """Restore what `flatten_state_dict` split."""

    def build(value: Any) -> Any:
        if isinstance(value, list):
            return [build(item) for item in value]
        if not isinstance(value, dict):
            return value
        ((kind, content),) = value.items()
        if kind == "tensor":
            return tensors[content]
        if kind == "tuple":
            return tuple(build(item) for item in content)
        return {build(key): build(item) for key, item in content}

    return build(plain)


def _join(where: str, key: object) -> str:
    return f"{where}.{key}" if where else str(key)
