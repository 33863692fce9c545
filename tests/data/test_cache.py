"""Decoded images kept once per machine: the same pixels, bounded, made again if damaged."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.data.sets import HALF, Listed, encode, images, photo
from tests.forks import in_processes
from tests.shelf import refusal
from vitrail.config import InputError
from vitrail.data.batches import EvalBatches, TrainBatches
from vitrail.data.cache import CacheConfig, keep_decoded
from vitrail.data.dataset import FixedSizeDataset
from vitrail.data.transforms.augment import AUGMENTS


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "usual"))


MIXED = Listed(
    [encode(photo(0, 20, 24)), encode(photo(1, 30, 12)), b"no image", encode(photo(2, 9, 9))]
)


@pytest.mark.parametrize("on_disk", [False, True])
def test_batches_are_the_same_with_and_without(tmp_path: Path, on_disk: bool) -> None:
    folder = tmp_path / "cache" if on_disk else None
    kept = keep_decoded(MIXED, HALF, CacheConfig(limit=1.0, folder=folder), workers=2)
    assert kept.where(1) == "p1.png"
    for step in range(4):
        batches = [
            TrainBatches(dataset, AUGMENTS["none"], HALF, batch=3, seed=1)
            for dataset in (MIXED, kept)
        ]
        assert torch.equal(batches[0][step].images, batches[1][step].images)
    bad = EvalBatches(kept, HALF, batch=9)[0].bad
    assert [image.where for image in bad] == ["p2.png"]


def test_images_of_one_size_become_one_array() -> None:
    dataset = images(5)
    kept = keep_decoded(dataset, HALF, CacheConfig(limit=1.0))
    assert isinstance(kept, FixedSizeDataset)
    pixels = kept.take(np.arange(5))
    assert pixels.shape == (5, 20, 24, 3)
    assert np.array_equal(pixels[3], photo(3))
    assert kept.where(3) == "p3.png"
    assert keep_decoded(kept, HALF, CacheConfig(limit=1.0)) is kept


def test_what_does_not_fit_is_read_as_before() -> None:
    dataset = images(5)  # 1,440 bytes each
    kept = keep_decoded(dataset, HALF, CacheConfig(limit=3_000 / 1e9))
    forms = [type(kept.read(index)) for index in range(5)]
    assert forms == [np.ndarray, np.ndarray, bytes, bytes, bytes]
    assert keep_decoded(dataset, HALF, CacheConfig()) is dataset


def test_a_cache_on_disk_is_found_again_and_knows_its_set(tmp_path: Path) -> None:
    tmp_path /= "decoded"
    config = CacheConfig(limit=1.0, folder=tmp_path)
    done: list[int] = []
    keep_decoded(MIXED, HALF, config, report=done.append)
    assert done[-1] == 4
    done.clear()
    keep_decoded(MIXED, HALF, config, report=done.append)
    assert done == []  # nothing was decoded again
    keep_decoded(images(4), HALF, replace(config, short_side=8), report=done.append)
    assert done[-1] == 4
    assert len(list(tmp_path.iterdir())) == 2
    assert not list(tmp_path.glob(".*"))


def test_a_short_side_keeps_small_images_as_they_are() -> None:
    kept = keep_decoded(MIXED, HALF, CacheConfig(limit=1.0, short_side=10))
    shapes = [np.asarray(kept.read(index)).shape for index in (0, 1, 3)]
    assert shapes == [(10, 12, 3), (25, 10, 3), (9, 9, 3)]


@pytest.mark.parametrize("name", ["pixels.bin", "offsets.npy", "shapes.npy"])
@pytest.mark.parametrize("left", [0, 40, -1])
def test_a_damaged_cache_is_made_again(tmp_path: Path, name: str, left: int) -> None:
    """A machine that lost its power may leave a file with a part of its content."""
    config = CacheConfig(limit=1.0, folder=tmp_path)
    keep_decoded(MIXED, HALF, config)
    (file,) = tmp_path.glob(f"*/{name}")
    whole = file.read_bytes()
    file.write_bytes(whole[:left])
    kept = keep_decoded(MIXED, HALF, config)
    assert np.array_equal(kept.read(1), photo(1, 30, 12))
    assert file.read_bytes() == whole


def test_caches_are_within_the_limit_together(tmp_path: Path) -> None:
    config = CacheConfig(limit=8_000 / 1e9, folder=tmp_path)
    first, second = images(5), images(4)  # 1,440 bytes each
    kept = keep_decoded(first, HALF, config)
    assert len(list(tmp_path.iterdir())) == 1
    keep_decoded(second, HALF, config)
    (left,) = tmp_path.iterdir()  # the older one is gone, and who has it keeps it
    assert (left / "pixels.bin").stat().st_size == 4 * 1_440
    assert np.array_equal(kept.read(4), photo(4))


def test_processes_share_one_cache(tmp_path: Path) -> None:
    """One decodes, the others wait and map the same file."""
    config = CacheConfig(limit=1.0, folder=tmp_path)

    def keep() -> tuple[int, bool]:
        done: list[int] = []
        kept = keep_decoded(images(60), HALF, config, workers=0, report=done.append)
        assert isinstance(kept, FixedSizeDataset)
        return sum(1 for _ in done), bool(np.array_equal(kept.read(7), photo(7)))

    ended = in_processes(keep, 3)
    assert [each.code for each in ended] == [0, 0, 0], ended
    assert sorted(each.value for each in ended) == [(0, True), (0, True), (4, True)]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="the cache could not be written"):
        keep_decoded(MIXED, HALF, CacheConfig(limit=1.0, folder=tmp_path / "file"))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"limit": -1}, "cache.limit must be at least 0, got -1"),
        ({"limit": 1, "short_side": 0}, "cache.short_side must be at least 1, got 0"),
        ({"short_side": 64}, "cache.short_side is only used with a cache.limit above 0"),
        ({"folder": Path("x")}, "cache.folder is only used with a cache.limit above 0"),
    ],
)
def test_settings_that_are_refused(wrong: dict[str, Any], said: str) -> None:
    assert refusal(CacheConfig, **wrong) == said
