"""The images that choose among finished models, and those that are left to evaluate the choice."""

from __future__ import annotations

from collections.abc import Sequence

from vitrail.config import InputError
from vitrail.data.dataset import ImageDataset
from vitrail.data.datasets.open import Data, open_dataset, open_stand_in, whole_data
from vitrail.data.split import HELD_OUT, NoSplitError, spell, split_dataset
from vitrail.evaluation.inputs import name_data, same_data
from vitrail.training.train_config import TrainConfig

_HINT = "train with --hold-out 0.1, give other --data, or choose on test with --choose-on-test"


def open_choosing_images(
    data: Data,
    runs: Sequence[TrainConfig],
    *,
    split: str | None = None,
    hold_out: float | None = None,
    on_test: bool = False,
) -> tuple[ImageDataset, tuple[str, ...]]:
    """Open images to choose among models by, and note what a person should know about them.

    Unless `split` or `hold_out` says which, they are what all `runs` held out of the training
    split, otherwise the validation split. Test images are taken only if `on_test` asks for them,
    and images that a run was trained on never.
    """
    whole = whole_data(data)
    if on_test:
        if split is not None or hold_out is not None:
            raise InputError("give only one of --choose-on-test, --split and --hold-out")
        return open_dataset(whole, split="test"), (
            "chosen on test images: the score is optimistic",
        )
    if split is not None:
        if hold_out is not None:
            raise InputError("give --split or --hold-out, not both: images are held out of train")
        if spell(split) == "test" or (spell(split) == "val" and open_stand_in(data) is not None):
            raise InputError(f"split {split!r} of {name_data(data)} has test images; {_HINT}")
        return open_dataset(whole, split=split), ()
    alike = [config for config in runs if same_data(config.data, data)]
    fraction = hold_out
    if fraction is None and alike:
        fraction = min(config.hold_out for config in alike)  # images held out of all runs
    if fraction:
        return split_dataset(open_dataset(data, split="train"), fraction, seed=0)[1], ()
    if open_stand_in(data) is None:
        return open_dataset(whole, split="val"), ()
    if alike:
        raise InputError(
            f"all training images of {name_data(data)} were trained on, and it has no validation "
            f"split to choose on; {_HINT}"
        )
    dataset = split_dataset(open_dataset(data, split="train"), HELD_OUT, seed=0)[1]
    return dataset, (f"{dataset.name}: the models may have been trained on these images",)


def open_other_images(data: Data, chosen_on: ImageDataset) -> ImageDataset | None:
    """Open the test split, unless it is what chose; None if there is none."""
    try:
        test = open_dataset(whole_data(data), split="test")
    except NoSplitError:
        return None
    return None if test.fingerprint() == chosen_on.fingerprint() else test
