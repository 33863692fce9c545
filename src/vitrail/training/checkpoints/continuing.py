"""A finished run that goes on: more steps after its last, with the schedule restarted."""

from __future__ import annotations

from dataclasses import replace

from vitrail.config import InputError, from_dict, read_file
from vitrail.text import show
from vitrail.training.checkpoints.checkpoint_files import latest_checkpoint
from vitrail.training.checkpoints.run_folder import CHECKPOINTS, CONFIG, RESULT
from vitrail.training.train_config import TrainConfig


def settle_more(config: TrainConfig, *, restart: bool = False) -> TrainConfig:
    """Say from which step on a run continues that asks for `more`.

    A run that was continued before keeps that: its plain command resumes it, or shows its result.
    """
    out, asked = config.out, config.more
    begun = None
    if (out / CONFIG).exists() and not restart:
        begun = from_dict(TrainConfig, read_file(out / CONFIG))
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
    steps = int(read_file(out / RESULT)["steps"])
    saved = latest_checkpoint(out / CHECKPOINTS)
    if saved is None or saved.step != steps:
        raise InputError(
            f"{show(out)} has no checkpoint of its last step, {steps:,}, to continue from; start "
            f"another run from its weights: --weights run:{show(out)} --out OTHER"
        )
    return replace(config, more_from=steps)


def _as_begun(config: TrainConfig, begun: TrainConfig) -> TrainConfig:
    return replace(config, more=begun.more, more_from=begun.more_from)
