"""Files from strangers: nothing runs, nothing explodes, and only our error comes out."""

import builtins
import io
import os
import pickle
import random
import socket
import subprocess
import tarfile
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.weights.files.tensor_cases import check, make_zip, says, tensors
from tests.weights.hostile_files import SAVERS, nothing_happens
from vitrail.config import InputError
from vitrail.weights.files.tensor_files import open_weights

KINDS = pytest.mark.parametrize("kind", SAVERS)


@pytest.fixture(autouse=True)
def _warm(tmp_path: Path) -> None:
    """Load one of each, so that no import is taken for an attack."""
    for name, saver in SAVERS.items():
        saver(tmp_path / name)
        check(tmp_path / name, tensors())


def test_the_watch_sees() -> None:
    with pytest.raises(AssertionError), nothing_happens():
        os.system("true")
    with pytest.raises(AssertionError), nothing_happens():
        pickle.loads(pickle.dumps(Path("/")))


class Canary:
    """Pickles as a call."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


def canaries(target: Path) -> dict[str, Canary]:
    return {
        "posix.system": Canary(os.system, f"touch {target}"),
        "builtins.exec": Canary(builtins.exec, f"open({str(target)!r}, 'w')"),
        "builtins.eval": Canary(builtins.eval, f"open({str(target)!r}, 'w')"),
        "builtins.open": Canary(open, str(target), "w"),
        "subprocess.Popen": Canary(subprocess.Popen, ["touch", str(target)]),
        "socket.create_connection": Canary(socket.create_connection, ("127.0.0.1", 9)),
        "builtins.bytearray": Canary(bytearray, 10**11),
        "torch.load": Canary(torch.load, str(target)),
    }


@pytest.mark.parametrize("name", canaries(Path()))
def test_pickles_run_nothing(tmp_path: Path, name: str) -> None:
    canary, bad = canaries(tmp_path / "alive")[name], tmp_path / "bad"
    word = name.rpartition(".")[2]
    for saved in (canary, {"w": torch.ones(1), "x": canary}, {"state_dict": {"w": canary}}):
        for legacy in (False, True):
            torch.save(saved, bad, _use_new_zipfile_serialization=not legacy)
            with nothing_happens():
                says(bad, "refused: this file wants to run code", word, "safetensors")
        torch.save(saved, bad, pickle_protocol=4)
        with nothing_happens():
            says(bad, "refused")
    for protocol in range(2, 6):
        bad.write_bytes(pickle.dumps(canary, protocol))
        with nothing_happens():
            says(bad, "refused: a bare pickle can run code", word)
    bad.write_bytes(pickle.dumps(canary, 0))
    with nothing_happens():
        says(bad)
    assert not (tmp_path / "alive").exists()


def test_arrays_of_objects_run_nothing(tmp_path: Path) -> None:
    objects = np.array([Canary(os.system, f"touch {tmp_path / 'alive'}")], dtype=object)
    np.savez(tmp_path / "a.npz", w=np.ones(2), x=objects)
    np.save(tmp_path / "b.npy", objects)
    fields = np.zeros(1, dtype=[("a", "f4"), ("b", "O")])
    np.savez(tmp_path / "c.npz", w=fields)
    with nothing_happens():
        says(tmp_path / "a.npz", "wants to run code", "'x.npy'")
        says(tmp_path / "b.npy", "npy")
        says(tmp_path / "c.npz", "wants to run code")
    assert not (tmp_path / "alive").exists()


def test_odd_archives_run_nothing(tmp_path: Path) -> None:
    """A second pickle, another spelling of its name, torch's oldest format (tar)."""
    evil = pickle.dumps(Canary(os.system, f"touch {tmp_path / 'alive'}"), 2)
    torch.save(tensors(), tmp_path / "good")
    with zipfile.ZipFile(tmp_path / "good") as archive:
        good = {name: archive.read(name) for name in archive.namelist()}
    for name in ("good/sub/data.pkl", "evil/data.pkl", "good/DATA.PKL"):
        bad = make_zip(tmp_path / "bad", {name: evil, **good})
        with nothing_happens():
            says(bad, "refused")
    with tarfile.open(tmp_path / "tar", "w") as tar:
        for name in ("storages", "tensors", "pickle"):
            entry = tarfile.TarInfo(name)
            entry.size = len(evil)
            tar.addfile(entry, io.BytesIO(evil))
    with nothing_happens():
        says(tmp_path / "tar", "tar archive")
    assert not (tmp_path / "alive").exists()


@KINDS
def test_cut_anywhere(tmp_path: Path, kind: str) -> None:
    data = (tmp_path / kind).read_bytes()
    bad = tmp_path / "bad"
    for length in {*range(0, len(data), 7), *range(len(data) - 30, len(data))}:
        bad.write_bytes(data[:length])
        says(bad)
    bad.write_bytes(data[: len(data) - 1])
    says(bad, "not complete")


def test_cut_in_the_comment_that_holds_the_preprocessing(tmp_path: Path) -> None:
    """Which zipfile lets pass: the model would be used with other preprocessing, or none."""
    with zipfile.ZipFile(tmp_path / "npz", "a") as archive:
        archive.comment = b'{"mean": [0.5]}'
    data = (tmp_path / "npz").read_bytes()
    check(tmp_path / "npz", tensors())
    for length in range(len(data) - len(b'{"mean": [0.5]}'), len(data)):
        (tmp_path / "bad").write_bytes(data[:length])
        says(tmp_path / "bad", "not complete")


@pytest.mark.parametrize("kind", ["npz", "torch"])
def test_a_flipped_bit_is_found_or_changes_nothing(tmp_path: Path, kind: str) -> None:
    """Both are archives with checksums, which torch itself does not look at."""
    data = (tmp_path / kind).read_bytes()
    bad, found = tmp_path / "bad", 0
    for place in random.Random(0).sample(range(8 * len(data)), 1000):
        flipped = bytearray(data)
        flipped[place // 8] ^= 1 << place % 8
        bad.write_bytes(flipped)
        try:
            check(bad, tensors())
        except InputError:
            found += 1
    assert found > 300  # the rest is padding, dates and the like


@KINDS
@settings(
    max_examples=150,
    deadline=2000,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)
@given(changes=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 9), st.binary(max_size=9)),
                        min_size=1, max_size=4))  # fmt: skip
def test_mutated_files(tmp_path: Path, kind: str, changes: list[tuple[float, int, bytes]]) -> None:
    data = (tmp_path / kind).read_bytes()
    for part, removed, inserted in changes:
        place = int(part * len(data))
        data = data[:place] + inserted + data[place + removed :]
    bad = tmp_path / "bad"
    bad.write_bytes(data)
    with suppress(InputError), nothing_happens():
        file = open_weights(bad)
        for name, tensor in file.read().items():
            assert tuple(tensor.shape) == file.shapes[name]
            assert tensor.dtype == file.dtypes[name]
            tensor.sum()
