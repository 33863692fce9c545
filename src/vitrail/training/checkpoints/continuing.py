"""A finished run that goes on: more steps after its last, with the schedule restarted."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vitrail.config import OBJECT, InputError, from_dict, read_file
from vitrail.text import show
from vitrail.training.checkpoints.checkpoint_files import latest_checkpoint
from vitrail.training.checkpoints.run_folder import (
    CHECKPOINTS,
    CONFIG,
    MODEL,
    RESTART_HINT,
    RESULT,
    read_result,
)
from vitrail.training.train_config import TrainConfig
from vitrail.weights.model_folder import check_whole

log = logging.getLogger("vitrail")


def settle_more(config: TrainConfig, *, restart: bool = False) -> TrainConfig:
    """Say from which step on a run continues that asks for `more`.

    A run that was continued before keeps that: its plain command resumes it, or shows its result.
    """
    out, asked = config.out, config.more
    begun = None
    if (out / CONFIG).exists() and not restart:
        written = read_file(out / CONFIG)
        try:
            begun = from_dict(TrainConfig, written)
        except InputError as error:
            raise InputError(f"{out / CONFIG}: {error}; {RESTART_HINT}") from None
    if asked is None:
        return config if begun is None else _as_begun(config, begun)
    if begun is None:
        raise InputError(f"--more continues a finished run, and {show(out)} holds none")
    if not (out / RESULT).exists():
        if begun.more == asked:  # it was stopped while it continued
            return _as_begun(config, begun)
        raise InputError(
            f"{show(out)} is not finished; run its command again without --more, to resume it"
        )
    steps = int(read_result(out / RESULT)["steps"])
    saved = latest_checkpoint(out / CHECKPOINTS)
    if saved is None or saved.step != steps:
        raise InputError(
            f"{show(out)} has no checkpoint of its last step, {steps:,}, to continue from; start "
            f"another run from its weights: --weights run:{show(out)} --out OTHER"
        )
    return replace(config, more_from=steps)


def _as_begun(config: TrainConfig, begun: TrainConfig) -> TrainConfig:
    return replace(config, more=begun.more, more_from=begun.more_from)


def keeps_model(config: TrainConfig, reached: Mapping[str, Any]) -> bool:
    """Tell whether a finished run's model folder is whole, or can't but be written again.

    The last checkpoint holds the last weights; where the best were kept there is no other copy.
    """
    try:
        check_whole(config.out / MODEL)
    except InputError as error:
        saved = latest_checkpoint(config.out / CHECKPOINTS) if config.keep == "last" else None
        if saved is None or saved.step != reached["steps"]:
            raise InputError(f"{error}; no checkpoint has its weights: {RESTART_HINT}") from None
        log.warning("%s; it is written again from the checkpoint of step %s", error,
                    f"{saved.step:,}")  # fmt: skip
        return False
    return True


def suggest_own_run(config: TrainConfig) -> str:
    """Say how another run goes on from a finished one, with its data as they are now.

    It has the same settings and begins with the finished one's model; classes are known again by
    their names.
    """
    out, number = config.out, 2
    while (other := out.with_name(f"{out.name}-{number}")).exists():
        number += 1
    if config.data.startswith(OBJECT) or config.parts.model is not None:
        return f"train another run from its model: weights='run:{out}', out='{other}'"
    length = ["--length", str(config.length if config.more is None else config.more)]
    if config.minutes is not None:
        length = ["--minutes", f"{config.minutes:g}"]
    start = ["--config", str(out / CONFIG), "--weights", f"run:{out}"]
    return shlex.join(["vitrail", "train", *start, *length, "--out", str(other)])
