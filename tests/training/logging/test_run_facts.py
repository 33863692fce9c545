"""What a run tells about itself: what it was, and what it cost."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.faults.toy import fail_at, steps, toy
from tests.runs import train
from vitrail.models import parse
from vitrail.models.cost.total import cost_of
from vitrail.models.cost.training_cost import training_cost
from vitrail.training.checkpoints.run_folder import identify_run
from vitrail.training.losses import DistillConfig
from vitrail.training.peft import TuneConfig
from vitrail.training.run_result import Run


def test_a_run_tells_what_it_was_and_what_it_took(tmp_path: Path) -> None:
    config = toy(tmp_path / "run", length=steps(4))
    run = train(config)
    spec = replace(parse(config.model), classes=10)
    assert (run.seed, run.images_seen, run.model) == (5, 4 * 16, str(spec))
    assert run.parameters == run.trained_parameters == cost_of(spec).parameters
    assert run.flops == training_cost(spec).flops * 4 * 16
    assert run.settings == identify_run(config)["settings"]
    assert run.machine is not None
    assert run.machine.wall_seconds > 0
    assert run.machine.processor_seconds > 0
    assert run.machine.peak_memory is not None
    assert run.machine.peak_memory > 50e6  # torch alone needs more
    assert set(run.machine.versions or ()) == {"vitrail", "torch", "numpy", "python"}
    kept = json.loads((config.out / "result.json").read_text())
    assert Run.load(config.out, kept) == run
    assert train(config) == run  # which is read, not run again


@pytest.mark.parametrize("every", [1, 2])
def test_operations_that_checkpointing_repeats_are_left_out(tmp_path: Path, every: int) -> None:
    config = toy(tmp_path, length=steps(1), checkpointing=True, checkpoint_every=every)
    run = train(config)
    assert run.flops == training_cost(replace(parse(config.model), classes=10)).flops * 16


def test_operations_are_by_tuning_and_teacher(tmp_path: Path) -> None:
    teacher = train(toy(tmp_path / "teacher", length=steps(1)))
    source = str(teacher.folder / "model")
    spec = replace(parse(toy(Path()).model), classes=10)
    tune = TuneConfig(mode="head")
    tuned = train(toy(tmp_path / "tuned", weights=source, length=steps(2), tune=tune))
    assert tuned.flops == training_cost(spec, tune=tune).flops * 2 * 16
    assert tuned.trained_parameters is not None
    assert tuned.parameters is not None
    assert tuned.trained_parameters < tuned.parameters
    distilled = toy(tmp_path / "distilled", length=steps(2), distill=DistillConfig(teacher=source))
    assert train(distilled).flops == training_cost(spec, teacher=spec).flops * 2 * 16


def test_time_is_summed_over_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = toy(tmp_path / "run", length=steps(6), save_every=steps(2))
    with monkeypatch.context() as patch:
        fail_at(patch, 5)
        with pytest.raises(ZeroDivisionError):
            train(config)
    path = config.out / "machine.json"
    before = json.loads(path.read_text())
    path.write_text(json.dumps({**before, "wall_seconds": 1e6, "processor_seconds": 2e6}))
    run = train(config)
    assert run.machine is not None
    assert 1e6 < run.machine.wall_seconds < 1e6 + 1e5
    assert 2e6 < run.machine.processor_seconds < 2e6 + 1e5
    again = train(config, restart=True)
    assert again.machine is not None
    assert again.machine.wall_seconds < 1e5
    assert replace(again, machine=None) == replace(run, machine=None)
