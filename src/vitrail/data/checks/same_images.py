"""Group the images of a dataset that are the same or look the same: in a split, across splits."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from vitrail.data.checks.near_duplicates import near_duplicates


class CheckedImage(NamedTuple):
    """An image as it is compared with others."""

    split: str
    where: str
    label: bytes
    digest: bytes
    """A hash of its file."""
    appearance: bytes
    """Its perceptual hash; empty for none."""

    def __str__(self) -> str:
        """Name the image with its split."""
        return f"{self.split}: {self.where}"


@dataclass(frozen=True, kw_only=True)
class SameImages:
    """Groups of images, each as `split: path`; one that is in two lists is the matter in both."""

    within: list[list[str]]
    """Identical, within a split."""
    across: list[list[str]]
    """Identical, in several splits."""
    conflicts: list[list[str]]
    """Identical, under several labels."""
    near_within: list[list[str]]
    """Files that differ and look the same, within a split."""
    near_across: list[list[str]]
    """Files that differ and look the same, in several splits."""


def group_same_images(images: Sequence[CheckedImage]) -> SameImages:
    """Group images by their files' hashes, and by what they look like."""
    copies: defaultdict[bytes, list[CheckedImage]] = defaultdict(list)
    for image in images:
        copies[image.digest].append(image)
    identical = [group for group in copies.values() if len(group) > 1]
    alike = [
        [images[index] for index in group]
        for group in near_duplicates([image.appearance for image in images])
    ]
    alike = [group for group in alike if len({image.digest for image in group}) > 1]
    within, across = _by_splits(identical)
    near_within, near_across = _by_splits(alike)
    return SameImages(
        within=within,
        across=across,
        conflicts=[
            list(map(str, group))
            for group in identical
            if len({image.label for image in group}) > 1
        ],
        near_within=near_within,
        near_across=near_across,
    )


def _by_splits(
    groups: Iterable[Sequence[CheckedImage]],
) -> tuple[list[list[str]], list[list[str]]]:
    """Name the groups that have two images of one split, and those that have several splits."""
    within: list[list[str]] = []
    across: list[list[str]] = []
    for group in groups:
        names, splits = list(map(str, group)), Counter(image.split for image in group)
        if max(splits.values()) > 1:
            within.append(names)
        if len(splits) > 1:
            across.append(names)
    return within, across
