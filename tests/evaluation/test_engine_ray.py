"""Ray's workers give the predictions of one process, to the bit."""

import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.evaluation.sets import save_tiny, write_images
from tests.shelf import refusal
from vitrail.data.batches import EvalBatches
from vitrail.evaluation.dataset_predictions import ClassMatching, join_predictions, predict_dataset
from vitrail.evaluation.engine_ray import map_on_ray, predict_on_ray
from vitrail.evaluation.evaluate import open_matched
from vitrail.evaluation.features.extract import extract
from vitrail.weights.load import load
from vitrail.weights.loaded import LoadedModel

ray = pytest.importorskip("ray")
CPU = torch.device("cpu")


@pytest.fixture
def _quiet() -> Iterator[None]:
    """Ray leaves files and sockets to be collected; what it warns of is not ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.usefixtures("_quiet")
def test_rays_predictions_are_those_of_one_process(tmp_path: Path) -> None:
    data, model = write_images(tmp_path / "photos"), save_tiny(tmp_path / "model")
    loaded, batches, matching = opened(model, data)
    done: list[int] = []
    parts = predict_on_ray(loaded, batches, matching, device="cpu", workers=2, report=done.append)
    assert not ray.is_initialized()  # what was started here has ended
    assert done[-1] == len(batches.dataset) == 14
    there = join_predictions(parts)
    here = join_predictions(predict_dataset(loaded.model, batches, matching, device=CPU))
    for name in ("indices", "labels", "top", "confidence", "losses"):
        np.testing.assert_array_equal(getattr(there, name), getattr(here, name), err_msg=name)
    assert len(there.indices) == 13
    for found in (there, here):
        assert {image.where for image in found.unreadable} == {"b/broken.png"}
    given = (loaded.model, batches.dataset, batches.preprocess)
    plain = extract(*given, batch=4)
    cache, engine = tmp_path / "features", partial(map_on_ray, workers=2)
    values = extract(*given, batch=4, cache=cache, engine=engine).values
    np.testing.assert_array_equal(values, plain.values)
    kept = extract(*given, batch=4, cache=cache)
    np.testing.assert_array_equal(kept.values, plain.values)


def opened(model: Path, data: Path) -> tuple[LoadedModel, EvalBatches, ClassMatching]:
    loaded = load(str(model))
    images, matching, _ = open_matched(loaded, str(data), split="all")
    assert loaded.preprocess
    return loaded, EvalBatches(images.dataset, loaded.preprocess, batch=4), matching


def test_no_workers_and_numbered_devices_are_refused(tmp_path: Path) -> None:
    data, model = write_images(tmp_path / "photos"), save_tiny(tmp_path / "model")
    given = opened(model, data)
    assert "must be at least 1" in refusal(predict_on_ray, *given, workers=0)
    said = "--engine ray takes --device cpu or cuda, got 'cuda:1'"
    assert refusal(predict_on_ray, *given, device="cuda:1") == said
