"""Processes agree on numbers, facts and errors, and none waits for one that is gone."""

import gc
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]
from torch.nn.parallel import DistributedDataParallel

from tests.forks import in_processes
from vitrail import distributed
from vitrail.config import InputError
from vitrail.data.loader import Loader, LoaderConfig
from vitrail.distributed import (
    CopyStream,
    LostError,
    Processes,
    Shard,
    choose_device,
    process_group,
    send,
)


def test_one_process_agrees_with_itself() -> None:
    with process_group("cpu") as processes:
        assert processes == Processes(0, 1, torch.device("cpu"))
        assert processes.is_main
        assert processes.sum(2, torch.tensor(0.5)) == [2.0, 0.5]
        assert processes.least(3) == 3
        assert processes.broadcast("a") == "a"
        assert processes.gather("a") == ["a"]
        assert processes.on_main(lambda: "a") == "a"
        processes.check_same({"a": 1})
        with pytest.raises(InputError, match="no"):
            processes.on_main(refuse)
    assert not torch.distributed.is_initialized()


def refuse() -> None:
    raise InputError("no")


def agree() -> dict[str, object]:
    with process_group("cpu") as processes:
        rank = processes.rank
        heard: list[str] = []

        def lead() -> str:
            processes.broadcast("help")
            heard.append("help")
            return "done"

        found = {
            "shard": processes.shard,
            "sum": processes.sum(rank + 1, torch.tensor(0.5)),
            "least": processes.least(5 - rank),
            "any": (processes.any(rank == 1), processes.any(False)),
            "broadcast": processes.broadcast(f"from {rank}"),
            "gather": processes.gather({"rank": rank}),
            "on_main": processes.on_main(lambda: f"by {rank}"),
            "assisted": (processes.on_main(lead, heard.append), heard),
            "refused": said_by(processes),
        }
        processes.check_same({"seed": 0, "optim": {"lr": 1e-3}})
        processes.barrier()
        return found


def said_by(processes: Processes) -> str:
    try:
        processes.on_main(refuse)
    except InputError as error:
        return str(error)
    return ""


def test_three_processes_agree() -> None:
    ended = in_processes(agree, 3)
    assert [each.code for each in ended] == [0, 0, 0], ended
    assert [each.value.pop("shard") for each in ended] == [Shard(rank, 3) for rank in range(3)]
    for each in ended:
        assert each.value == {
            "sum": [6.0, 1.5],
            "least": 3.0,
            "any": (True, False),
            "broadcast": "from 0",
            "gather": [{"rank": 0}, {"rank": 1}, {"rank": 2}],
            "on_main": "by 0",
            "assisted": ("done", ["help"]),
            "refused": "no",
        }


def differ() -> None:
    with process_group("cpu") as processes:
        rate = 1e-3 * (1 + (processes.rank == 1))
        processes.check_same({"seed": 0, "optim": {"lr": rate}, "sets": {"train": "ab"}})


def test_processes_that_differ_are_named() -> None:
    for each in in_processes(differ):
        assert each.error == (
            "InputError: process 1 has optim.lr 0.002, process 0 has optim.lr 0.001; start all "
            "with the same command and data"
        )


def fail_in_one(rank: int) -> None:
    with process_group("cpu") as processes:
        processes.barrier()
        if processes.rank == rank:
            raise KeyError("this one")
        processes.barrier()


@pytest.mark.parametrize("rank", [0, 1])
def test_an_error_in_one_process_ends_the_others_at_once(rank: int) -> None:
    ended = in_processes(lambda: fail_in_one(rank), 3)  # in less than a test may take
    assert ended.pop(rank).error == "KeyError: 'this one'"
    for each in ended:
        assert each.error.startswith("LostError: process ")
        assert "has ended" in each.error


FAIL_AMID = """
import faulthandler, torch
from vitrail.distributed import process_group
faulthandler.dump_traceback_later(90, exit=True)
torch.set_num_threads(1)
with process_group("cpu") as processes:
    processes.barrier()
    if processes.rank == 1:
        torch.distributed.all_reduce(torch.ones(9), async_op=True)
        raise KeyError("this one")
    processes.barrier()
"""


def test_an_error_amid_an_exchange_ends_the_others_at_once() -> None:
    """Python's own end must not wait for the exchange, in which nobody else takes part."""
    agent = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    shared = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(agent.port), "WORLD_SIZE": "2"}
    shared |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "LOCAL_RANK": "0"}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", FAIL_AMID],
            env={**os.environ, **shared, "RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [each.communicate()[1] for each in started]
    assert "LostError: process 0 lost another one" in said[0]
    assert "KeyError: 'this one'" in said[1]


def hang_in_one(rank: int, ready: Path) -> None:
    distributed.PATIENCE, distributed.NOTICE = timedelta(seconds=4), timedelta(seconds=2)
    with process_group("cpu") as processes:
        processes.barrier()
        if processes.rank == rank:
            ready.write_text("")
            time.sleep(60)
        processes.barrier()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_that_hangs_is_named(rank: int, tmp_path: Path) -> None:
    ready = tmp_path / "ready"

    def stop(processes: list[ForkServerProcess]) -> None:
        hanging = processes[rank]
        while hanging.is_alive() and not ready.exists():
            time.sleep(0.05)
        os.kill(hanging.pid or 0, signal.SIGSTOP)
        for other in {*processes} - {hanging}:
            other.join(60)
        hanging.kill()

    ended = in_processes(lambda: hang_in_one(rank, ready), 3, meanwhile=stop)
    assert ended.pop(rank).code == -signal.SIGKILL
    errors = [each.error for each in ended]
    assert any(error.endswith(f"those that hang: {rank}") for error in errors), errors
    assert all(error.startswith("LostError: ") for error in errors), errors


@pytest.fixture
def port() -> Iterator[int]:
    """Find a port where nobody listens, and keep others from taking it."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("", 0))
        yield held.getsockname()[1]


def meet() -> list[int]:
    if os.environ["RANK"] == "0":
        time.sleep(0.5)  # the others begin before there is a store
    with process_group("cpu") as processes:
        return processes.gather(processes.rank)


def test_a_port_from_before_a_restart_is_not_used(port: int) -> None:
    """As torchrun's store leaves it; a new port is told some time after the others have begun."""
    agent = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    agent.set("vitrail/port", str(port))
    ended = in_processes(meet, variables={"MASTER_PORT": str(agent.port)})
    assert [each.value for each in ended] == [[0, 1], [0, 1]], ended


def test_processes_meet_without_torchrun(port: int) -> None:
    variables = {"MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "False"}
    ended = in_processes(meet, variables=variables)
    assert [each.value for each in ended] == [[0, 1], [0, 1]], ended


def meet_and_train(times: int) -> list[list[int]]:
    """Meet again and again, with a model that refers to the group for longer than `join` does."""
    sys.setswitchinterval(10)  # gloo's threads get Python's lock late, as on a busy machine
    met = []
    for _ in range(times):
        with process_group("cpu") as processes:
            model = DistributedDataParallel(nn.Linear(2, 2))
            model(torch.ones(1, 2)).sum().backward()
            met.append(processes.gather(processes.rank))
    return met


@pytest.mark.parametrize("agent", ["True", "False"])
def test_processes_part_and_meet_again(port: int, agent: str) -> None:
    """Group after group ends, and gloo's threads are waited for while they wait for Python."""
    variables = {"TORCHELASTIC_USE_AGENT_STORE": agent}
    if agent == "False":
        variables |= {"MASTER_PORT": str(port)}
    ended = in_processes(lambda: meet_and_train(30), variables=variables)
    assert [each.value for each in ended] == [[[0, 1]] * 30] * 2, ended


def collect(task: int) -> int:
    gc.collect()
    return task


def load_after_parting() -> list[int]:
    gc.disable()
    for _ in range(2):  # the first group is garbage when the second has ended
        with process_group("cpu"):
            model = DistributedDataParallel(nn.Linear(2, 2))
            model.cycle = [model]  # pyright: ignore
            del model
    return list(Loader(collect, range(2), LoaderConfig(workers=1, kind="processes")))


def test_data_workers_leave_groups_alone_that_they_inherit() -> None:
    """The end of a group waits for its threads, which a forked worker does not have."""
    ended = in_processes(load_after_parting)
    assert [each.value for each in ended] == [[0, 1], [0, 1]], ended


def test_a_count_without_an_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    with (
        pytest.raises(InputError, match="no 'MASTER_ADDR'; start them with torchrun"),
        process_group("cpu"),
    ):
        pass


def test_each_process_gets_its_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert choose_device("cuda") == torch.device("cuda:3")
    assert choose_device(torch.device("cuda:1")) == torch.device("cuda:1")
    assert choose_device("cpu") == torch.device("cpu")
    monkeypatch.setenv("LOCAL_RANK", "4")
    with pytest.raises(InputError, match="there is no GPU for process 4; use --nproc-per-node 4"):
        choose_device("cuda")


@pytest.mark.parametrize("device", ["cuda", "cuda:1", "mps"])
def test_a_device_that_is_not_there_is_refused(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: int(device == "cuda:1"))
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(InputError, match=f"torch finds no {device} on"), process_group(device):
        pass


def test_other_errors_stay_what_they_are() -> None:
    with pytest.raises(RuntimeError, match="shape") as caught, process_group("cpu"):
        raise RuntimeError("shape mismatch")
    assert not isinstance(caught.value, LostError)


def test_tensors_go_to_a_gpu_through_pinned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, object]] = []
    tensor = torch.arange(3)
    assert send(tensor, None) is tensor
    assert send(tensor, "cpu") is tensor
    assert send(tensor, "meta").is_meta
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: told.append(("pin", self)) or self)
    monkeypatch.setattr(
        torch.Tensor, "to", lambda self, *place, **how: told.append(("to", (*place, how))) or self
    )
    send(tensor, "cuda")
    assert told == [("pin", tensor), ("to", (torch.device("cuda"), {"non_blocking": True}))]


def test_copies_go_beside_what_a_gpu_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    class Stream:
        device = torch.device("cuda")

        def __init__(self, name: object) -> None:
            self.name = "copies" if isinstance(name, torch.device) else str(name)

        def wait_stream(self, other: "Stream") -> None:
            told.append(f"{self.name} waits for {other.name}")

        def __enter__(self) -> None:
            told.append(f"on {self.name}")

        def __exit__(self, *_: object) -> None:
            told.append("back")

    class Copied:
        is_cuda = True

        def record_stream(self, stream: Stream) -> None:
            told.append(f"used on {stream.name}")

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream("compute"))
    keys = torch.arange(2)  # which stay on the host
    copies = CopyStream(torch.device("cuda"))

    def prepare() -> tuple[Any, ...]:
        told.append("copy")
        return Copied(), keys, Copied()

    assert copies.run(prepare)[1] is keys
    used = ["used on compute"] * 2
    assert told == ["on copies", "copy", "back", "compute waits for copies", *used]
    assert CopyStream(torch.device("cpu")).run(lambda: (keys,)) == (keys,)
