"""One of torchrun's processes: it trains the toy and may, in its first life, get a signal."""

import faulthandler
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.faults.toy import toy
from tests.runs import train
from vitrail import distributed
from vitrail.data.batches import Batch
from vitrail.data.loader import LoaderConfig
from vitrail.run import TrainConfig
from vitrail.signals import Signals
from vitrail.training.loop import LaunchedStep, Trainer


def group(out: Path, **changes: Any) -> TrainConfig:
    """Configure the toy to tell every step, and to have several micro-batches in each process."""
    return toy(
        out, **{"log_every": 1, "micro_batch": 3, "loader": LoaderConfig(workers=1), **changes}
    )


def main(out: str, sharding: str, rank: str, step: str, signal_number: str) -> None:
    """Train in this process, which gets a signal before a step, at most once, if it has a rank."""
    faulthandler.dump_traceback_later(100, exit=True)  # so that no test waits for ever
    torch.set_num_threads(1)
    number = int(signal_number)
    if number == signal.SIGSTOP:
        distributed.PATIENCE = timedelta(seconds=20)
    chosen = os.environ["RANK"] == rank and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    real = Trainer.launch

    def disturbed(
        self: Trainer, at: int, batch: Batch, signals: Signals, save_due: bool = False
    ) -> LaunchedStep:
        if chosen and at == int(step):
            Path(out, "struck").write_text(f"{os.getpid()} {time.time()}")
            if number == signal.SIGTERM:  # the launcher gets it, and passes it on
                os.kill(os.getppid(), number)
                while not signals.number:
                    time.sleep(0.01)
            else:
                os.kill(os.getpid(), number)
        return real(self, at, batch, signals, save_due)

    pytest.MonkeyPatch().setattr(Trainer, "launch", disturbed)
    train(group(Path(out), sharding=sharding))


if __name__ == "__main__":
    main(*sys.argv[1:])
