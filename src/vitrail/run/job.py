"""The one job: train as configured, in this process or in several, from where a run stands."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from typing import Any

from vitrail.config import Duration
from vitrail.distributed import Processes, process_group
from vitrail.run.result import Run, describe
from vitrail.run.session import Session
from vitrail.training.checkpoints.run_folder import check_folder, prepare_folder
from vitrail.training.checkpoints.run_lock import run_lock
from vitrail.training.train_config import TrainConfig

log = logging.getLogger("vitrail")


def train(config: TrainConfig, *, restart: bool = False) -> Run:
    """Train a model as configured, from where an earlier call stopped; `restart` begins again."""
    with process_group(config.device) as processes:
        return train_among(processes, config, restart=restart)


def train_among(
    processes: Processes,
    config: TrainConfig,
    *,
    restart: bool = False,
    pause: Duration | None = None,
) -> Run:
    """Train as `train` does, in processes that have met; rest after `pause` if that is given.

    A run that rests is evaluated and saved, and the next call goes on.
    """
    with ExitStack() as stack:

        def look() -> dict[str, Any] | None:
            stack.enter_context(run_lock(config.out))
            return check_folder(config, restart=restart)

        reached = processes.on_main(look)
        if reached is not None:
            result = Run(**{**reached, "folder": config.out})
            log.info("%s: %s", config.out, describe(result))
            return result
        # What can't be run is refused here, before anything of an older run is touched.
        session = Session(config, processes, pause=pause)
        processes.on_main(lambda: prepare_folder(config, restart=restart))
        return session.run()
