"""All settings of a run, and which of them a resumed one may change."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from vitrail.config import Duration, InputError
from vitrail.data.cache import CacheConfig
from vitrail.data.loader import LoaderConfig
from vitrail.data.transforms.augment import Augment
from vitrail.data.transforms.preprocess import Fit, Interpolation
from vitrail.models.pretraining.masked import MIMConfig
from vitrail.training.optim import OptimConfig
from vitrail.training.peft import TuneConfig
from vitrail.training.precision import Precision
from vitrail.training.schedule import ScheduleConfig
from vitrail.training.tasks import DistillConfig, LossConfig

FREE = (
    *(
        "out",
        "device",
        "micro_batch",
        "sharding",
        "checkpointing",
        "compile",
        "loader",
        "cache.limit",
    ),
    *("cache.folder", "max_unreadable", "eval_every", "save_every", "log_every", "loggers"),
)
"""Settings that change nothing in what a run computes, so that a resumed one may have others."""


@dataclass(frozen=True, kw_only=True)
class PreprocessConfig:
    """How evaluation fits images to the model; what is left open is as the weights have it.

    Fresh ones have it as the paper: the whole image, stretched bilinearly.
    """

    fit: Fit | None = None
    """`stretch` to the size, or `crop` the center (`small`: with big_vision's rounding)."""
    crop: float | None = None
    """The part of the resized image's side that is kept."""
    interpolation: Interpolation | None = None


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """All settings of a run."""

    data: str
    """Images to learn from: a folder, cifar10:DIR, hf:NAME, digits, shapes, …"""
    model: str
    """A model's name, such as ViT-B/16 or ViT-S/16@384."""
    out: Path
    """The run's folder."""
    weights: str | None = None
    """Pre-trained weights to start from; fresh ones without."""
    val_split: str = "val"
    """The split that is evaluated on while training; an empty one for none."""
    val_data: str | None = None
    """The set that this split is of, where it is another than `data`."""
    hold_out: float = 0.0
    """Part of the training images, of each class alike, that is evaluated on instead; 0: none."""
    task: Literal["classification", "masked-patches", "mae"] = "classification"
    """What is learnt: labels, or, without any, the patches that the model is not shown."""
    mim: MIMConfig = field(default_factory=MIMConfig)
    """Of `masked-patches` and `mae`."""
    length: Duration = field(default=Duration(100, "epochs"))
    batch: int = 512
    """Images a step, over all processes."""
    micro_batch: int | None = None
    """Images that go through the model at a time in each process; chosen unless given."""
    augment: Augment = field(default_factory=Augment)
    repeats: int = 1
    """Times that each image is in its batch, each time augmented anew (arXiv 1902.05509)."""
    preprocess: PreprocessConfig = field(default_factory=PreprocessConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    distill: DistillConfig | None = None
    optim: OptimConfig = field(default_factory=OptimConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    tune: TuneConfig = field(default_factory=TuneConfig)
    ema: float = 0.0
    """Decay of the moving average of weights that is evaluated and kept; 0 for none."""
    patience: int = 0
    """Evaluations without a better one after which the run ends; 0 never ends it."""
    keep: Literal["last", "best"] = "last"
    """Which weights the model folder gets: the last, or the best on the validation split."""
    eval_every: Duration = field(default=Duration(1, "epochs"))
    save_every: Duration = field(default=Duration(1, "epochs"))
    log_every: int = 10
    """Steps between lines of metrics."""
    seed: int = 0
    max_unreadable: float = 0.1
    """Part of the images that may be unreadable."""
    precision: Precision = "auto"
    sharding: Literal["none", "full"] = "none"
    """Whether each process holds all weights, or a part of them and of the optimizer's state."""
    compile: bool = False
    checkpointing: bool = False
    """Keep only each block's input, and compute the rest again: less memory, a third more time."""
    device: str | None = None
    loader: LoaderConfig = field(default_factory=LoaderConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    loggers: tuple[str, ...] = ("tensorboard",)

    def __post_init__(self) -> None:
        least_of = {"batch": 1, "micro_batch": 1, "repeats": 1, "patience": 0, "log_every": 0}
        for name, least in least_of.items():
            if (value := getattr(self, name)) is not None and value < least:
                raise InputError(f"{name} is at least {least}, not {value}")
        if not 0 <= self.ema < 1:
            raise InputError(f"ema is a decay from 0 to below 1, not {self.ema}")
        if not 0 <= self.hold_out < 1:
            raise InputError(f"hold_out is a part from 0 to below 1, not {self.hold_out}")
        if not 0 <= self.max_unreadable <= 1:
            raise InputError(f"max_unreadable is a part from 0 to 1, not {self.max_unreadable}")
        if self.task != "classification":
            self._check_unlabeled()

    def _check_unlabeled(self) -> None:
        """Refuse what only learning from labels has."""
        if self.augment.mixup or self.augment.cutmix:
            raise InputError(f"{self.task} can't predict mixed images; leave mixup and cutmix 0")
        if self.distill is not None:
            raise InputError(f"{self.task} has no answers that a teacher could give; leave distill")
        if self.tune.mode != "all":
            raise InputError(f"{self.task} trains all weights, not tune.mode {self.tune.mode}")


def free_settings(config: TrainConfig) -> set[str]:
    """Say which settings a resumed run may change, given the others."""
    free = set(FREE)
    if config.patience > 0 or config.keep == "best":  # by which the number of evaluations counts
        free.discard("eval_every")
    if config.cache.short_side is not None:  # images that are kept differ from those that aren't
        free.discard("cache.limit")
    return free
