"""A sweep on a Ray cluster of two machines, one of which dies: the same table as here."""

import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from vitrail.config import InputError
from vitrail.studies.engine.jobs import Job
from vitrail.studies.engine.local_workers import Ended
from vitrail.studies.engine.ray_workers import RayWorkers
from vitrail.studies.engine.sweep import sweep

ray = pytest.importorskip("ray")
TINY = "ViT/4@8,depth=1,width=16,heads=2,mlp=32,channels=1"
BASE = {
    "data": "digits", "model": TINY, "batch": 16, "steps": 1500, "eval_every": "100 %",
    "save_every": "50 steps", "log_every": 10,
}  # fmt: skip
VARY = {"lr": [1e-3, 2e-3]}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Any:
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    made = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 1, "include_dashboard": False, "object_store_memory": 10**8},
    )
    made.second = made.add_node(num_cpus=1, object_store_memory=10**8)  # pyright: ignore
    ray.init(address=made.address, log_to_driver=False)
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.mark.slow
def test_a_machine_that_dies_changes_nothing(cluster: Any, tmp_path: Path) -> None:
    killed = threading.Event()

    def kill_in_the_midst() -> None:
        """Kill the second machine while both have a run under way that was saved."""
        until = time.monotonic() + 120
        while time.monotonic() < until and not killed.is_set():
            runs = list(tmp_path.glob("ray/runs/*/checkpoints/*"))
            if len({path.parents[1] for path in runs}) == 2:
                cluster.remove_node(cluster.second, allow_graceful=False)
                killed.set()
            time.sleep(0.05)

    killer = threading.Thread(target=kill_in_the_midst)
    killer.start()
    words: dict[str, Any] = {"vary": VARY, "seeds": 2, "report": False}
    try:
        with pytest.raises(InputError, match="a run asks for 8 CPU, and the largest machine"):
            sweep(BASE, **words, out=tmp_path / "ray", engine="ray", cpus=8)
        assert not (tmp_path / "ray").exists()
        result = sweep(BASE, **words, out=tmp_path / "ray", engine="ray")
    finally:
        killer.join()
    assert killed.is_set(), "no two runs were under way at once"
    assert result.failed == 0
    resumed = [
        path for path in tmp_path.glob("ray/runs/*/log.txt") if "resuming" in path.read_text()
    ]
    assert len(resumed) >= 1
    local = sweep(BASE, **words, out=tmp_path / "local", parallel=1)
    assert result.to_csv() == local.to_csv()


class FakeRay:
    """Answers as Ray does, from a list of what each task came to."""

    exceptions = ray.exceptions

    def __init__(self, answers: list[Any], cpus: float = 2) -> None:
        self.answers, self.cpus = answers, cpus
        self.asked: list[dict[str, Any]] = []

    def remote(self, **requests: Any) -> Any:
        self.asked.append(requests)
        return lambda function: self

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": self.cpus}

    def wait(self, references: list[Any], **_: Any) -> tuple[list[Any], list[Any]]:
        return references[:1], references[1:]

    def get(self, _: Any) -> Any:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_a_lost_run_is_made_again_but_not_forever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = ray.exceptions.WorkerCrashedError()
    fake = FakeRay([lost, lost, None, "no data", lost, lost, lost])
    workers = RayWorkers(fake, tmp_path, most=None, cpus=0.5, gpus=0)
    assert fake.asked == [{"num_cpus": 0.5, "num_gpus": 0, "max_retries": 0}]
    assert workers.slots == 4
    fake.cpus = 1  # a machine has gone
    assert workers.slots == 2
    job = Job(name="a", words={}, seed=0)
    monkeypatch.setattr(workers, "_run", SimpleNamespace(remote=lambda packed: packed["name"]))

    def end(name: str) -> Ended:
        workers.submit(replace(job, name=name), {})
        (ended,) = workers.wait(0)
        return ended

    assert [end("a").lost, end("a").lost, end("a")] == [True, True, Ended("a", None)]
    assert end("b") == Ended("b", "no data")
    assert [end("c").lost, end("c").lost] == [True, True]
    last = end("c")
    assert not last.lost
    assert last.error is not None
    assert last.error.startswith("lost 3 times: ")
