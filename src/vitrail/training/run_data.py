"""The data of a run, opened the same way for training, evaluation and its report."""

from __future__ import annotations

from pathlib import Path

from vitrail.config import InputError, from_dict, read_file
from vitrail.data.dataset import ImageDataset, ImageStream
from vitrail.data.datasets.open import check_trainable, open_data, open_dataset
from vitrail.data.split import spell
from vitrail.data.split import split as divide
from vitrail.training.checkpoints.run_folder import CONFIG
from vitrail.training.train_config import TrainConfig


def open_datasets(config: TrainConfig) -> tuple[ImageDataset | ImageStream, ImageDataset | None]:
    """Open the training and validation images of a run.

    A dataset without splits is divided the same whatever the run's seed, so that no run is
    evaluated on images that another one was trained on.
    """
    _check_evaluated(config)
    train_set = open_data(config.data, split="train")
    if isinstance(train_set, ImageStream):
        _check_stream(train_set, config)
    if config.hold_out:
        assert isinstance(train_set, ImageDataset)
        train_set, val_set = divide(train_set, config.hold_out, seed=0)
    else:
        val_set = _open_val(config)
    check_trainable(train_set, val_set)
    return train_set, val_set


def _check_evaluated(config: TrainConfig) -> None:
    """Refuse settings that go by evaluations where there are none."""
    if (config.val_split or config.hold_out) and config.eval_every.amount > 0:
        return
    for name, asked in {"keep best": config.keep == "best", "patience": config.patience}.items():
        if asked:
            raise InputError(
                f"{name} needs evaluations; give val_split or hold_out, and eval_every"
            )


def _open_val(config: TrainConfig) -> ImageDataset | None:
    if not config.val_split:
        return None
    text = config.val_data or config.data
    found = open_data(text, split=config.val_split)
    if isinstance(found, ImageDataset):
        return found
    raise InputError(
        f"{text} is a stream, which can't be evaluated on; give --val-data, a set whose "
        f"{config.val_split} split can, or --val-split '' for no evaluation"
    )


def _check_stream(stream: ImageStream, config: TrainConfig) -> None:
    """Refuse settings that need to know a stream's images before they come."""
    if config.hold_out:
        raise InputError(f"{stream.name} is a stream, of which no part can be held out")
    if config.cache.limit:
        raise InputError(f"{stream.name} is a stream, which no cache keeps; leave cache.limit out")
    durations = {
        "length": config.length,
        "eval_every": config.eval_every,
        "save_every": config.save_every,
    }
    for name in ("warmup", "cooldown", "timescale"):
        durations[f"schedule.{name}"] = getattr(config.schedule, name)
    counted = [
        f"--{name.replace('_', '-')}" for name, each in durations.items() if each.unit == "epochs"
    ]
    if stream.length is None and counted:
        raise InputError(
            f"{stream.name} does not say how many images it has, so that nothing lasts epochs: "
            f"give {', '.join(counted)} as '1000 steps', '10 %' or '1_000_000 images'"
        )


def read_config(run: Path) -> TrainConfig:
    """Read the settings of a run from its folder."""
    return from_dict(TrainConfig, read_file(run / CONFIG))


def open_run_data(run: Path | TrainConfig, split: str | None = None) -> ImageDataset:
    """Open images of a run's data: by default those that it was validated on.

    Without a validation split, they are its training images. `train` and `val` are exactly what
    training used, with `hold_out` and `val_data`; other names are splits of the dataset itself.
    """
    config = read_config(run) if isinstance(run, Path) else run
    validated = bool(config.hold_out or config.val_split)
    asked = spell(split or ("val" if validated else "train"))
    if asked == "train" or (asked == "val" and config.hold_out):
        dataset = open_dataset(config.data, split="train")
        if not config.hold_out:
            return dataset
        return divide(dataset, config.hold_out, seed=0)[asked == "val"]
    used = config.val_split if asked == "val" and config.val_split else asked
    return open_dataset(config.val_data or config.data, split=used)
