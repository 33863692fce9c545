"""The list of bad images that a set carries with it: `vitrail-unreadable.tsv` in its folder.

`vitrail data check --fix` writes it; whoever opens the set leaves its images out. A row is a
image's name (as Source.where says it) and the reason, with a tab between; people may edit it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from vitrail.config import InputError
from vitrail.data.dataset import ImageDataset, Selection
from vitrail.files import write_whole
from vitrail.text import original, printable

UNREADABLE_LIST = "vitrail-unreadable.tsv"
"""The list's name, in the root folder of its set."""
_HEADER = "path\treason"


class FilteredDataset(Selection):
    """A dataset's images without those on its list."""

    def __init__(self, source: ImageDataset, bad: Collection[str]) -> None:
        kept = np.array([source.where(i) not in bad for i in range(len(source))], bool)
        super().__init__(source, np.flatnonzero(kept), source.name)
        self.left_out = source.labels[~kept]
        """The labels of the images that were left out."""

    @property
    def skipped(self) -> int:
        """Count the images that were left out."""
        return len(self.left_out)


def leave_out_unreadable(source: ImageDataset) -> ImageDataset:
    """Leave out the images that are on the list in the source's folder."""
    bad = read_unreadable_list(source.root) if source.root else {}
    remaining = FilteredDataset(source, bad) if bad else None
    return remaining if remaining and remaining.skipped else source


def read_unreadable_list(root: Path) -> dict[str, str]:
    """Read why each image on the list is bad; nothing where there is no list."""
    path = root / UNREADABLE_LIST
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: not a text of UTF-8; remove it, or check again") from None
    header, *lines = text.split("\n")
    if header.rstrip("\r") != _HEADER:
        raise InputError(f"{path}: expected a first line of 'path', a tab and 'reason'")
    rows = (line.rstrip("\r").partition("\t") for line in lines)
    return {original(name): original(reason) for name, _, reason in rows if name}


def list_others(root: Path, sources: Iterable[ImageDataset]) -> dict[str, str]:
    """Read what the list has of images that are there, but not in these sources.

    Several lists of images, such as train.csv and val.csv, may lie in one folder.
    """
    try:
        listed = read_unreadable_list(root)
    except InputError:  # a list that is no list is replaced
        return {}
    if listed:
        own = {source.where(i) for source in sources for i in range(len(source))}
        listed = {name: why for name, why in listed.items() if name not in own}
    return {name: why for name, why in listed.items() if (root / original(name)).exists()}


def write_unreadable_list(root: Path, rows: Mapping[str, str]) -> Path:
    """Write the list, whole or not at all; without rows there is none afterwards."""
    path = root / UNREADABLE_LIST
    if rows:
        write_rows(path, _HEADER.split("\t"), sorted(rows.items()))
        return path
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"cannot remove {path}: {error.strerror}") from None
    return path


def write_rows(path: Path, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Write a table of tabs and lines, with what is neither in it escaped, whole or not at all."""
    lines = ("\t".join(header), *("\t".join(map(printable, row)) for row in rows))
    write_whole(path, "".join(f"{line}\n" for line in lines))
