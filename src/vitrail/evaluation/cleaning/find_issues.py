"""Look a dataset through: each image that a person should decide on, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Unpack

import numpy as np

from vitrail.config import InputError
from vitrail.console import show_progress
from vitrail.data.checks.dataset_check import DatasetCheck, check
from vitrail.data.dataset import ImageDataset
from vitrail.data.datasets.labels import UNLABELED
from vitrail.evaluation.cleaning.label_errors import (
    FOLDS,
    cross_validate_probabilities,
    find_label_errors,
)
from vitrail.evaluation.cleaning.outlying import find_outliers, neighbor_distances
from vitrail.evaluation.features.compute import FeatureOptions, features_of
from vitrail.evaluation.features.mapped_rows import RowWriter
from vitrail.evaluation.metrics.scores import Confusion, most_confused
from vitrail.result import Result, ResultTable
from vitrail.weights.loaded import LoadedModel

Kind = Literal["label", "leak", "duplicate", "outlier", "tiny", "unreadable"]
KINDS: dict[Kind, str] = {
    "label": "probable label errors",
    "leak": "images in several splits",
    "duplicate": "images more than once in a split",
    "outlier": "outliers",
    "tiny": "tiny images",
    "unreadable": "unreadable files",
}
"""What may be the matter with an image, and how it is called."""


@dataclass(frozen=True)
class ImageIssue:
    """An image to decide on, and why."""

    kind: Kind
    split: str
    path: str
    """The image's name in its dataset."""
    label: str
    reason: str
    suggested: str = ""
    """For a label error, the most likely other class, where that is probable by the class's own
    threshold; empty where no class is."""
    like: str = ""
    """The image that it repeats, of a leak or duplicate, as `split: path`."""
    compared: tuple[str, ...] = ()
    """For a label error, its label and the most likely other class."""


@dataclass(frozen=True)
class ClassPair:
    """Two classes that are mistaken for each other."""

    label: str
    probable: str
    images: int
    """Images with the first as their label that are probably of the second."""


@dataclass(frozen=True, kw_only=True)
class CleaningResult(Result):
    """What is probably wrong with a dataset."""

    data: str
    model: str
    """Whose features were used."""
    images: int
    issues: tuple[ImageIssue, ...]
    pairs: tuple[ClassPair, ...]
    """Classes that are mistaken for each other, most often first."""
    examples: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """The split and name of an image that plainly shows a class, for classes of label errors."""
    notes: tuple[str, ...] = ()
    page: Path | None = None

    def counts(self) -> dict[Kind, int]:
        """Count the images of each kind."""
        found = [each.kind for each in self.issues]
        return {kind: found.count(kind) for kind in KINDS}

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "data": self.data,
            "model": self.model,
            "images": self.images,
            **self.counts(),
            "issues": [vars(each) for each in self.issues],
            "pairs": [vars(each) for each in self.pairs],
            "examples": {name: list(place) for name, place in self.examples.items()},
            "notes": list(self.notes),
            "page": None if self.page is None else str(self.page),
        }

    def summary(self) -> Iterator[ResultTable | str]:
        """Count what was found, with an example of each, then the next step."""
        rows = []
        for kind, count in self.counts().items():
            first = next((each for each in self.issues if each.kind == kind), None)
            example = "" if first is None else f"{first.path}: {first.reason}"
            rows.append((KINDS[kind], f"{count:,}", example))
        yield ResultTable(("", "images", "such as"), rows, justify="left")
        if self.pairs:
            shown = (f"{e.label} as {e.probable} ({e.images})" for e in self.pairs[:3])
            yield f"most often mistaken: {', '.join(shown)}"
        yield from self.notes
        if self.page is not None:
            yield f"{self.images:,} images looked through; decide in a browser: {self.page}"
            yield f"then: vitrail clean {self.data} --decisions newest"


def find_issues(
    loaded: LoadedModel,
    splits: Mapping[str, ImageDataset],
    *,
    data: str,
    model: str,
    folds: int = FOLDS,
    seed: int = 0,
    **options: Unpack[FeatureOptions],
) -> CleaningResult:
    """Find what is probably wrong with the images of a dataset's splits."""
    if folds < 2:
        raise InputError(f"--folds {folds}: expected 2 or more")
    first = next(iter(splits.values()))
    with show_progress("checking", sum(map(len, splits.values()))) as report:
        checked = check(splits, workers=options.get("workers"), report=report)
    issues = list(_unusable(checked, splits))
    found = features_of(loaded, list(splits.values()), **options)
    joined = RowWriter()
    for each in found:
        joined.add(each.values)
    values = joined.finish()
    places = [(split, str(name)) for split, each in zip(splits, found, strict=True)
              for name in each.names]  # fmt: skip
    pairs: tuple[ClassPair, ...] = ()
    examples: dict[str, tuple[str, str]] = {}
    notes: list[str] = []
    labels = np.concatenate([each.labels for each in found])
    judged = labels.ndim == 1 and len(first.classes) > 1 and first.classes != (UNLABELED,)
    names = [first.classes[n] for n in labels] if judged else [""] * len(values)
    if not judged:
        notes.append("no label is judged: a class per image is needed, and two classes or more")
    elif any(each.classes != first.classes for each in splits.values()):
        raise InputError("the splits number their classes differently; put a classes.txt beside")
    else:
        groups = _group(checked, places)
        with show_progress("folds", folds) as report:
            probabilities = cross_validate_probabilities(
                values, labels, len(first.classes), folds=folds, seed=seed, groups=groups,
                report=report,
            )  # fmt: skip
        errors = find_label_errors(probabilities, labels, len(first.classes))
        for row, other, chance, own, sure in zip(
            *(each.tolist() for each in
              (errors.rows, errors.suggested, errors.chance, errors.own, errors.sure)),
            strict=True,
        ):  # fmt: skip
            compared = names[row], str(first.classes[other])
            reason = _explain_error(*compared, own, chance, sure)
            split, path = places[row]
            suggested = compared[1] if sure else ""
            issues.append(
                ImageIssue("label", split, path, names[row], reason, suggested, compared=compared)
            )
            for number in (int(labels[row]), other):
                if (example := int(errors.examples[number])) >= 0:
                    examples[str(first.classes[number])] = places[example]
        pairs = tuple(_pairs(errors.joint, first.classes))
    for row in find_outliers(neighbor_distances(values)).tolist():
        split, path = places[row]
        issues.append(ImageIssue("outlier", split, path, names[row], "unlike all other images"))
    order = list(KINDS)
    issues.sort(key=lambda each: order.index(each.kind))  # stable: the worst of a kind first
    return CleaningResult(
        data=data,
        model=model,
        images=checked.images,
        issues=tuple(issues),
        pairs=pairs,
        examples=examples,
        notes=tuple(notes),
    )


def _explain_error(label: str, other: str, own: float, chance: float, sure: bool) -> str:
    """Say both probabilities; only what is more likely than not is called probable."""
    if chance > 0.5:
        return f"probably {other} ({chance:.0%}), not {label} ({own:.0%})"
    if sure:  # as likely as images of that class usually are
        return f"rather {other} ({chance:.0%}) than {label} ({own:.0%})"
    return f"hardly {label} ({own:.0%}); the most likely class, {other} ({chance:.0%}), is unsure"


def _unusable(checked: DatasetCheck, splits: Mapping[str, ImageDataset]) -> Iterator[ImageIssue]:
    """Give what the check of the files found: copies, tiny images, unreadable files."""
    label_of = {
        (split, dataset.where(index)): _label(dataset, index)
        for split, dataset in splits.items()
        for index in range(len(dataset))
    }
    leaks = [*checked.leaks, *checked.near_leaks]
    same = [*checked.duplicates, *checked.near_duplicates]
    seen = set[str]()
    copies: list[tuple[Kind, list[list[str]]]] = [("leak", leaks), ("duplicate", same)]
    for kind, groups in copies:
        for kept, *others in groups:
            for other in others:
                if other not in seen:
                    seen.add(other)
                    split, _, path = other.partition(": ")
                    label = label_of.get((split, path), "")
                    yield ImageIssue(kind, split, path, label, f"as {kept}", like=kept)
    for text in checked.tiny:
        split, _, path = text.partition(": ")
        yield ImageIssue("tiny", split, path, label_of.get((split, path), ""), "hardly a pixel")
    for bad in checked.bad:
        label = label_of.get((bad["split"], bad["path"]), "")
        yield ImageIssue("unreadable", bad["split"], bad["path"], label, bad["reason"])


def _label(dataset: ImageDataset, index: int) -> str:
    if dataset.regression:
        return ", ".join(f"{each:g}" for each in dataset.labels[index])
    if dataset.multilabel:
        return ", ".join(dataset.classes[n] for n in np.flatnonzero(dataset.labels[index]))
    return dataset.classes[int(dataset.labels[index])]


def _group(checked: DatasetCheck, places: list[tuple[str, str]]) -> np.ndarray | None:
    """Give images numbers, the same to copies of one image; None where there are no copies."""
    numbers = {f"{split}: {path}": number for number, (split, path) in enumerate(places)}
    found = np.arange(len(places))
    for group in (g for groups in checked.same_images().values() for g in groups):
        rows = [numbers[name] for name in group if name in numbers]
        if rows:
            found[np.isin(found, found[rows])] = found[rows[0]]
    return None if len(np.unique(found)) == len(found) else found


def _pairs(joint: Sequence[Confusion], classes: tuple[str, ...]) -> Iterator[ClassPair]:
    """Give the pairs of classes that more than one image is mistaken in, most often first."""
    for label, probable, count in most_confused(joint):
        if count > 1:
            yield ClassPair(classes[label], classes[probable], count)
