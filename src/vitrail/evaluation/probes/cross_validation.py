"""Cross-validate a linear probe: every image is evaluated once, by a probe that did not see it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np

from vitrail.config import InputError
from vitrail.console import show_progress
from vitrail.data.datasets.groups import group_images
from vitrail.data.datasets.open import Data, group_column
from vitrail.data.split import assign_folds
from vitrail.evaluation.evaluation_result import Selected
from vitrail.evaluation.features.compute import FeatureOptions, features_of
from vitrail.evaluation.features.image_features import take_features
from vitrail.evaluation.inputs import name_data, name_model, open_images
from vitrail.evaluation.metrics.intervals import Estimate, over_folds
from vitrail.evaluation.probes.linear_probe import probe_lbfgs
from vitrail.result import Result, ResultTable, to_plain
from vitrail.weights.load import as_loaded
from vitrail.weights.loaded import AnyModel


@dataclass(frozen=True, kw_only=True)
class CrossValidation(Result):
    """Accuracy of a linear probe over the folds of a dataset."""

    model: str
    data: str
    images: int
    groups: int | None
    """Groups that no fold tears apart; None without."""
    folds: tuple[float, ...]
    """Accuracy on each fold."""
    sizes: tuple[int, ...]
    """Images of each fold."""
    selected: Selected | None = None
    """How many images of how many these are, and why those."""
    notes: tuple[str, ...] = ()

    @property
    def top1(self) -> Estimate:
        """The accuracy on all images with its 95 % interval."""
        sizes, grouped = np.array(self.sizes, float), self.groups is not None
        return over_folds(np.array(self.folds), sizes, grouped=grouped)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        top1 = self.top1
        found = {"model": self.model, "data": self.data, "images": self.images}
        found |= {"selected": to_plain(self.selected), "notes": list(self.notes)}
        interval = {"top1": top1.value, "top1_interval": [top1.low, top1.high]}
        rows = {"folds": list(self.folds), "sizes": list(self.sizes)}
        return {**found, "groups": self.groups, **interval, **rows}

    def summary(self) -> Iterator[ResultTable | str]:
        """Give each fold's accuracy, then the mean."""
        yield ResultTable(
            ("fold", "images", "accuracy"),
            [
                (str(n), f"{count:,}", f"{share:.2%}")
                for n, (share, count) in enumerate(zip(self.folds, self.sizes, strict=True), 1)
            ],
        )
        top1, whole = self.top1, "" if self.groups is None else f" in {self.groups:,} groups"
        yield (
            f"top-1 {top1.value:.2%} ({top1.low:.2%} to {top1.high:.2%}) over {len(self.folds)} "
            f"folds of {self.images:,} images{whole}"
        )
        if self.selected is not None:
            yield f"evaluated on {self.selected}"
        yield from self.notes


def cross_validate(
    model: AnyModel,
    data: Data,
    *,
    folds: int = 5,
    group: str | None = None,
    split: str | None = None,
    seed: int = 0,
    **options: Unpack[FeatureOptions],
) -> CrossValidation:
    r"""Train a linear probe on all folds but one, and evaluate it on that one, for each fold.

    Each class is spread over the folds alike. `group` is a pattern (a regular expression) of the
    images' names: those with the same match, or the same first group of it, are of one patient,
    scene or burst and share their fold, such as `([^/]+)_\d+\.jpg`; or a column of a list. `split`
    is by default all, without images that the model was trained on.
    `options` say how features are computed.
    """
    if folds < 2:
        raise InputError(f"--folds {folds}: expected 2 or more")
    opened = open_images(data, split, (model,), default="all")
    dataset = opened.dataset
    groups = None if group is None else group_images(dataset, group, group_column(data, group))
    if dataset.labels.ndim == 2 or len(dataset.classes) < 2:
        raise InputError(f"{dataset.name}: expected two classes or more, and one per image")
    (features,) = features_of(as_loaded(model), [dataset], **options)
    if groups is not None and len(features) < len(dataset):  # some could not be read
        names = [dataset.where(index) for index in range(len(dataset))]
        groups = groups[np.isin(names, features.names)]
    fold_of = assign_folds(features.labels, len(features.classes), folds, seed=seed, groups=groups)
    found: list[float] = []
    with show_progress("folds", folds) as report:
        for fold in range(folds):
            rest, held = (take_features(features, each) for each in
                          (fold_of != fold, fold_of == fold))  # fmt: skip
            found.append(probe_lbfgs(rest, held, seed=seed).accuracy)
            report(fold + 1)
    return CrossValidation(
        model=name_model(model),
        data=name_data(data),
        images=len(features),
        groups=None if groups is None else len(set(groups.tolist())),
        folds=tuple(found),
        sizes=tuple(np.bincount(fold_of, minlength=folds).tolist()),
        selected=opened.selected,
        notes=opened.notes,
    )
