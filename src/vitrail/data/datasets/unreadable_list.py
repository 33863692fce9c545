"""A dataset's list of unreadable images: `vitrail-unreadable.tsv` in its folder.

`vitrail data check --fix` writes it, and its images are left out when the dataset is opened. A row
is an image's name (as `ImageDataset.where` gives it) and the reason, separated by a tab; it may be
edited by hand.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from vitrail.config import InputError
from vitrail.data.dataset import ImageDataset, Selection
from vitrail.data.datasets.kept_selection import keep_selection
from vitrail.data.name_hashes import find_names
from vitrail.files import write_whole
from vitrail.text import original, printable

UNREADABLE_LIST = "vitrail-unreadable.tsv"
"""The list's name, in the dataset's root folder."""
_HEADER = "path\treason"


class FilteredDataset(Selection):
    """A dataset's images without those on its list."""

    def __init__(self, dataset: ImageDataset, bad: Collection[str]) -> None:
        def readable() -> np.ndarray:
            marked = np.ones(len(dataset), bool)
            for indices in find_names(dataset, frozenset(bad)).values():
                marked[indices] = False
            return marked

        part = keep_selection(dataset, ("unreadable", sorted(bad)), readable)
        assert isinstance(part, Selection)
        super().__init__(part.dataset, part.indices, dataset.name, part.labels)
        self.skipped = len(dataset) - len(self)
        """How many images were left out."""


def leave_out_unreadable(dataset: ImageDataset) -> ImageDataset:
    """Leave out the images that are on the list in the dataset's folder."""
    bad = read_unreadable_list(dataset.root) if dataset.root else {}
    remaining = FilteredDataset(dataset, bad) if bad else None
    return remaining if remaining and remaining.skipped else dataset


def read_unreadable_list(root: Path) -> dict[str, str]:
    """Read the images on the list and the reasons; empty if there is no list."""
    path = root / UNREADABLE_LIST
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: not UTF-8 text; remove it, or check again") from None
    header, *lines = text.split("\n")
    if header.rstrip("\r") != _HEADER:
        raise InputError(f"{path}: expected a first line of 'path', a tab and 'reason'")
    rows = (line.rstrip("\r").partition("\t") for line in lines)
    return {original(name): original(reason) for name, _, reason in rows if name}


def list_others(root: Path, datasets: Iterable[ImageDataset]) -> dict[str, str]:
    """Read the list's rows for images that exist but are not in these datasets.

    Several lists of images, such as train.csv and val.csv, may be in one folder.
    """
    try:
        listed = read_unreadable_list(root)
    except InputError:  # a damaged list is replaced
        return {}
    if listed:
        own = {dataset.where(i) for dataset in datasets for i in range(len(dataset))}
        listed = {name: why for name, why in listed.items() if name not in own}
    return {name: why for name, why in listed.items() if (root / original(name)).exists()}


def write_unreadable_list(root: Path, rows: Mapping[str, str]) -> Path | None:
    """Write the list, whole or not at all; without rows, remove it and return None."""
    path = root / UNREADABLE_LIST
    if rows:
        write_rows(path, _HEADER.split("\t"), sorted(rows.items()))
        return path
    if path.exists():  # on a read-only file system, removing what is not there fails too
        try:
            path.unlink()
        except OSError as error:
            raise InputError(f"cannot remove {path}: {error.strerror}") from None
    return None


def write_rows(path: Path, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Write a TSV file, with tabs and line breaks in cells escaped, whole or not at all."""
    lines = ("\t".join(header), *("\t".join(map(printable, row)) for row in rows))
    write_whole(path, "".join(f"{line}\n" for line in lines))
