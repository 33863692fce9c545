"""Ray's workers give the answers of one process, to the bit."""

import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.evaluation.sets import save_tiny, write_images
from tests.shelf import refusal
from vitrail.evaluation.engine_ray import ask_ray, encode_on_ray
from vitrail.evaluation.evaluate import ask, prepare
from vitrail.evaluation.features.extract import extract
from vitrail.evaluation.scored import join_answers

ray = pytest.importorskip("ray")


@pytest.fixture
def _quiet() -> Iterator[None]:
    """Ray leaves files and sockets to be collected; what it warns of is not ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.usefixtures("_quiet")
def test_rays_answers_are_those_of_one_process(tmp_path: Path) -> None:
    data, model = write_images(tmp_path / "photos"), save_tiny(tmp_path / "model")
    exam = prepare(str(model), str(data), split="all")
    done: list[int] = []
    parts = ask_ray(exam, batch=4, workers=2, report=done.append)
    assert not ray.is_initialized()  # what was started here has ended
    assert done[-1] == len(exam.source) == 14
    there = join_answers(parts)
    here = join_answers(ask(exam, device=torch.device("cpu"), batch=4))
    for name in ("indices", "labels", "top", "confidence", "losses"):
        np.testing.assert_array_equal(getattr(there, name), getattr(here, name), err_msg=name)
    assert len(there.indices) == 13
    assert {bad.where for bad in there.bad} == {bad.where for bad in here.bad} == {"b/broken.png"}
    plain = extract(exam.model, exam.source, exam.preprocess, batch=4)
    cache, engine = tmp_path / "features", encode_on_ray(2)
    values = extract(
        exam.model, exam.source, exam.preprocess, batch=4, cache=cache, engine=engine
    ).values
    np.testing.assert_array_equal(values, plain.values)
    kept = extract(exam.model, exam.source, exam.preprocess, batch=4, cache=cache)
    np.testing.assert_array_equal(kept.values, plain.values)


def test_a_crew_of_none_is_refused(tmp_path: Path) -> None:
    data, model = write_images(tmp_path / "photos"), save_tiny(tmp_path / "model")
    exam = prepare(str(model), str(data), split="all")
    assert "at least 1" in refusal(ask_ray, exam, workers=0)
