"""Which runs the paper's fine-tune protocol makes, and what it found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from vitrail.config import Duration, InputError, validate
from vitrail.result import Result, ResultTable, plain_fields
from vitrail.training.run_result import Run
from vitrail.training.train_config import TrainConfig

RUNGS = (Duration(25, "%"), Duration(50, "%"))
"""Where the runs of the grid are compared, and those that are hopeless end."""
AT_THE_END = Duration(100, "%")
"""When a run is evaluated besides, as nothing is gained by more."""


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """Which runs are made."""

    config: TrainConfig
    """Of all runs, but for the learning rate, the seed and what is held out."""
    rates: tuple[float, ...]
    held_out: float
    """Fraction of the training images on which the rate is chosen."""
    seeds: int = 3
    """Runs on all images; their seeds count up from the configuration's."""

    def __post_init__(self) -> None:
        validate(self)
        if not self.rates or min(self.rates) <= 0 or len({*self.rates}) < len(self.rates):
            shown = ", ".join(f"{rate:g}" for rate in self.rates) or "none"
            raise InputError(f"expected learning rates above 0, each once, got {shown}")
        if not 0 < self.held_out < 1:
            raise InputError(f"the held-out fraction must be in (0, 1), got {self.held_out}")
        if self.seeds < 1:
            raise InputError(f"expected at least one seed, got {self.seeds}")
        if self.config.task != "classification":
            raise InputError(f"the protocol compares accuracies; {self.config.task} has none")
        if self.config.keep != "last" or self.config.patience:
            raise InputError("the protocol keeps the last weights; leave --keep and --patience out")
        if self.config.hold_out or not self.config.val_split:
            raise InputError(
                "the protocol chooses what is held out; leave out --hold-out and --val-split"
            )

    def trial(self, rate: float) -> TrainConfig:
        """Configure the grid's run at a rate."""
        folder = self.config.out / "grid" / f"lr-{rate:g}"
        config = replace(
            self.config,
            out=folder,
            hold_out=self.held_out,
            hold_out_of="train",  # the final runs are evaluated on the others
            val_data=None,  # which only the final runs are evaluated on
            eval_every=AT_THE_END,
        )
        return replace(config, optim=replace(config.optim, lr=rate))

    def final(self, rate: float, seed: int) -> TrainConfig:
        """Configure a run on all images."""
        folder = self.config.out / f"seed-{seed}"
        config = replace(self.config, out=folder, seed=seed, eval_every=AT_THE_END)
        return replace(config, optim=replace(config.optim, lr=rate))

    def all_seeds(self) -> range:
        """Give the seeds of the runs on all images."""
        return range(self.config.seed, self.config.seed + self.seeds)


@dataclass(frozen=True, kw_only=True)
class Seen:
    """How a run of the grid did on the held-out images after a step."""

    step: int
    top1: float
    loss: float
    images: int


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A run of the grid so far."""

    lr: float
    ending: Literal["finished", "cut", "diverged"] | None = None
    """None while it runs; `cut` if it was hopeless."""
    seen: tuple[Seen, ...] = ()

    @property
    def top1(self) -> float:
        """Say how it did when it was last seen."""
        return self.seen[-1].top1


@dataclass(frozen=True, kw_only=True)
class ProtocolResult(Result):
    """What the protocol found."""

    folder: Path
    trials: tuple[Trial, ...]
    lr: float
    """The learning rate that was best on the held-out images."""
    runs: tuple[Run, ...]
    """One for each seed, evaluated on images that no choice has seen."""
    top1: float
    """Their mean."""
    std: float | None
    """Their sample std (over n - 1); None for a single run."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, ready for JSON."""
        values = plain_fields(self)
        runs = [run.to_dict() for run in self.runs]
        del values["runs"]
        return {"run": values.pop("folder"), **values, "runs": runs}

    def summary(self) -> Iterator[ResultTable | str]:
        """Give the grid, each run, mean and std."""
        rows = []
        for trial in self.trials:
            seen = trial.seen[-1] if trial.seen else None
            shown = ("", "") if seen is None else (f"{seen.top1:.2%}", f"{seen.step:,}")
            rows.append((f"{trial.lr:g}", *shown, str(trial.ending)))
        if rows:
            yield ResultTable(("learning rate", "held out", "steps", "ending"), rows)
        for run in self.runs:
            yield f"{run.folder}: {run}"
        spread = "" if self.std is None else f" ± {100 * self.std:.2f}"
        runs = f"{len(self.runs)} runs" if len(self.runs) > 1 else "1 run"
        yield f"{self.folder}: lr {self.lr:g}, top-1 {100 * self.top1:.2f}{spread} % of {runs}"
