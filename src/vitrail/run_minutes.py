"""The settings of a run that is given a time: what fits into it, by a few real steps."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import replace

from vitrail.config import Duration
from vitrail.distributed import Processes, process_group
from vitrail.models import parse
from vitrail.run_settings import Configured, RunWords
from vitrail.training.checkpoints.default_folder import read_time_plan
from vitrail.training.optimization.time_plan import (
    ENOUGH,
    FEW,
    LARGER,
    MANY,
    MOST,
    PROBED,
    Afterwards,
    ProbedRun,
    fit_steps,
    measure_image_time,
)
from vitrail.training.parts import Parts
from vitrail.training.train_config import TrainConfig

log = logging.getLogger("vitrail")

OpenRun = Callable[[TrainConfig, Processes, Parts], ProbedRun]
"""Opens a run to take steps of: `vitrail.training_run.TrainingRun`."""


def plan_training(
    config: TrainConfig,
    parts: Parts,
    open_run: OpenRun,
    started: float,
    after: Afterwards,
    *,
    restart: bool,
) -> tuple[TrainConfig, Afterwards]:
    """Choose a length for a time, and what there is time for after training.

    A run that was begun with the same time keeps its plan.
    """
    begun = None if restart else read_time_plan(config)
    if begun is not None:
        return replace(config, length=begun.length), after
    steps, _, after = probe_steps(config, parts, open_run, started, after)
    return replace(config, length=Duration(steps, "steps")), after


def plan_finetuning(
    found: Configured,
    gather: Callable[[TrainConfig], tuple[TrainConfig, Parts]],
    settle: Callable[[str | None, RunWords], Configured],
    open_run: OpenRun,
    started: float,
    after: Afterwards,
    *,
    tune: str | None,
    words: RunWords,
    restart: bool,
) -> tuple[Configured, Afterwards]:
    """Choose a length, and where nobody chose them weights to train and image size, for a time.

    What there is no time for after training is left out.

    `settle` gathers the settings again for other ones, `gather` the parts of a run. A run that was
    begun with the same time keeps its plan.
    """
    begun = None if restart else read_time_plan(found.config)
    if begun is not None:
        if begun.model != found.config.model and words.get("image") is None:
            words = {**words, "image": "x".join(map(str, parse(begun.model).image))}
        found = settle(tune or begun.tune.mode, words)
        return replace(found, config=replace(found.config, length=begun.length)), after

    def probe(found: Configured) -> tuple[int, float, Afterwards]:
        return probe_steps(*gather(found.config), open_run, started, after)

    steps, epochs, kept = probe(found)
    side = max(parse(found.config.model).image)
    if epochs < FEW and tune is None:
        found = settle("last", words)
        steps, epochs, kept = probe(found)
    elif epochs > MANY and words.get("image") is None:
        larger = [each for each in LARGER if side < each < side * math.sqrt(epochs / ENOUGH)]
        if larger:
            found = settle(tune, {**words, "image": larger[-1]})
            steps, epochs, kept = probe(found)
    length = Duration(steps, "steps")
    if epochs > MOST:
        steps, epochs, length = int(steps * MOST / epochs), MOST, Duration(MOST, "epochs")
    config = replace(found.config, length=length)
    size = "x".join(map(str, parse(config.model).image))
    log.info(
        "time     %s: %.3g epochs, %s steps, of %s weights at %s, by a few steps just taken",
        *(f"{config.minutes:g} min", epochs, f"{steps:,}", config.tune.mode, size),
    )
    return replace(found, config=config), kept


def probe_steps(
    config: TrainConfig, parts: Parts, open_run: OpenRun, started: float, after: Afterwards
) -> tuple[int, float, Afterwards]:
    """Take some steps; return how many, how many epochs, and what afterwards fit into the time."""
    assert config.minutes is not None
    seconds, began = 60 * config.minutes, time.monotonic()
    with process_group(config.device) as processes:
        run = open_run(config, processes, parts)
        opened = time.monotonic() - began
        most = min(run.trainer.micro_batch, PROBED)
        each = measure_image_time(run, most=most, least=min(10.0, 0.02 * seconds)).wall
        left = seconds - (time.monotonic() - started) - opened
        kept = after.within(run, each, left)
        steps = fit_steps(run, each, left, kept)
        if kept != after:
            what = "the report and calibration" if kept.report != after.report else "calibration"
            log.warning(
                "time     %g min leave no time for %s; vitrail calibrate and vitrail inspect make "
                "up for it later",
                *(config.minutes, what),
            )
        return steps, steps * config.batch / (run.images or steps * config.batch), kept
