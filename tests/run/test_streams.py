"""Runs on streams: stopped anywhere they end with the same bytes; what needs a length says so."""

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.data.datasets.hub_sets import own_cache, png, table, write_parquet
from tests.data.datasets.shards.tars import tar
from tests.data.sets import HALF
from tests.faults.toy import MODEL, fail_at, print_of, steps, toy, train_in_child
from tests.forks import in_processes
from tests.runs import train
from tests.shelf import Shelf, refusal, serving
from vitrail.config import Duration
from vitrail.data.cache import CacheConfig
from vitrail.data.dataset import ImageStream
from vitrail.data.datasets.open import open_data
from vitrail.data.loader import LoaderConfig
from vitrail.data.streaming import Cursor, StreamBatches
from vitrail.data.transforms.augment import Augment
from vitrail.distributed import Processes
from vitrail.run import TrainConfig
from vitrail.run_estimate import estimate
from vitrail.training.loop import DivergedError
from vitrail.training.optimization.optim import OptimConfig
from vitrail.training_run import TrainingRun


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path) -> Iterator[None]:
    with own_cache(tmp_path / "cache"):
        yield


@pytest.fixture
def sets(tmp_path: Path) -> Path:
    """Write 20 images to learn from and 7 to measure on."""
    write_parquet(tmp_path / "set", "train", table(range(20)), files=2)
    return write_parquet(tmp_path / "set", "validation", table(range(20, 27)))


def streamed(sets: Path, out: Path, **changes: Any) -> TrainConfig:
    """Train for 4 epochs, measured on what can be reached by number."""
    settings: dict[str, Any] = {
        "data": f"hf:{sets},stream=true,buffer=6",
        "val_data": f"hf:{sets}",
        "model": MODEL.replace("channels=1", "channels=3"),
        "batch": 8,
        "augment": Augment(mixup=0.2),
        "log_every": 1,
    }
    return toy(out, **{**settings, **changes})


@pytest.mark.parametrize(("stop", "repeats"), [(3, 1), (7, 3)])
def test_a_stopped_run_goes_on_where_it_was(
    sets: Path, tmp_path: Path, stop: int, repeats: int
) -> None:
    whole = streamed(sets, tmp_path / "whole", repeats=repeats)
    result = train(whole)
    assert (result.steps, result.images) == (10, 7)
    begun = replace(whole, out=tmp_path / "begun", loader=LoaderConfig(workers=0))
    with pytest.MonkeyPatch.context() as patch:
        fail_at(patch, stop)
        with pytest.raises(ZeroDivisionError):
            train(begun)
    assert train(begun).top1 == result.top1
    assert print_of(begun.out) == print_of(whole.out)


def test_the_images_of_a_bad_step_are_named(sets: Path, tmp_path: Path) -> None:
    """The step and the state before it know the same place."""
    wild = OptimConfig(kind="sgd", lr=1e30, clip=None)
    config = streamed(sets, tmp_path / "run", optim=wild, ema=0.0, save_every=steps(1))
    with pytest.raises(DivergedError) as caught:
        train(config)
    (file,) = config.out.glob("bad_batch_*.txt")
    step = int(file.stem.removeprefix("bad_batch_")) - 1
    assert str(file) in str(caught.value)
    stream = open_data(config.data, split="train")
    assert isinstance(stream, ImageStream)
    batches = StreamBatches(stream, Augment(), HALF, batch=8, seed=config.seed)
    portion = next(islice(batches.portions(Cursor()), step, None))
    expected = [portion.items.where(number) for number in range(8)]
    assert sorted(file.read_text().splitlines()) == sorted(expected)


def test_epochs_need_a_length(sets: Path, tmp_path: Path) -> None:
    config = streamed(
        sets, tmp_path / "run", length=Duration(2, "epochs"), save_every=Duration(1, "epochs")
    )
    said = refusal(TrainingRun, config, Processes(0, 1, torch.device("cpu")))
    assert "does not say how many images it has" in said
    assert "give --length, --save-every as '1000 steps'" in said


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"val_data": None}, "is a stream, which can't be evaluated on; give --val-data"),
        ({"hold_out": 0.1, "val_data": None}, "is a stream, of which no part can be held out"),
        ({"cache": CacheConfig(limit=1)}, "is a stream, which no cache keeps"),
    ],
)
def test_what_a_stream_cannot_do_is_refused(
    sets: Path, tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    assert said in refusal(train, streamed(sets, tmp_path / "run", **changes))


def test_a_stream_without_a_validation_split_says_what_to_do(tmp_path: Path) -> None:
    alone = write_parquet(tmp_path / "alone", "train", table(range(20)))
    said = refusal(train, streamed(alone, tmp_path / "run", val_data=None))
    assert said == (
        f"{alone} has no split 'val'; it has train, all; give --val-data DATA to evaluate on, or "
        "--val-split '' for no evaluation"
    )


def test_a_stream_needs_no_evaluation_and_has_a_plan(sets: Path, tmp_path: Path) -> None:
    config = streamed(sets, tmp_path / "run", val_data=None, val_split="", length=steps(2))
    planned = estimate(config)
    assert (planned.images, planned.epochs, planned.steps, planned.classes) == (None, None, 2, 3)
    assert train(config).top1 is None


@pytest.fixture
def shards(tmp_path: Path) -> Iterator[tuple[Path, Shelf]]:
    """Write 5 shards of 8 images and put them on a server; another one to measure on."""
    for shard in range(6):
        name = f"train-{shard}.tar" if shard < 5 else "val-0.tar"
        files: dict[str, bytes | str] = {}
        for n in range(shard * 8, shard * 8 + 8):
            files |= {f"{n:03}.png": png(n), f"{n:03}.cls": str(n % 3)}
        tar(tmp_path / "shards" / name, files)
    (tmp_path / "shards" / "classes.txt").write_text("ant\nbee\nox")
    with serving() as shelf:
        shelf.files = {f"/set/{p.name}": p.read_bytes() for p in (tmp_path / "shards").iterdir()}
        yield tmp_path / "shards", shelf


def of_shards(place: str, folder: Path, out: Path, **changes: Any) -> TrainConfig:
    data = f"wds:{place}/train-{{0..4}}.tar,stream=true,buffer=8"
    settings = {"data": data, "val_data": f"wds:{folder}/val-0.tar,take=8", "val_split": "all"}
    return streamed(folder, out, **{**settings, "save_every": steps(2), **changes})


def test_shards_of_a_server_that_cuts_give_the_bytes_of_local_ones(
    shards: tuple[Path, Shelf], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a run on them that was killed amid an epoch ends with the same bytes."""
    folder, shelf = shards
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    local = of_shards(str(folder), folder, tmp_path / "local")
    result = train(local)
    shelf.cuts = [100, 5000, 700, 9000] * 8
    remote = of_shards(f"{shelf.address}/set", folder, tmp_path / "remote")
    assert train(remote).top1 == result.top1
    killed, saved = replace(remote, out=tmp_path / "killed"), "checkpoints/step-00000004"

    def kill(processes: list[ForkServerProcess]) -> None:
        while not (killed.out / saved).exists() and processes[0].is_alive():
            time.sleep(0.001)
        processes[0].kill()

    shelf.pause, shelf.cuts = 0.02, []
    (ended,) = in_processes(lambda: train(killed), 1, meanwhile=kill)
    assert ended.code == -9
    assert (killed.out / saved).exists()
    shelf.pause, shelf.cuts = 0.0, [3000]
    assert train_in_child(killed).code == 0
    prints = [{**print_of(run.out), "result.json": ""} for run in (local, remote, killed)]
    for found in prints[1:]:
        assert found == prints[0]


def test_two_processes_read_shards_of_their_own(shards: tuple[Path, Shelf], tmp_path: Path) -> None:
    """One process stopped and two that resume see the batches that one would have seen."""
    folder, shelf = shards
    config = of_shards(f"{shelf.address}/set", folder, tmp_path / "run", augment=Augment())
    shelf.asked.clear()
    together = in_processes(lambda: train(config).top1, 2)
    assert [each.code for each in together] == [0, 0], together
    asked = [path for path, _ in shelf.asked if path.endswith(".tar")]
    (*_, state) = sorted(config.out.glob("checkpoints/step-*"))
    cursor = json.loads((state / "manifest.json").read_text())["metadata"]["cursor"]
    assert [lane for lane, *_ in cursor[1]] == [0, 1, 2, 3]
    alone = replace(config, out=tmp_path / "alone")
    assert train(alone).images == 8
    (*_, other) = sorted(alone.out.glob("checkpoints/step-*"))
    assert json.loads((other / "manifest.json").read_text())["metadata"]["cursor"] == cursor
    # 80 images of epochs of 40, each shard by one process; and each looks at the first one.
    assert len(asked) < 2 * 5 * 3
