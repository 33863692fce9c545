"""Commands that read DATA look at a few of its images before they work on all of them."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import vitrail
from tests.coin_flips import write_noise
from tests.evaluation.sets import save_tiny
from vitrail.config import InputError
from vitrail.data.batches import EvalBatches
from vitrail.evaluation.choosing.rank_backbones import rank_backbones

READERS: dict[str, Callable[..., Any]] = {
    "evaluate": lambda model, data, out: vitrail.evaluate(model, data),
    "probe": lambda model, data, out: vitrail.probe(model, data),
    "knn": lambda model, data, out: vitrail.knn(model, data),
    "fewshot": lambda model, data, out: vitrail.fewshot(model, data),
    "embed": lambda model, data, out: vitrail.embed(model, data, out=out / "x.parquet"),
    "calibrate": lambda model, data, out: vitrail.calibrate(model, data),
    "compare": lambda model, data, out: vitrail.compare([model, model], data),
    "clean": lambda model, data, out: vitrail.clean(data, model=model, out=out / "x.html"),
    "inspect": lambda model, data, out: vitrail.inspect(model, data=data, out=out / "x.d"),
    "choose": lambda model, data, out: rank_backbones([model], data),
}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))


def damage(folder: Path, good: int) -> Path:
    """Overwrite all images of a folder but the first of each class."""
    for each in folder.iterdir():
        for path in sorted(each.iterdir())[good:]:
            path.write_bytes(b"\x89PNG no longer")
    return folder


@pytest.mark.parametrize("name", READERS)
def test_mostly_unreadable_images_are_refused_before_any_is_prepared(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = damage(write_noise(tmp_path / "photos", 20), 2)
    model = save_tiny(tmp_path / "model", ("heads", "tails"), outputs=2)
    read: list[int] = []
    prepare = EvalBatches.__getitem__
    monkeypatch.setattr(
        EvalBatches, "__getitem__", lambda self, step: read.append(step) or prepare(self, step)
    )
    with pytest.raises(InputError, match=r"images looked at can't be read, such as .*\.png: "):
        READERS[name](str(model), str(data), tmp_path)
    assert not read
    assert not list(tmp_path.glob("x.*"))


@pytest.mark.parametrize("name", ["evaluate", "probe", "embed"])
def test_levels_are_said_before_the_work(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitrail.data.datasets.open._said", set())  # each is said once
    for number in range(20):
        path = tmp_path / "deep" / ("heads", "tails")[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        values = np.random.default_rng(number).integers(0, 1024, (8, 8))
        Image.fromarray(values.astype(np.uint16)).save(path)
    model = save_tiny(tmp_path / "model", ("heads", "tails"), outputs=2)
    with caplog.at_level(logging.WARNING, "vitrail"):
        READERS[name](str(model), str(tmp_path / "deep"), tmp_path)
    assert any("levels   0 to 1023 are in use" in each.getMessage() for each in caplog.records)


def test_few_unreadable_images_are_skipped_as_ever(tmp_path: Path) -> None:
    data = damage(write_noise(tmp_path / "photos", 20), 15)
    found = vitrail.evaluate(
        str(save_tiny(tmp_path / "model", ("heads", "tails"), outputs=2)), str(data)
    )
    assert (found.images, found.skipped) == (30, 10)
