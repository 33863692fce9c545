"""A person's decisions on images: `vitrail-decisions.csv` in a dataset's folder.

`vitrail clean` helps to make them, and every command applies them when it opens the dataset. A row
is an image's name (as `ImageDataset.where` gives it), keep, drop or relabel, and the new label. No
image is moved or changed; without the file the dataset is as it was.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from vitrail.config import InputError, suggest
from vitrail.data.dataset import ImageDataset, Selection
from vitrail.data.datasets.kept_selection import keep_marked
from vitrail.data.datasets.sparse_labels import labels_of
from vitrail.data.name_hashes import find_names
from vitrail.files import write_whole
from vitrail.text import original, printable, show

DECISIONS = "vitrail-decisions.csv"
"""The file's name, in the dataset's root folder."""
BACKUP = "vitrail-decisions.backup.csv"
"""What was decided before the last change, beside it."""
_HEADER = ["path", "decision", "label"]
_WORDS = ("keep", "drop", "relabel")


@dataclass(frozen=True)
class Decision:
    """What is to be done with an image."""

    what: Literal["keep", "drop", "relabel"]
    label: str = ""
    """The new label, of `relabel`."""


class DecidedDataset(Selection):
    """A dataset's images without those that were dropped, the others with their new labels."""

    def __init__(self, dataset: ImageDataset, decisions: Mapping[str, Decision]) -> None:
        found = keep_marked(
            dataset, sorted(decisions.items()), lambda: self._decide(dataset, decisions)
        )
        labels = labels_of(found, len(dataset.classes))
        super().__init__(dataset, found["indices"], dataset.name, labels)
        self.dropped, self.relabeled = len(dataset) - len(self), int(found["relabeled"][0])

    @staticmethod
    def _decide(
        dataset: ImageDataset, decisions: Mapping[str, Decision]
    ) -> tuple[np.ndarray, dict[int, int]]:
        """Mark the images that are kept, and give the new labels of some."""
        numbers = {name: number for number, name in enumerate(dataset.classes)}
        changes, kept = dict[int, int](), np.ones(len(dataset), bool)
        acted = [name for name, decision in decisions.items() if decision.what != "keep"]
        found = find_names(dataset, acted)
        for index, name in sorted(
            (index, name) for name, there in found.items() for index in there
        ):
            decision = decisions[name]
            if decision.what == "drop":
                kept[index] = False
                continue
            if decision.label not in numbers:
                near = suggest(decision.label, dataset.classes)
                raise InputError(
                    f"{DECISIONS} relabels {name} as {decision.label!r}, which is "
                    f"not a class of {dataset.name}{near}"
                )
            if dataset.regression:
                raise InputError(f"{DECISIONS} relabels {name}, but it has numbers")
            changes[index] = numbers[decision.label]
        return kept, changes

    def note(self) -> str:
        """Say what the decisions changed."""
        return (
            f"{self.name}: {DECISIONS} drops {self.dropped:,} and relabels {self.relabeled:,} of "
            f"{len(self.dataset):,} images"
        )


def obey_decisions(dataset: ImageDataset) -> ImageDataset:
    """Apply the decisions in the dataset's folder, if there are any."""
    decisions = read_decisions(dataset.root / DECISIONS) if dataset.root else {}
    decided = DecidedDataset(dataset, decisions) if decisions else None
    return decided if decided and (decided.dropped or decided.relabeled) else dataset


def read_decisions(path: Path) -> dict[str, Decision]:
    """Read decisions by the images' names; empty if there is no file."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise InputError(f"{show(path)}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"{show(path)}: not UTF-8 text; save it again as CSV, UTF-8") from None
    return parse_decisions(text, show(path))


def parse_decisions(text: str, name: str) -> dict[str, Decision]:
    """Read decisions from CSV text; the first wrong line is told."""
    rows = csv.reader(io.StringIO(text), strict=True)
    found: dict[str, Decision] = {}
    try:
        if (header := next(rows, None)) != _HEADER:
            raise InputError(f"{name}: expected a first line of {','.join(_HEADER)}, got {header}")
        for row in rows:
            if not row:
                continue
            place = f"{name} line {rows.line_num}"
            if len(row) != 3:
                raise InputError(f"{place}: expected 3 cells, got {len(row)}")
            path, what, label = row
            if what not in _WORDS:
                hint = suggest(what, _WORDS) or f"; expected one of {', '.join(_WORDS)}"
                raise InputError(f"{place}: unknown decision {what!r}{hint}")
            if (what == "relabel") != bool(label):
                expected = "a label" if what == "relabel" else "no label"
                raise InputError(f"{place}: {what} needs {expected}, got {label!r}")
            found[original(path)] = Decision(what, original(label))
    except csv.Error as error:
        raise InputError(f"{name} line {rows.line_num}: {error}") from None
    return found


def write_decisions(path: Path, decisions: Mapping[str, Decision]) -> None:
    """Write decisions, whole or not at all."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_HEADER)
    for name, decision in sorted(decisions.items()):
        writer.writerow((printable(name), decision.what, printable(decision.label)))
    write_whole(path, text.getvalue())
