"""What runs learn, one class per case, and which one a run's settings ask for."""

from __future__ import annotations

from vitrail.config import InputError
from vitrail.data.dataset import ImageDataset, ImageStream
from vitrail.tasks.classification import Classification, Distillation
from vitrail.tasks.masked_image_modeling import MaskedImageModeling
from vitrail.tasks.regression import Regression
from vitrail.training.task import Task
from vitrail.training.train_config import TrainConfig


def make_task(config: TrainConfig, dataset: ImageDataset | ImageStream) -> Task:
    """Make the task that `config.task` names."""
    if config.task == "regression":
        return Regression(config, dataset)
    if config.task != "classification":
        return MaskedImageModeling(config, dataset)
    if dataset.regression:
        raise InputError(f"{dataset.name} has numbers to predict, not classes: --task regression")
    return (Distillation if config.distill else Classification)(config, dataset)
