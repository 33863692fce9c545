"""Weight files of every kind: their values, their headers, and what is said of a wrong one."""

import hashlib
import io
import json
import os
import pickle
import struct
import warnings
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from tests.weights.files.tensor_cases import check, make_zip, says, tensors
from vitrail.config import InputError
from vitrail.weights.files.tensor_files import check_numbers, open_weights, sha256_of

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64]


@pytest.mark.parametrize("dtype", DTYPES)
def test_safetensors(tmp_path: Path, dtype: torch.dtype) -> None:
    save_file(tensors(dtype), tmp_path / "m", metadata={"format": "pt", "by": "me"})
    check(tmp_path / "m", tensors(dtype))
    file = open_weights(tmp_path / "m")
    assert (file.kind, file.metadata) == ("safetensors", {"format": "pt", "by": "me"})


@pytest.mark.parametrize("length", [60, 0x0280, 0x4B50, 0x0A20])
def test_a_safetensors_header_may_have_a_length_that_looks_like_another_kind(
    tmp_path: Path, length: int
) -> None:
    """As bytes these are "<", a pickle's first two, "PK" and white space."""
    entry = {"w": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}
    header = json.dumps(entry, separators=(",", ":")).encode().ljust(length)
    (tmp_path / "m").write_bytes(struct.pack("<Q", length) + header + b"\x07")
    check(tmp_path / "m", {"w": torch.tensor([7], dtype=torch.uint8)})


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_torch(tmp_path: Path, dtype: torch.dtype, legacy: bool) -> None:
    path = tmp_path / "m.bin"
    torch.save(tensors(dtype), path, _use_new_zipfile_serialization=not legacy)
    check(path, tensors(dtype))
    assert open_weights(path).kind == "torch"


@pytest.mark.parametrize("legacy", [False, True])
def test_torch_state_of_a_module(tmp_path: Path, legacy: bool) -> None:
    """State has versions hung on it; parameters, views and shared numbers load as they are."""
    state: dict[str, Any] = nn.Linear(3, 2).state_dict()
    assert hasattr(state, "_metadata")
    state["parameter"] = nn.Parameter(torch.randn(2, 2))
    state["view"] = torch.arange(10.0)[2:8:2]
    state["turned"] = torch.arange(6.0).reshape(2, 3).T
    state["tied"] = state["weight"]
    torch.save(state, tmp_path / "m.pth", _use_new_zipfile_serialization=not legacy)
    check(tmp_path / "m.pth", {name: tensor.detach() for name, tensor in state.items()})


@pytest.mark.parametrize("key", ["state_dict", "model", "teacher", "module"])
def test_torch_unwraps(tmp_path: Path, key: str) -> None:
    others = {"epoch": 3, "lr": 0.1, "milestones": Counter([1, 2]), "size": torch.Size([1])}
    saved = {"optimizer": {"state": {0: torch.ones(2)}}, key: {**tensors(), "note": "hello"}}
    torch.save({**others, **saved, "kind": torch.float32}, tmp_path / "m.pt")
    check(tmp_path / "m.pt", tensors())
    assert {*open_weights(tmp_path / "m.pt").ignored} == {*others, "optimizer", "kind", "note"}


def test_torch_unwraps_the_likeliest_and_the_inner(tmp_path: Path) -> None:
    saved = {"teacher": {"x": torch.ones(1)}, "state_dict": {"module": tensors()}}
    torch.save(saved, tmp_path / "m.pt")
    check(tmp_path / "m.pt", tensors())
    assert open_weights(tmp_path / "m.pt").ignored == ("teacher",)


def test_torch_without_checksums(tmp_path: Path) -> None:
    torch.serialization.set_crc32_options(False)
    try:
        torch.save(tensors(), tmp_path / "m.pt")
    finally:
        torch.serialization.set_crc32_options(True)
    check(tmp_path / "m.pt", tensors())


def test_a_mapped_file_is_not_written_to(tmp_path: Path) -> None:
    save_file({"w": torch.ones(1000)}, tmp_path / "a")
    torch.save({"w": torch.ones(1000)}, tmp_path / "b")
    for path in (tmp_path / "a", tmp_path / "b"):
        open_weights(path).read()["w"].add_(1)
        assert open_weights(path).read()["w"].sum() == 1000


@pytest.mark.parametrize("kind", ["<f4", ">f4", "<f2", ">f2", "<f8", ">f8", ">i4", "|u1", "|b1"])
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz(tmp_path: Path, kind: str, save: Any) -> None:
    array = np.arange(6).reshape(2, 3).astype(kind)
    arrays = {"a/b": array, "turned": np.asfortranarray(array), "one": array[0, 0]}
    save(tmp_path / "m.npz", **arrays)
    native = {name: np.ascontiguousarray(a).astype(a.dtype.newbyteorder("=")) for name, a in
              arrays.items()}  # fmt: skip
    native["one"] = native["one"].reshape(())
    check(tmp_path / "m.npz", {name: torch.from_numpy(a) for name, a in native.items()})
    assert open_weights(tmp_path / "m.npz").kind == "npz"


def test_npz_of_bfloat16_and_of_what_is_no_number(tmp_path: Path) -> None:
    numbers = torch.tensor([[1.5, -2.0, 3.140625]], dtype=torch.bfloat16)
    void = numbers.view(torch.int16).numpy().view("V2")
    np.savez(tmp_path / "m.npz", w=void, names=np.array(["cat", "dog"]), z=np.zeros(1, "c8"))
    check(tmp_path / "m.npz", {"w": numbers})
    assert open_weights(tmp_path / "m.npz").ignored == ("names", "z")


def test_npz_metadata_is_the_comment(tmp_path: Path) -> None:
    np.savez(tmp_path / "m.npz", w=np.ones(1))
    assert open_weights(tmp_path / "m.npz").metadata == {}
    with zipfile.ZipFile(tmp_path / "m.npz", "a") as archive:
        archive.comment = b'{"a": "text", "b": {"c": 1}}'
    assert open_weights(tmp_path / "m.npz").metadata == {"a": "text", "b": '{"c": 1}'}
    with zipfile.ZipFile(tmp_path / "m.npz", "a") as archive:
        archive.comment = b"[1, 2"
    assert open_weights(tmp_path / "m.npz").metadata == {}


def test_the_name_does_not_matter(tmp_path: Path) -> None:
    save_file(tensors(), tmp_path / "m.pth")
    torch.save(tensors(), tmp_path / "m.npz")
    torch.save(tensors(), tmp_path / "n.safetensors")
    torch.save(tensors(), tmp_path / "l.safetensors", _use_new_zipfile_serialization=False)
    with (tmp_path / "o.safetensors").open("wb") as file:
        np.savez(file, **{name: tensor.numpy() for name, tensor in tensors().items()})  # pyright: ignore[reportArgumentType]
    for name in ("m.pth", "m.npz", "n.safetensors", "l.safetensors", "o.safetensors"):
        check(tmp_path / name, tensors())


def onnx() -> bytes:
    """Begin as every exporter does: the version, then the producer's name."""
    return b"\x08\x0a\x12\x07pytorch\x1a\x052.0.0:\x00" + bytes(range(100))


WRONG = {
    "empty": (b"", "is empty"),
    "html": (b"\n<!DOCTYPE html><html>404</html>", "web page"),
    "upper.html": (b"<HTML>", "web page"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "git lfs pull"),
    "text": (b"not found", "is text ('not found')"),
    "json": (b'{"error": 1}', "is text"),
    "random": (bytes(range(7, 256)), "249 bytes are not safetensors"),
    "npy": (b"\x93NUMPY\x01\x00", "weights are npz"),
    "gzip": (b"\x1f\x8b\x08\x00", "unpack it first"),
    "tar": (b"a".ljust(257, b"\0") + b"ustar\x0000", "tar archive"),
    "onnx": (onnx(), "ONNX"),
    "hdf5": (b"\x89HDF\r\n\x1a\n", "Keras"),
    "gguf": (b"GGUF\x03\0\0\0", "language models"),
    "zip": (b"PK\x05\x06" + bytes(18), "empty zip"),
    "pickle": (pickle.dumps({"a": 1}, 2), "bare pickle"),
    "named.pickle": (pickle.dumps(Path("/"), 4), "pathlib.PosixPath"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_weights_file_is_said(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(WRONG[name][0])
    says(tmp_path / name, WRONG[name][1])


def test_places(tmp_path: Path) -> None:
    save_file(tensors(), tmp_path / "model.safetensors")
    says(tmp_path / "modle.safetensors", "no such file; did you mean 'model.safetensors'?")
    says(tmp_path / "nowhere" / "x", "no such file")
    says(tmp_path, "is a folder")
    (tmp_path / ".metadata").touch()
    says(tmp_path, "refused: a distributed checkpoint holds code")
    says(Path("/dev/zero"), "not a regular file")
    if os.getuid():  # root reads everything
        (tmp_path / "model.safetensors").chmod(0)
        says(tmp_path / "model.safetensors", "cannot be read: Permission denied")
    with pytest.raises(InputError, match="File name too long"):
        open_weights(tmp_path / ("x" * 300))
    with pytest.raises(InputError, match="cannot be read: No such file"):
        sha256_of(tmp_path / "gone")


def test_zips_that_are_no_weights(tmp_path: Path) -> None:
    says(make_zip(tmp_path / "a.docx", {"word/document.xml": b""}), "other things", "document.xml")
    says(make_zip(tmp_path / "b.pt2", {"m/archive_format": b"pt2"}), ".pt2 archive is a program")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.script(nn.Linear(2, 2)).save(str(tmp_path / "c.pt"))
    says(tmp_path / "c.pt", "TorchScript is a program", "safetensors")


@pytest.mark.parametrize("legacy", [False, True])
def test_whole_modules_are_refused_by_name(tmp_path: Path, legacy: bool) -> None:
    torch.save(nn.Linear(2, 2), tmp_path / "m.pt", _use_new_zipfile_serialization=not legacy)
    says(tmp_path / "m.pt", "wants to run code ('torch.nn.modules.linear.Linear')", "safetensors")


def test_files_without_tensors(tmp_path: Path) -> None:
    torch.save({"epoch": 3}, tmp_path / "a.pt")
    says(tmp_path / "a.pt", "torch: holds no tensors, only 'epoch'")
    torch.save([torch.ones(1)], tmp_path / "b.pt")
    says(tmp_path / "b.pt", "holds a list, not a dictionary")
    save_file({}, tmp_path / "c.safetensors")
    says(tmp_path / "c.safetensors", "holds no tensors")


def test_bad_numbers() -> None:
    bad = torch.tensor([[1.0, float("nan")], [float("inf"), -float("inf")]])
    found = {"a": bad, "b": torch.ones(3), "c": bad.bfloat16()[:1], "d": torch.ones(1).long()}
    with pytest.raises(InputError, match=r"^w\.pth holds NaN or Inf: a \(3\), c \(1\); it is not"):
        check_numbers(found, "w.pth")
    check_numbers({"b": found["b"], "d": found["d"]}, "w.pth")


def test_sha256(tmp_path: Path) -> None:
    data = bytes(range(256)) * 5000
    (tmp_path / "m").write_bytes(data)
    assert sha256_of(tmp_path / "m") == hashlib.sha256(data).hexdigest()


def test_npz_with_sizes_that_contradict_each_other(tmp_path: Path) -> None:
    stream = io.BytesIO()
    np.save(stream, np.zeros((2, 3), np.float32))
    good = stream.getvalue()
    for old, new in ((b"(2, 3)", b"(9, 9)"), (b"(2, 3)", b"(-2,-3)"[:6]), (b"<f4", b"<f8")):
        says(make_zip(tmp_path / "m.npz", {"w.npy": good.replace(old, new)}), "npz")
    shape = b"{'descr': '<f4', 'fortran_order': False, 'shape': (-2, -3), }"
    says(make_zip(tmp_path / "m.npz", {"w.npy": good[:10] + shape.ljust(117) + b"\n"}), "(-2, -3)")
