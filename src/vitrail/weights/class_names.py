"""Class names that weights are published without: ImageNet-1k and ImageNet-21k."""

from __future__ import annotations

import gzip
from functools import cache
from importlib.resources import files


@cache
def imagenet_classes(count: int) -> tuple[str, ...] | None:
    """Name the classes of a head with this many outputs, in the usual order, or give None.

    1000 is ILSVRC-2012; 21,843 is the ImageNet-21k that Google trained on, 21,841 the later one.
    All are WordNet synsets sorted by their number, under their WordNet lemmas.
    """
    return tuple(lemma for _, lemma in _synsets(count)) or None


@cache
def imagenet_wnids(count: int) -> tuple[str, ...] | None:
    """Give the same classes by their WordNet numbers, such as n01440764, or None."""
    return tuple(wnid for wnid, _ in _synsets(count)) or None


def _synsets(count: int) -> list[tuple[str, str]]:
    packed = files("vitrail.weights").joinpath("imagenet.tsv.gz").read_bytes()
    rows = (line.split("\t") for line in gzip.decompress(packed).decode().splitlines())
    return [(wnid, lemma) for wnid, lemma, sets in rows if str(count) in sets.split(",")]
