"""The one job: a configuration becomes a trained model in a folder that explains itself."""

from vitrail.run.job import train
from vitrail.run.result import Run, describe
from vitrail.run.session import Session
from vitrail.training.train_config import FREE, TrainConfig

__all__ = ["FREE", "Run", "Session", "TrainConfig", "describe", "train"]
