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
        "checkpoint_every",
        "compile",
        "loader",
        "cache.limit",
    ),
    *("more", "more_from", "hold_out_of"),  # a resumed run compares its images themselves
    *("cache.folder", "max_unreadable", "eval_every", "save_every", "log_every", "loggers"),
    *("fewshot", "test_data"),
)
"""Settings that do not change what a run computes, so a resumed run may change them."""


@dataclass(frozen=True, kw_only=True)
class PreprocessConfig:
    """How evaluation resizes and crops images, and what normalizes them, in training too.

    None is what the weights were made with. Fresh ones follow the paper: the whole image, stretched
    bilinearly, from -1 to 1.
    """

    fit: Fit | None = None
    """`stretch` to the size, or `crop` the center (`small`: with big_vision's rounding)."""
    crop: Annotated[float, Range("(0, 1]")] | None = None
    """Fraction of the resized side to keep."""
    interpolation: Interpolation | None = None
    mean: tuple[Annotated[float, Range("[-1000, 1000]")], ...] | None = None
    """Taken from each channel, of pixels from 0 to 1."""
    std: tuple[Annotated[float, Range("[0.0001, 10000]")], ...] | None = None
    """What each channel is divided by then."""
    patches: NonNegativeInt | None = None
    """Patch budget (NaFlex): images keep their aspect ratio, in at most that many patches, also in
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
    """Few-shot accuracy on other data while a run trains."""

    data: str = ""
    """What to measure on: a folder, pets:DIR, digits, …; empty for none."""
    shots: tuple[PositiveInt, ...] = (5,)
    """Images per class that the classifier learns from."""
    seeds: PositiveInt = 3
    """Samples of the shots, whose mean accuracy is reported."""
    every: Duration | None = None
    """Time between measurements; by default with each evaluation. There is one at the end too."""

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
    """Pre-trained weights to start from; None for fresh ones."""
    val_split: str = "val"
    """Split to evaluate on while training; empty for none."""
    val_data: str | None = None
    """The dataset that this split belongs to, if not `data`."""
    test_data: Annotated[str | None, UsedIf("task", "classification", "regression")] = None
    """Images that the kept model is scored on once, at the end: their `test` split, or by the rule
    of docs/data.md."""
    hold_out: Annotated[float, Range("[0, 1)")] = 0.0
    """Fraction of the training images to hold out, stratified by class, and evaluate on instead;
    of data without splits, of all its images."""
    hold_out_of: Literal["all", "train"] = "all"
    """Of data without splits: `train` leaves the tenth that is `val` alone, to judge a choice."""
    group: str | None = None
    """Images that stay together, as of one patient, scene or burst: a column of a CSV or JSON Lines
    file, or a regular expression of the image's name."""
    folds: NonNegativeInt = 0
    """Number of cross-validation folds; 0 for none."""
    fold: NonNegativeInt = 0
    """Train this fold only, counted from 1; 0 for all, in turn."""
    task: Literal["classification", "regression", "masked-patches", "mae"] = "classification"
    """What to learn: labels, numbers, or, without labels, masked patches."""
    mim: Annotated[MIMConfig, UsedIf("task", "masked-patches", "mae")] = field(
        default_factory=MIMConfig
    )
    """What `masked-patches` and `mae` mask and predict."""
    length: Duration = field(default=Duration(100, "epochs"))
    """How long to train."""
    more: Duration | None = None
    """How long a finished run continues, with its schedule restarted."""
    more_from: NonNegativeInt = 0
    """Steps that it had taken before."""
    minutes: Annotated[float, Range("(0, inf)")] | None = None
    """Time to finish in; the length is planned by a few real steps."""
    batch: Annotated[int, Range("[1, 1_000_000]")] = 512
    """Images per step, over all processes."""
    micro_batch: PositiveInt | None = None
    """Images per forward pass in each process; by default what fits into memory."""
    augment: Augment = field(default_factory=Augment)
    repeats: PositiveInt = 1
    """How often each image is in its batch, augmented differently each time (arXiv 1902.05509)."""
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
    """Decay of the moving average of the weights, which is evaluated and kept; 0 for none."""
    patience: NonNegativeInt = 0
    """Evaluations without improvement after which the run ends; 0 for never."""
    keep: Literal["last", "best"] = "last"
    """Weights to keep: the last, or the best on the validation split."""
    eval_every: Duration | None = None
    """Time between evaluations; by default they take a twentieth of the computation."""
    fewshot: FewShotConfig = field(default_factory=FewShotConfig)
    save_every: Duration | None = None
    """Time between checkpoints; by default five minutes. One is written at the end too."""
    log_every: NonNegativeInt = 10
    """Steps between lines of metrics."""
    seed: Annotated[int, Range("[0, 4_294_967_295]")] = 0
    """Of initialization, order and augmentation."""
    max_unreadable: UnitFloat = 0.1
    """Largest fraction of images that may be unreadable."""
    precision: Precision = "auto"
    """Precision of matrix products. `auto` is bfloat16 if the hardware is faster with it; on a CPU,
    for models of width 128 and more."""
    sharding: Literal["none", "full"] = "none"
    """`full`: each process holds a shard of the weights and of the optimizer's state (FSDP)."""
    compile: bool = False
    """Use torch.compile."""
    checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, a third more time."""
    checkpoint_every: Annotated[PositiveInt, UsedIf("checkpointing", True)] = 1
    """With `checkpointing`, do so for every so many-th block only: between the two in both."""
    device: str | None = None
    """`cpu`, `cuda:1`, `mps`; by default the best."""
    loader: LoaderConfig = field(default_factory=LoaderConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    loggers: tuple[str, ...] = ("tensorboard",)
    """`tensorboard`, `wandb`, `mlflow`, or the import path of a class of your own."""
    parts: PartsConfig = field(default_factory=PartsConfig)

    @property
    def recomputed_every(self) -> int:
        """Say which blocks are computed again: every so many-th, 0 for none."""
        return self.checkpoint_every if self.checkpointing else 0

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
        if self.hold_out_of != "all" and not self.hold_out:
            raise InputError("hold_out_of is only used with hold_out; leave it out")
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
        if self.folds and self.test_data is not None:
            raise InputError("folds have a model each: test_data is for one; leave one of them out")
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
