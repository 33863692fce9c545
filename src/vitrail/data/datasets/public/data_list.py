"""The datasets that are built in or can be fetched, as a list to read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from vitrail.data.datasets.public.fetch import fetched
from vitrail.data.datasets.public.public_registry import PUBLIC
from vitrail.result import Result, ResultTable

_BUILT_IN = {
    "digits": ("1,797 handwritten digits, 8 x 8, built in", "CC BY 4.0"),
    "shapes": ("drawn shapes without limit, built in", "Apache-2.0"),
    "characters": ("62 characters of 21 fonts without limit, built in", "Apache-2.0"),
}


@dataclass(frozen=True)
class ListedData:
    """A dataset that has a name."""

    name: str
    title: str
    license: str
    folder: Path | None = None
    """Where it is, if it was fetched."""


@dataclass(frozen=True)
class DataList(Result):
    """Datasets by name."""

    data: tuple[ListedData, ...]

    def summary(self) -> Iterator[ResultTable]:
        """Give one row per dataset."""
        rows = [
            (
                each.name,
                each.title,
                each.license,
                "yes" if each.folder or each.name in _BUILT_IN else "fetch",
            )
            for each in self.data
        ]
        yield ResultTable(("DATA", "what", "license", "here"), rows, justify="left")


def list_data() -> DataList:
    """List the datasets that are built in, then those that `fetch_data` downloads."""
    built_in = [ListedData(name, *row) for name, row in _BUILT_IN.items()]
    public = [
        ListedData(name, row.title, row.license, fetched(name)) for name, row in PUBLIC.items()
    ]
    return DataList((*built_in, *public))
