"""What runs learn, one class per case, and which one a run's settings ask for."""

from __future__ import annotations

from vitrail.data.dataset import ImageDataset, ImageStream
from vitrail.tasks.classification import Classification, Distillation
from vitrail.tasks.masked_image_modeling import MaskedImageModeling
from vitrail.training.task import Task
from vitrail.training.train_config import TrainConfig


def make_task(config: TrainConfig, dataset: ImageDataset | ImageStream) -> Task:
    """Make the task that `config.task` names."""
    if config.task != "classification":
        return MaskedImageModeling(config, dataset)
    return (Distillation if config.distill else Classification)(config, dataset)
