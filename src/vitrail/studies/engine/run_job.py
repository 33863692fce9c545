"""Make one run of a sweep, in whichever process, and write its record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vitrail.config import InputError, import_callable
from vitrail.evaluation.probes.fewshot import fewshot
from vitrail.result import to_plain
from vitrail.run import train
from vitrail.signals import Stopped
from vitrail.studies.engine.jobs import Job, Records
from vitrail.studies.engine.stage_words import LENGTHS, resolve_stage, solve_length, stage_model
from vitrail.studies.engine.sweep_plan import FewShot, Measure, measure_name
from vitrail.training.loop import DivergedError
from vitrail.training.run_result import Run
from vitrail.training.train_config import TrainConfig

EXPLAINED = (InputError, DivergedError, OSError)
"""Errors whose one line says all."""


def run_job(job: Job, chosen: Mapping[str, Any], out: Path) -> str | None:
    """Train, measure and write the record; return why that failed, if it did."""
    records = Records(out)
    try:
        config = configure_job(job, chosen, records)
        run = train(config, report=False)
        measured = measure_run(config.out, job.measures)
    except Stopped:  # which is saved, and goes on with the next call
        raise
    except EXPLAINED as error:
        return str(error) or type(error).__name__
    except Exception as error:  # of somebody's own code, or a bug: the other cells go on
        return f"{type(error).__name__}: {error}".splitlines()[0]
    records.write(job.name, _record(job, chosen, run, measured))
    return None


def configure_job(job: Job, chosen: Mapping[str, Any], records: Records) -> TrainConfig:
    """Gather the settings of a run, its length solved from its budget."""
    words: dict[str, Any] = {**job.words, **chosen}
    name = None
    if job.after is not None:
        words["weights"] = str(records.folder(job.after))
        if stage_model({**words, "model": "-"}) != "-":  # options are added to the weights' name
            from vitrail.weights.load import read_checkpoint

            name = read_checkpoint(words["weights"]).spec.name
    out = records.folder(job.name)
    config = resolve_stage(words, out, seed=job.seed, model=name)
    steps = solve_length(words, config, job.image_seconds)
    if steps is None:
        return config
    words = {key: value for key, value in words.items() if key not in LENGTHS}
    return resolve_stage({**words, "steps": steps}, out, seed=job.seed, model=name)


def _record(
    job: Job, chosen: Mapping[str, Any], run: Run, measured: Mapping[str, float]
) -> dict[str, Any]:
    reached = to_plain(run)
    del reached["run"], reached["machine"]  # which differ each time
    return {"state": "done", "chosen": dict(chosen), "run": reached, "measured": dict(measured)}


def measure_run(folder: Path, measures: Sequence[Measure]) -> dict[str, float]:
    """Measure a finished run; give a number by the name of its column."""
    found: dict[str, float] = {}
    for measure in measures:
        found |= _measure(folder, measure)
    return found


def _measure(folder: Path, measure: Measure) -> dict[str, float]:
    if isinstance(measure, FewShot):
        result = fewshot(folder, measure.data, shots=measure.shots, seeds=measure.seeds)
        rows = result.to_dict()["shots"]
        return {f"{measure.name}_{shots}": row["mean"] for shots, row in rows.items()}
    function = import_callable(measure, "a measure") if isinstance(measure, str) else measure
    value = function(folder)
    if isinstance(value, Mapping):
        return {str(name): float(each) for name, each in value.items()}
    return {measure_name(measure): float(value)}
