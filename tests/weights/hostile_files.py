"""Weights files that would run code, and a check that none does."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save

from tests.weights.files.tensor_cases import tensors

EVENTS = (
    *("os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "subprocess.", "socket."),
    *("exec", "pickle.find_class", "ctypes.", "shutil.", "os.remove", "os.rename", "os.mkdir"),
)
seen: list[str] = []
watching = False


def watch(event: str, arguments: tuple[Any, ...]) -> None:
    if not watching:
        return
    if event.startswith(EVENTS):
        seen.append(event)
    elif event == "open" and set(str(arguments[1] or "r")) & set("wax+"):
        seen.append(f"open {arguments[0]!r}")


sys.addaudithook(watch)


@contextmanager
def nothing_happens() -> Iterator[None]:
    """Fail if code within runs a program, opens a socket, unpickles, or changes a file."""
    global watching
    seen.clear()
    watching = True
    try:
        yield
    finally:
        watching = False
    assert not seen


def save_npz(path: Path) -> None:
    arrays: dict[str, Any] = {name: tensor.numpy() for name, tensor in tensors().items()}
    with path.open("wb") as file:
        np.savez(file, **arrays)


SAVERS: dict[str, Callable[[Path], object]] = {
    "safetensors": lambda path: path.write_bytes(save(tensors())),
    "npz": save_npz,
    "torch": lambda path: torch.save(tensors(), path),
    "legacy": lambda path: torch.save(tensors(), path, _use_new_zipfile_serialization=False),
}
