"""Files that promise more than they hold are refused before anything is allocated."""

import io
import json
import pickle
import struct
import subprocess
import sys
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.weights.files.tensor_cases import check, make_zip, says
from tests.weights.hostile_files import SAVERS, nothing_happens
from vitrail.config import InputError
from vitrail.weights.files.tensor_files import open_weights

PATHS = [
    "../../outside",
    "/tmp/outside",
    "a\\..\\b",
    "C:\\x",
    "x" * 100_000,
    "~/x",
    "\n",
    "é\u202e",
]


def test_names_never_become_paths(tmp_path: Path) -> None:
    place = tmp_path / "a" / "b"
    place.mkdir(parents=True)
    named = {name: torch.full((2,), float(i)) for i, name in enumerate(PATHS)}
    save_file(named, place / "safetensors")
    torch.save(named, place / "torch")
    short: dict[str, Any] = {name: t.numpy() for name, t in named.items() if len(name) < 1000}
    np.savez(place / "npz", **short)
    evil = make_torch(place / "storage", make_pickle(1, (1,), (1,), key="../../x"), b"")
    for path in (place / "safetensors", place / "torch", place / "npz.npz", evil):
        with suppress(InputError):
            open_weights(path).read()  # once before, for what it imports
    with nothing_happens():
        check(place / "safetensors", named)
        check(place / "torch", named)
        check(place / "npz.npz", {name: torch.from_numpy(a) for name, a in short.items()})
        says(evil, "'../../x'")
    there = {path.name for path in tmp_path.rglob("*")}
    assert there == {"a", "b", "npz.npz", "safetensors", "torch", "storage"}


def number(value: int) -> bytes:
    return b"\x8a\x09" + value.to_bytes(9, "little", signed=True)


def make_pickle(
    numel: int, shape: tuple[int, ...], strides: tuple[int, ...], offset: int = 0, key: str = "0"
) -> bytes:
    """Write the pickle of one tensor that says these sizes of itself."""
    sides = b"(" + b"".join(map(number, shape)) + b"t("
    storage = b"X\x07\0\0\0storagectorch\nFloatStorage\nX" + struct.pack("<I", len(key))
    return (
        b"\x80\x02}X\x01\0\0\0wctorch._utils\n_rebuild_tensor_v2\n(("
        + storage + key.encode() + b"X\x03\0\0\0cpu" + number(numel) + b"tQ" + number(offset)
        + sides + b"".join(map(number, strides)) + b"t\x89ccollections\nOrderedDict\n)RtRs."
    )  # fmt: skip


def make_torch(path: Path, pickled: bytes, storage: bytes, method: int = 0) -> Path:
    members = {"m/data.pkl": pickled, "m/byteorder": b"little", "m/data/0": storage}
    return make_zip(path, {**members, "m/version": b"3\n"}, method)


def make_legacy(path: Path, pickled: bytes, numel: int) -> Path:
    pickled = pickled.replace(b"tQ", b"NtQ")
    head = [pickle.dumps(x, 2) for x in (0x1950A86A20F9469CFC6C, 1001, {})]
    keys = pickle.dumps(["0"], 2)
    path.write_bytes(b"".join(head) + pickled + keys + struct.pack("<q", numel) + bytes(16))
    return path


def make_safetensors(path: Path, entries: dict[str, Any], data: bytes = b"") -> Path:
    header = json.dumps(entries).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + data)
    return path


def test_crafted_files_are_what_they_mean_to_be(tmp_path: Path) -> None:
    """The same bytes with honest sizes load."""
    wanted: dict[str, Tensor] = {"w": torch.zeros(2, 2)}
    honest = make_pickle(4, (2, 2), (2, 1))
    check(make_torch(tmp_path / "a", honest, bytes(16)), wanted)
    check(make_legacy(tmp_path / "b", honest, 4), wanted)
    entry = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}
    check(make_safetensors(tmp_path / "c", {"w": entry}, bytes(16)), wanted)


def bombs(place: Path) -> dict[str, tuple[Path, str]]:
    """Write files that promise far more than they hold, and say what must be said of each."""
    made: dict[str, tuple[Path, str]] = {}
    zeros = np.zeros(100_000_000, np.float32)
    np.savez_compressed(place / "npz", w=zeros)
    made["npz of zeros"] = place / "npz.npz", "says it holds 400 MB in 0.4 MB"
    stream = io.BytesIO()
    np.save(stream, np.zeros(2, np.float32))
    npy = stream.getvalue()
    made["npz shape"] = make_zip(place / "a", {"w.npy": npy.replace(b"(2,)", b"(1<<9)"[:4])}), ""
    huge = npy.replace(b"(2,), }          ", b"(99999999999,), }")
    made["npz lie"] = make_zip(place / "b", {"w.npy": huge}), "(99999999999,)"
    long = b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**31) + b" " * 300_000_000
    made["npy header"] = make_zip(place / "c", {"w.npy": long}, zipfile.ZIP_DEFLATED), "npz"
    entry = b"PK\x01\x02" + bytes(24) + struct.pack("<H", 4) + bytes(16)
    members = b"".join(entry + b"%04x" % (i % 65536) for i in range(100_000))
    end = struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, 9, 9, len(members), 30, 0)
    (place / "d").write_bytes(b"PK\x03\x04".ljust(30, b"\0") + members + end)
    made["zip members"] = place / "d", "list of members is over"

    with (place / "e").open("wb") as file:
        file.write(struct.pack("<Q", 150_000_000) + b"{")
        file.truncate(200_000_000)
    made["safetensors header"] = place / "e", "says its header has 150_000_000"
    (place / "f").write_bytes(struct.pack("<Q", 2**64 - 1) + b"{}")
    made["safetensors overflow"] = place / "f", "says its header has"
    for name, shape, offsets in (
        ("shape overflow", [2**32, 2**32], [0, 0]),
        ("negative", [-1], [0, -4]),
        ("beyond", [2**40], [0, 2**42]),
        ("axes", [2**61] * 10_000, [0, 0]),
    ):
        entries = {"w": {"dtype": "F32", "shape": shape, "data_offsets": offsets}}
        made[f"safetensors {name}"] = make_safetensors(place / name, entries), "safetensors: the"
    one = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    path = make_safetensors(place / "g", {"v": one, "w": one}, bytes(8))
    made["safetensors overlap"] = path, "an impossible place for 'w'"
    many = make_safetensors(place / "h", {str(i): one for i in range(100_000)}, bytes(8))
    made["safetensors tensors"] = many, "says its header has"
    deep = b"[" * 1_000_000
    (place / "i").write_bytes(struct.pack("<Q", len(deep) + 1) + b"{" + deep)
    made["safetensors depth"] = place / "i", "damaged safetensors"

    small = make_pickle(10**8, (10**8,), (1,))
    packed = make_torch(place / "j", small, bytes(400_000_000), zipfile.ZIP_DEFLATED)
    made["torch of zeros"] = packed, "members are compressed"
    for name, data, said in (
        ("numel", small, "says 400_000_000 bytes of '0', not 16"),
        ("size", make_pickle(4, (10**8,), (1,)), "says it holds 400_000_000 bytes"),
        ("stride", make_pickle(4, (10**8,), (0,)), "says it holds 400_000_000 bytes"),
        ("offset", make_pickle(4, (1,), (1,), 10**8), "its storage 16"),
        ("product", make_pickle(4, (2**32, 2**32), (1, 1)), "its storage 16"),
        ("axes", make_pickle(4, (2**32,) * 10_000, (1,) * 10_000), "10000 axes"),
        ("steps", b"\x80\x02" + b"N" * 2_000_000 + b".", "takes more than"),
        ("memo", b"\x80\x02}r\xff\xff\xff\x7f.", "holds no tensors"),
        ("key", b"\x80\x02})" + b"\x85q\0h\0\x86" * 60 + b"Ns.", "a tuple is a key"),
        ("copies", b"\x80\x02(]q\0(" + b"NN\x86" * 300_000 + b"e" + b"ccollections\nOrderedDict\n"
         b"h\0\x85R" * 9_000 + b"t.", "takes more than"),
    ):  # fmt: skip
        made[f"torch {name}"] = make_torch(place / f"torch-{name}", data, bytes(16)), said
    made["legacy"] = make_legacy(place / "k", small, 10**8), "not complete"
    two = make_legacy(place / "l", make_pickle(4, (4,), (1,)), 10**12)
    made["legacy numel"] = two, "two sizes"
    return made


JUDGE = """
import json, resource, sys
from pathlib import Path
from vitrail.config import InputError
from vitrail.config import InputError
from vitrail.weights.files.tensor_files import open_weights

*warm, listed = map(Path, sys.argv[1:])
for path in warm:
    open_weights(path).read()
told = {}
for path in map(Path, json.loads(listed.read_text())):
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    most = now + path.stat().st_size + 200_000_000
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))
    try:
        open_weights(path).read()
        told[str(path)] = "loaded"
    except InputError as error:
        told[str(path)] = str(error)
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(json.dumps(told))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the limit of memory is Linux's")
def test_bombs_are_refused_in_the_memory_of_the_file_and_200_mb(tmp_path: Path) -> None:
    place = tmp_path / "bombs"
    place.mkdir()
    made = bombs(place)
    for kind, saver in SAVERS.items():
        saver(tmp_path / kind)
    listed = tmp_path / "list.json"
    listed.write_text(json.dumps([str(path) for path, _ in made.values()]))
    run = [sys.executable, "-c", JUDGE, *(str(tmp_path / kind) for kind in SAVERS), str(listed)]
    done = subprocess.run(run, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    for name, (path, expected) in made.items():
        message = told[str(path)]
        assert expected in message, name
        assert message != "loaded", name
        assert "MemoryError" not in message, name


def test_many_tensors_of_an_honest_file_are_no_bomb(tmp_path: Path) -> None:
    many = {f"blocks.{i}.weight": torch.zeros(1000) for i in range(2000)}
    torch.save(many, tmp_path / "many")
    assert len(open_weights(tmp_path / "many").shapes) == 2000
