"""All settings of a run, and which of them a resumed one may change."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from vitrail.config import (
    Duration,
    InputError,
    NonNegativeInt,
    PositiveInt,
    Range,
    UnitFloat,
    UsedIf,
    validate,
)
from vitrail.data.cache import CacheConfig
from vitrail.data.class_balance import Balance
from vitrail.data.loader import LoaderConfig
from vitrail.data.transforms.augment import Augment
from vitrail.data.transforms.preprocess import Fit, Interpolation
from vitrail.models.pretraining.mim import MIMConfig, check_mim
from vitrail.training.losses import DistillConfig, LossConfig
from vitrail.training.optimization.optim import OptimConfig
from vitrail.training.optimization.precision import Precision
from vitrail.training.optimization.schedule import ScheduleConfig
from vitrail.training.peft import TuneConfig

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
    *("more", "more_from"),
    *("cache.folder", "max_unreadable", "eval_every", "save_every", "log_every", "loggers"),
    "fewshot",
)
"""Settings that change nothing in what a run computes, so that a resumed one may have others."""


@dataclass(frozen=True, kw_only=True)
class PreprocessConfig:
    """How evaluation fits images to the model; what is left open is as the weights have it.

    Fresh ones have it as the paper: the whole image, stretched bilinearly.
    """

    fit: Fit | None = None
    """`stretch` to the size, or `crop` the center (`small`: with big_vision's rounding)."""
    crop: Annotated[float, Range("(0, 1]")] | None = None
    """The part of the resized image's side that is kept."""
    interpolation: Interpolation | None = None
    patches: NonNegativeInt | None = None
    """Patch budget (NaFlex): images keep their aspect ratio, in at most so many patches, also in
    training; 0 for images of one size."""

    def __post_init__(self) -> None:
        validate(self, "preprocess")


@dataclass(frozen=True, kw_only=True)
class PartsConfig:
    """Parts of your own by import path, `package.module:name` (docs/own-parts.md)."""

    task: str | None = None
    """A subclass of `vitrail.Task`."""
    model: str | None = None
    """A function that takes the built model and returns it with parts of your own."""
    optimizer: str | None = None
    """A class or function that takes parameter groups, such as torch.optim.RMSprop."""
    schedule: str | None = None
    """A function from step and number of steps to a factor of the learning rate."""
    transform: str | None = None
    """An augmentation: a function of an image and a random generator."""
    metrics: tuple[str, ...] = ()
    """Functions of outputs and labels, computed at each evaluation."""
    callbacks: tuple[str, ...] = ()
    """Subclasses of `vitrail.Callback`."""

    def __post_init__(self) -> None:
        validate(self, "parts")


@dataclass(frozen=True, kw_only=True)
class FewShotConfig:
    """Few-shot accuracy on other images while a run trains, of the weights that are evaluated."""

    data: str = ""
    """The images: a folder, pets:DIR, digits, …; empty for none."""
    shots: tuple[PositiveInt, ...] = (5,)
    """Images per class that the classifier learns from."""
    seeds: PositiveInt = 3
    """Samples of the shots, whose mean accuracy is reported."""
    every: Duration | None = None
    """Time between measurements; with each evaluation, unless given. One is made at the end too."""

    def __post_init__(self) -> None:
        validate(self, "fewshot")
        if self.data and not self.shots:
            raise InputError("fewshot.shots: expected one or more numbers of images per class")
        given = [
            name
            for name in ("shots", "seeds", "every")
            if getattr(self, name) != getattr(FewShotConfig, name)
        ]
        if given and not self.data:
            raise InputError(f"fewshot.{given[0]} requires fewshot.data, the images to measure on")


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
    hold_out: Annotated[float, Range("[0, 1)")] = 0.0
    """Part of the training images, of each class alike, that is evaluated on instead; 0: none."""
    group: str | None = None
    """Images that are held out together, as of one patient, scene or burst: the name of a column of
    a CSV or JSON Lines file, or a pattern of the images' names."""
    folds: NonNegativeInt = 0
    """Train so many times, with another part of the training images held out each time; 0: once."""
    fold: NonNegativeInt = 0
    """Which of the folds is held out, from 1; 0: each in turn."""
    task: Literal["classification", "regression", "masked-patches", "mae"] = "classification"
    """What is learned: labels, numbers, or, without any, patches that the model is not shown."""
    mim: Annotated[MIMConfig, UsedIf("task", "masked-patches", "mae")] = field(
        default_factory=MIMConfig
    )
    """Of `masked-patches` and `mae`."""
    length: Duration = field(default=Duration(100, "epochs"))
    more: Duration | None = None
    """How long the finished run continues, with the schedule restarted."""
    more_from: NonNegativeInt = 0
    """Steps that it had taken then."""
    minutes: Annotated[float, Range("(0, inf)")] | None = None
    """The time that the length was planned for, by a few real steps; None: none was given."""
    batch: PositiveInt = 512
    """Images a step, over all processes."""
    micro_batch: PositiveInt | None = None
    """Images that go through the model at a time in each process; chosen unless given."""
    augment: Augment = field(default_factory=Augment)
    repeats: PositiveInt = 1
    """Times that each image is in its batch, each time augmented anew (arXiv 1902.05509)."""
    preprocess: PreprocessConfig = field(default_factory=PreprocessConfig)
    loss: Annotated[LossConfig, UsedIf("task", "classification", "regression")] = field(
        default_factory=LossConfig
    )
    balance: Annotated[Balance, UsedIf("task", "classification")] = "none"
    """Against class imbalance: `weights` in the loss by the effective number of images, `sampling`
    draws each class equally often, `auto` chooses by the imbalance and says so."""
    distill: Annotated[DistillConfig | None, UsedIf("task", "classification")] = None
    optim: OptimConfig = field(default_factory=OptimConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    tune: Annotated[TuneConfig, UsedIf("task", "classification", "regression")] = field(
        default_factory=TuneConfig
    )
    ema: Annotated[float, Range("[0, 1)")] = 0.0
    """Decay of the moving average of weights that is evaluated and kept; 0 for none."""
    patience: NonNegativeInt = 0
    """Evaluations without a better one after which the run ends; 0 never ends it."""
    keep: Literal["last", "best"] = "last"
    """Which weights the model folder gets: the last, or the best on the validation split."""
    eval_every: Duration | None = None
    """Time between evaluations; chosen so that they take a twentieth of the run, unless given."""
    fewshot: FewShotConfig = field(default_factory=FewShotConfig)
    save_every: Duration | None = None
    """Time between checkpoints; five minutes, unless given. One is written at the end too."""
    log_every: NonNegativeInt = 10
    """Steps between lines of metrics."""
    seed: int = 0
    max_unreadable: UnitFloat = 0.1
    """Part of the images that may be unreadable."""
    precision: Precision = "auto"
    """What products are computed in. `auto`: bfloat16 where the hardware multiplies it faster, on a
    CPU for models of at least 128 features."""
    sharding: Literal["none", "full"] = "none"
    """Whether each process holds all weights, or a part of them and of the optimizer's state."""
    compile: bool = False
    checkpointing: bool = False
    """Keep only each block's input, and compute the rest again: less memory, a third more time."""
    device: str | None = None
    loader: LoaderConfig = field(default_factory=LoaderConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    loggers: tuple[str, ...] = ("tensorboard",)
    """`tensorboard`, `wandb`, `mlflow`, or the import path of a class of your own."""
    parts: PartsConfig = field(default_factory=PartsConfig)

    def __post_init__(self) -> None:
        validate(self)
        if self.task != "classification" and self.augment.mixes:
            raise InputError(f"{self.task} can't predict mixed images; leave mixup and cutmix 0")
        regresses, kind = self.task == "regression", self.loss.kind
        if kind is not None and regresses != (kind in ("l1", "l2", "huber")):
            fitting = "l1, l2 or huber" if regresses else "softmax or sigmoid"
            raise InputError(f"loss.kind of {self.task} must be {fitting}, got {kind}")
        if regresses and self.loss.smoothing:
            raise InputError("loss.smoothing is for classes; leave it out of a regression")
        if self.hold_out and self.val_data is not None:
            raise InputError("hold_out and val_data both say what is evaluated on; give one")
        if self.val_data is not None and not self.val_split:
            raise InputError("val_data is not used without val_split; leave one of them out")
        if self.folds == 1:
            raise InputError("folds must be 0 (none) or at least 2, got 1")
        if self.fold > self.folds:
            raise InputError(f"fold must be at most folds, {self.folds}, got {self.fold}")
        if self.folds and (self.hold_out or self.val_data is not None or self.minutes is not None):
            raise InputError(
                "folds is not used with hold_out, val_data and minutes; leave them out"
            )
        if self.tune.head != "replace" and self.weights is None:
            raise InputError("tune.head is only used with weights, whose head is replaced")
        check_mim(self.mim, self.task)


def free_settings(config: TrainConfig) -> set[str]:
    """Say which settings a resumed run may change, given the others."""
    free = set(FREE)
    if config.patience > 0 or config.keep == "best":  # by which the number of evaluations counts
        free.discard("eval_every")
    if config.cache.short_side is not None:  # images that are kept differ from those that aren't
        free.discard("cache.limit")
    return free
