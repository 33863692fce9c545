"""The images that choose among finished models, and those that are left to evaluate the choice."""

from __future__ import annotations

from collections.abc import Sequence

from vitrail.config import InputError
from vitrail.data.dataset import ImageDataset
from vitrail.data.datasets.open import (
    Data,
    is_divided,
    open_dataset,
    open_stand_in,
    whole_data,
)
from vitrail.data.split import NoSplitError, spell
from vitrail.evaluation.inputs import (
    OpenedImages,
    TrainedOnError,
    name_data,
    open_images,
    open_unseen,
)
from vitrail.weights.loaded import AnyModel

_HINT = "train with --hold-out 0.1, or give other --data"


def open_choosing_images(
    data: Data, models: Sequence[AnyModel], *, split: str | None = None
) -> OpenedImages:
    """Open images to choose among models by: none that one of them was trained on.

    They are by default the data's own validation split, or what is unseen of the others. Test
    images never choose.
    """
    whole, asked = whole_data(data), None if split is None else spell(split)
    stands_in = open_stand_in(data) is not None
    if asked == "test" or (asked == "val" and stands_in):
        raise InputError(f"split {split!r} of {name_data(data)} has test images; {_HINT}")
    if not is_divided(data) and asked in (None, "val"):
        return open_images(data, None, models)
    if asked is None and not stands_in:
        asked = "val"
    dataset = open_dataset(whole, split=asked or "train")
    try:
        return open_unseen(dataset, data, models)
    except TrainedOnError as error:
        raise InputError(f"{str(error).partition(':')[0]}, so none can choose; {_HINT}") from None


def open_other_images(data: Data, chosen_on: ImageDataset) -> ImageDataset | None:
    """Open the test split, unless it is what chose; None if there is none."""
    try:
        test = open_dataset(whole_data(data), split="test")
    except NoSplitError:
        return None
    return None if test.fingerprint() == chosen_on.fingerprint() else test
