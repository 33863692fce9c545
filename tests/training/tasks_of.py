"""Tasks on their own, without a run around them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrail.data.dataset import ArrayDataset
from vitrail.data.transforms.preprocess import Preprocess
from vitrail.tasks.classification import Classification, Distillation
from vitrail.tasks.masked_image_modeling import MaskedImageModeling
from vitrail.tasks.regression import Regression
from vitrail.training.losses import DistillConfig, LossConfig
from vitrail.training.task import Task
from vitrail.training.train_config import TrainConfig

CPU = torch.device("cpu")
TINY = "ViT/4@8,depth=1,width=8,heads=1,mlp=8"


def images_of(classes: int, *, multilabel: bool = False) -> ArrayDataset:
    """Make a dataset of one black image."""
    names = [str(number) for number in range(classes)]
    labels = np.zeros((1, classes), np.uint8) if multilabel else np.zeros(1, np.int64)
    return ArrayDataset("toy", names, labels, np.zeros((1, 2, 2, 1), np.uint8))


def config_of(model: str = TINY, **settings: Any) -> TrainConfig:
    return TrainConfig(data="toy", model=model, out=Path("out"), **settings)


def classification(
    classes: int,
    preprocess: Preprocess,
    loss: LossConfig | None = None,
    *,
    multilabel: bool = False,
) -> Classification:
    config = config_of(loss=loss or LossConfig())
    task = Classification(config, images_of(classes, multilabel=multilabel))
    task.setup(preprocess, CPU)
    return task


def distillation(
    classes: int,
    preprocess: Preprocess,
    distill: DistillConfig,
    teach: Callable[[Tensor], Tensor],
    model: str = TINY,
) -> Distillation:
    """Make a distillation from a teacher that is a function."""
    task = Distillation(config_of(model, distill=distill), images_of(classes))
    Task.setup(task, preprocess, CPU)
    task.teach = teach  # type: ignore[assignment]
    return task


def masked_image_modeling(model: str, preprocess: Preprocess, **settings: Any) -> Task:
    settings = {"task": "masked-patches", **settings}
    task = MaskedImageModeling(config_of(model, **settings), images_of(2))
    task.setup(preprocess, CPU)
    return task


def regression(preprocess: Preprocess) -> Task:
    """Make a regression of two numbers."""
    labels = np.array([[1, 2], [3, 5]], np.float32)
    dataset = ArrayDataset("toy", ["age", "weight"], labels, np.zeros((2, 2, 2, 1), np.uint8))
    task = Regression(config_of(task="regression"), dataset)
    task.setup(preprocess, CPU)
    return task
