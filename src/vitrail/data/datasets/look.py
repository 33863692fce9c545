"""A look at some files of a dataset when it is opened: how deep they are, and how many pages.

So black and white are the same for all images, and a stack is not read by its first page unnoticed.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from vitrail.config import InputError
from vitrail.data.dataset import FixedSizeDataset, ImageDataset, Selection
from vitrail.data.datasets.folder import FolderDataset
from vitrail.data.decoding.decode import Header, ImageError, read_header, read_values
from vitrail.data.decoding.reading import PLAIN, Reading, show_level, usual_levels, value_range
from vitrail.data.loader import Loader, LoaderConfig
from vitrail.download import cache_folder
from vitrail.files import write_whole

SAMPLE = 32
"""Files that are looked at."""
_FEW = 8  # of a dataset in large files, of which an image may cost a whole row group
RANGED = 256
"""Deep images whose values are read for their range."""
_VERSION = 1
ADVICE = (
    "'vitrail data check --fix' lists them so that they are left out; if they are elsewhere, "
    "root=FOLDER in a list's DATA says where"
)
"""What helps where images can't be read."""
_DEEP_FORMATS = (b"\x89PNG", b"II", b"MM", b"\x93NUMPY", b"P5", b"P6", b"Pf", b"PF")
_seen: dict[str, _Sampled] = {}


@dataclass(frozen=True)
class _Sampled:
    """What some files showed."""

    deep: int = 0
    kinds: frozenset[str] = frozenset()
    """Of deep images: `whole` numbers or `float`."""
    stacks: tuple[int, ...] = ()
    """The pages of each file that has several."""
    read: int = 0
    unreadable: tuple[str, ...] = ()
    """Names of files that can't be read."""
    first: str = ""
    """Why the first of them can't."""
    lacking: str = ""
    """What some of them need, if it is not installed."""


def look_at(
    dataset: ImageDataset, given: Reading | None, training: Callable[[], ImageDataset | None]
) -> None:
    """Find out how a dataset's files are to be read, and note it in the dataset.

    `given` is what DATA says; `training` opens the training split, which decides for all splits.
    """
    if isinstance(dataset, FixedSizeDataset) or not len(dataset):
        return
    dataset.reading, dataset.reading_given = given, given is not None
    sampled = _sample(dataset)
    notes: list[str] = []
    if sampled.stacks and (given is None or given.page == 1):
        notes.append(_say_pages(sampled))
    if sampled.deep and (given is None or given.levels is None):
        page = PLAIN.page if given is None else given.page
        decider = training() or dataset
        levels = _levels(decider, page if isinstance(page, int) else 1, sampled)
        if levels is None:
            notes.append(
                "whole and float numbers are mixed in images of more than 8 bits, so each is "
                "scaled by its own range; convert them to one kind, or write DATA,levels=LOW-HIGH"
            )
        else:
            dataset.reading = replace(given or PLAIN, levels=levels)
            notes.append(_say_levels(levels, sampled))
    dataset.look = tuple(notes)


def refuse_unreadable(dataset: ImageDataset) -> None:
    """Raise InputError if most of some images can't be read, before any work is done on them."""
    if isinstance(dataset, FixedSizeDataset) or not len(dataset):
        return
    found = _sample(dataset)
    count = len(found.unreadable)
    if 2 * count > found.read:
        raise InputError(
            f"{dataset.name}: {count:,} of {found.read:,} images looked at can't be read, such as "
            f"{found.unreadable[0]}: {found.first}; {found.lacking or ADVICE}"
        )


def _say_pages(sampled: _Sampled) -> str:
    (pages, _), *others = Counter(sampled.stacks).most_common()
    number = str(pages) if not others else f"{min(sampled.stacks)} to {max(sampled.stacks)}"
    files = f"{len(sampled.stacks):,} of {sampled.read:,} files looked at have {number} pages"
    return f"{files}; the first is used (DATA,page=max, page=mean or page=2 use others)"


def _say_levels(levels: tuple[float, float], sampled: _Sampled) -> str:
    low, high = map(show_level, levels)
    kind = "float" if "float" in sampled.kinds else "16-bit"
    return (
        f"levels   {low} to {high} are in use in {kind} images, which become 0 to 255 in all of "
        f"them (DATA,levels=LOW-HIGH changes it)"
    )


def _sample(dataset: ImageDataset) -> _Sampled:
    """Look at the headers of some files; the same files are looked at once."""
    behind = dataset
    while isinstance(behind, Selection):
        behind = behind.dataset
    many = isinstance(behind, FolderDataset)
    count = min(len(dataset), SAMPLE if many else _FEW)
    last = len(dataset) if many else count
    indices = np.linspace(0, last - 1, count).round().astype(int).tolist()
    names = [f"{dataset.where(index)} {dataset.size(index)}" for index in indices]
    key = repr((dataset.name, str(dataset.root), len(dataset), names))
    if key not in _seen:
        _seen[key] = _look(dataset, indices)
    return _seen[key]


def _look(dataset: ImageDataset, indices: list[int]) -> _Sampled:
    headers, unreadable, first, lacking = list[Header](), list[str](), "", ""
    for index in indices:
        try:
            content = dataset.read(index)
            if isinstance(content, bytes):
                headers.append(read_header(content))
        except (OSError, ImageError) as error:
            unreadable.append(dataset.where(index))
            first = first or getattr(error, "strerror", None) or str(error)
            if isinstance(error, ImageError) and error.kind == "missing package":
                lacking = str(error)
    deep = [header for header in headers if header.deep]
    kinds = frozenset("float" if _is_float(header) else "whole" for header in deep)
    stacks = tuple(header.pages for header in headers if header.pages > 1)
    return _Sampled(len(deep), kinds, stacks, len(indices), tuple(unreadable), first, lacking)


def _is_float(header: Header) -> bool:
    return header.mode == "F" or header.mode.startswith("float")


def _levels(dataset: ImageDataset, page: int, sampled: _Sampled) -> tuple[float, float] | None:
    """Find black and white over a dataset; None if its kinds of numbers can't share them."""
    if len(sampled.kinds) > 1:
        return None
    ends = _kept_range(dataset, page)
    return usual_levels(*ends, whole="float" not in sampled.kinds) if ends else None


def _kept_range(dataset: ImageDataset, page: int) -> tuple[float, float] | None:
    """Read the range of values of a dataset's deep images, once for all commands."""
    facts = f"{_VERSION} {dataset.stamp()} {page}"
    name = hashlib.sha256(facts.encode("utf-8", "surrogateescape")).hexdigest()[:24]
    path = cache_folder() / "looks" / f"{name}.json"
    with suppress(OSError, ValueError, TypeError):
        low, high = json.loads(path.read_text(encoding="utf-8"))
        return float(low), float(high)
    ends = list(read_ranges(dataset, page))
    if not ends:
        return None
    found = min(low for low, _ in ends), max(high for _, high in ends)
    with suppress(OSError):  # a full or read-only disk costs time, not the run
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(found))
    return found


def read_ranges(
    dataset: ImageDataset, page: int = 1, most: int = RANGED
) -> Iterator[tuple[float, float]]:
    """Yield the smallest and largest value of each of a dataset's deep images, or of `most`."""

    def look(index: int) -> tuple[float, float] | None:
        with suppress(OSError, ImageError):
            content = dataset.read(index)
            if isinstance(content, bytes) and content.startswith(_DEEP_FORMATS):
                header = read_header(content)
                page_here = min(page, header.pages)
                values = read_values(content, header, page=page_here)
                return None if values is None else value_range(values)
        return None

    count = min(len(dataset), most)
    indices = np.linspace(0, len(dataset) - 1, count).round().astype(int).tolist()
    yield from (ends for ends in Loader(look, indices, LoaderConfig()) if ends is not None)
