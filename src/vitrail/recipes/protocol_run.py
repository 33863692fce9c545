"""The paper's fine-tune protocol: choose a rate on held-out images, then train on all of them.

    RUN/protocol.json        the settings, what each run reached, mean and std
    RUN/grid/lr-0.003/       a run for each learning rate, without the held-out images
    RUN/seed-0/              a run for each seed, on all training images, at the chosen rate

Each is an ordinary run. Call it again to resume.
"""

from __future__ import annotations

import json
import logging
import math
import typing
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from statistics import fmean, stdev
from typing import Any

from vitrail.config import Duration, InputError, from_dict, read_file, to_dict
from vitrail.data.datasets.open import open_data
from vitrail.distributed import Processes, process_group
from vitrail.files import write_whole
from vitrail.recipes.protocol import AT_THE_END, RUNGS, Protocol, ProtocolResult, Seen, Trial
from vitrail.training.checkpoints.run_folder import (
    CONFIG,
    RESTART_HINT,
    check_owned,
    check_settings,
    clear_run,
)
from vitrail.training.checkpoints.run_lock import run_lock
from vitrail.training.logging.log_setup import show_log
from vitrail.training.loop import DivergedError
from vitrail.training.run_result import Run
from vitrail.training.train_config import TrainConfig, free_settings

SUMMARY = "protocol.json"
_ERRORS = 3  # standard errors behind the best that make a run hopeless

log = logging.getLogger("vitrail")


class TrainOne(typing.Protocol):
    """What makes one run: `vitrail.run.train_among`, which stands above this module."""

    def __call__(
        self, processes: Processes, config: TrainConfig, /, *, pause: Duration | None = None
    ) -> Run:
        """Train, or resume; pause early where asked to."""
        ...


def find_hopeless(accuracies: Sequence[float], images: int) -> set[int]:
    """Say which of some runs can be given up, by their accuracies on so many images.

    The better half always continues; of the others, those that chance alone may have put
    behind: by no more than three standard errors of the difference from the best.
    """
    order = sorted(range(len(accuracies)), key=lambda number: -accuracies[number])
    best = max(accuracies)

    def is_behind(part: float) -> bool:
        error = math.sqrt((best * (1 - best) + part * (1 - part)) / images)
        return best - part > _ERRORS * error

    worse = order[math.ceil(len(order) / 2) :]
    return {number for number in worse if is_behind(accuracies[number])}


def run_protocol(protocol: Protocol, train: TrainOne, *, restart: bool = False) -> ProtocolResult:
    """Make all runs of a protocol with `train`, from where an earlier call stopped.

    `restart` begins again.
    """
    with process_group(protocol.config.device) as processes, show_log(), ExitStack() as stack:
        opened = open_data(protocol.config.data, split="train")
        if opened.multilabel or opened.regression:
            data = protocol.config.data
            has = "numbers to predict" if opened.regression else "several labels per image"
            raise InputError(f"the protocol compares top-1, {data} has {has}")

        def begin() -> list[Trial]:
            stack.enter_context(run_lock(protocol.config.out))
            return _prepare(protocol, restart=restart)

        trials = processes.on_main(begin)
        return _ProtocolRun(protocol, train, processes, trials).run()


def _prepare(protocol: Protocol, *, restart: bool) -> list[Trial]:
    """Compare a begun protocol's settings with these; return what its grid has shown."""
    out = protocol.config.out
    if (out / CONFIG).exists():
        raise InputError(f"{out} is the folder of a single run; choose another --out")
    runs = [*(out / "grid").glob("*"), *out.glob("seed-*")]
    for folder in runs:
        check_owned(folder, restart=restart)
    if restart:
        (out / SUMMARY).unlink(missing_ok=True)
        for folder in runs:
            clear_run(folder, whole=True)
    if not (out / SUMMARY).exists():
        return [Trial(lr=rate) for rate in protocol.rates if len(protocol.rates) > 1]
    summary = read_file(out / SUMMARY)
    try:
        old, trials = summary["settings"], [from_dict(Trial, each) for each in summary["trials"]]
    except (KeyError, TypeError, InputError):
        raise InputError(f"{out / SUMMARY} is damaged; {RESTART_HINT}") from None
    check_settings(old, _settings(protocol), free_settings(protocol.config))
    return trials


def _keep(run: Run) -> dict[str, Any]:
    """Take what is the same when a run is repeated."""
    values = asdict(run)
    del values["machine"]
    return {**values, "folder": run.folder.name}


def _settings(protocol: Protocol) -> dict[str, Any]:
    settings = to_dict(protocol)
    settings = {**settings.pop("config"), **settings}
    own = ("out", "hold_out", "hold_out_of")
    return {name: value for name, value in settings.items() if name not in own}


class _ProtocolRun:
    """One process's part of a protocol."""

    def __init__(
        self, protocol: Protocol, train: TrainOne, processes: Processes, trials: list[Trial]
    ) -> None:
        self._protocol, self._train, self._processes = protocol, train, processes
        self._trials = trials
        self._runs: list[Run] = []

    def _say(self, text: str) -> None:
        """Tell what comes next, or what was reached."""
        if self._processes.is_main:
            log.info("%s", text)

    def run(self) -> ProtocolResult:
        """Choose the rate, then train with each seed."""
        seeds = self._protocol.all_seeds()
        rate = self._choose() if self._trials else self._protocol.rates[0]
        for number, seed in enumerate(seeds, 1):
            self._say(f"run {number} of {len(seeds)}: lr {rate:g}, seed {seed}, all images")
            self._runs.append(self._train(self._processes, self._protocol.final(rate, seed)))
            self._write(rate)
        mean, std = self._sum_up()
        assert mean is not None
        return ProtocolResult(
            folder=self._protocol.config.out,
            trials=tuple(self._trials),
            lr=rate,
            runs=tuple(self._runs),
            top1=mean,
            std=std,
        )

    def _sum_up(self) -> tuple[float | None, float | None]:
        """Give mean and std of what all runs reached, once they are through."""
        reached = [run.top1 for run in self._runs if run.top1 is not None]
        if len(reached) < self._protocol.seeds:
            return None, None
        return fmean(reached), stdev(reached) if len(reached) > 1 else None

    def _choose(self) -> float:
        """Find the rate that is best on the held-out images; of equals, with the least loss."""
        for rung, pause in enumerate((*RUNGS, None)):
            for place, trial in enumerate(self._trials):
                if trial.ending is None and len(trial.seen) == rung:
                    self._trials[place] = self._go_on(trial, pause)
                    self._write()
            if pause is not None:
                self._cut(rung)
        finished = [trial for trial in self._trials if trial.ending == "finished"]
        if not finished:
            rates = ", ".join(f"{rate:g}" for rate in self._protocol.rates)
            raise DivergedError(f"every run of the grid diverged ({rates}); try lower --rates")
        best = min(finished, key=lambda trial: (-trial.top1, trial.seen[-1].loss))
        self._say(f"the best is lr {best.lr:g}, with {best.top1:.2%} held out")
        return best.lr

    def _go_on(self, trial: Trial, pause: Duration | None) -> Trial:
        """Train a run of the grid up to a rung, or to its end."""
        self._say(f"grid: lr {trial.lr:g}, up to {pause or AT_THE_END}")
        try:
            run = self._train(self._processes, self._protocol.trial(trial.lr), pause=pause)
        except DivergedError as error:
            self._say(str(error))
            return replace(trial, ending="diverged")
        assert run.top1 is not None
        assert run.loss is not None
        seen = Seen(step=run.steps, top1=run.top1, loss=run.loss, images=run.images)
        ending = None if run.ending == "paused" else "finished"
        return replace(trial, ending=ending, seen=(*trial.seen, seen))

    def _cut(self, rung: int) -> None:
        """End the runs that are hopeless among all that were seen at a rung.

        Asked again when some of them have gone on, it says the same.
        """
        there = [place for place, trial in enumerate(self._trials) if len(trial.seen) > rung]
        if not there:
            return
        seen = [self._trials[place].seen[rung] for place in there]
        images = min(each.images for each in seen)
        for number in find_hopeless([each.top1 for each in seen], images):
            trial = self._trials[there[number]]
            if trial.ending is None:
                self._say(f"grid: lr {trial.lr:g} is hopeless and ends here")
                self._trials[there[number]] = replace(trial, ending="cut")
        self._write()

    def _write(self, rate: float | None = None) -> None:
        """Write all that is known so far."""
        out = self._protocol.config.out
        mean, std = self._sum_up()
        summary = {
            "settings": _settings(self._protocol),
            "trials": [to_dict(trial) for trial in self._trials],
            "lr": rate,
            "runs": [_keep(run) for run in self._runs],
            "top1": mean,
            "std": std,
        }
        text = json.dumps(summary, indent=1) + "\n"
        self._processes.on_main(lambda: write_whole(out / SUMMARY, text))
