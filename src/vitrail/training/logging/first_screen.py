"""What a run says of its data before it begins."""

from __future__ import annotations

from vitrail.data.class_balance import imbalance
from vitrail.data.dataset import ImageDataset, ImageStream
from vitrail.data.quick_check import quick_check


def describe_data(
    train: ImageDataset | ImageStream, val: ImageDataset | None, *, held_out: bool = False
) -> str:
    """Say how many images and classes there are, how even they are, and what is held out."""
    classes = len(train.classes)
    if isinstance(train, ImageStream):
        length = "unknown" if train.length is None else f"{train.length:,}"
        said = f"{length} training images (a stream)"
    else:
        said = f"{len(train):,} training images"
    if classes > 1:
        said += f" of {classes:,} classes"
        if isinstance(train, ImageDataset) and not train.multilabel:
            counts = train.class_counts()
            least, most = counts.min(), counts.max()
            ratio = f" ({imbalance(counts):.1f} to 1)" if most > least else ""
            said += f", {least:,} to {most:,} each{ratio}" if most > least else f", {most:,} each"
    if val is None:
        return f"data     {said}; nothing is held out"
    if held_out:
        return f"data     {said}; evaluated on {len(val):,} images held out of the training split"
    return f"data     {said}; evaluated on {len(val):,} others ({val.name})"


def check_images(train: ImageDataset | ImageStream, val: ImageDataset | None) -> tuple[str, ...]:
    """Say which files can't be read, and warn of validation images that training sees."""
    if val is None or not isinstance(train, ImageDataset):
        return ()
    found = quick_check(train, val)
    return () if found is None else found.notes()
