"""Runs on streams: stopped anywhere they end with the same bytes; what needs a length says so."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.data.datasets.hub_sets import own_cache, table, write_parquet
from tests.faults.toy import MODEL, fail_at, print_of, steps, toy
from tests.runs import train
from tests.shelf import refusal
from vitrail.config import Duration
from vitrail.data.cache import CacheConfig
from vitrail.data.dataset import ImageStream
from vitrail.data.datasets.open import open_data
from vitrail.data.loader import LoaderConfig
from vitrail.data.transforms.augment import Augment
from vitrail.distributed import Processes
from vitrail.run import TrainConfig, TrainingRun
from vitrail.run_estimate import estimate
from vitrail.training.loop import DivergedError
from vitrail.training.optimization.optim import OptimConfig


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
    names = [item.where for epoch in range(4) for item in stream.items(config.seed, epoch)]
    expected = names[8 * step : 8 * step + 8]
    found = file.read_text().splitlines()
    assert sorted(found) == sorted(expected)


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
