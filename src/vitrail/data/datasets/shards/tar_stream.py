"""Tar shards read as they come, from front to back: from a disk, a server or a bucket."""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import numpy as np

from vitrail.config import InputError
from vitrail.data.dataset import ImageStream, StreamItem
from vitrail.data.datasets.class_index import ClassIndex
from vitrail.data.datasets.shards.patterns import place_of, without_signature
from vitrail.data.datasets.shards.shard_bytes import ForwardBytes
from vitrail.data.datasets.shards.tar_reader import DamagedError, TarReader
from vitrail.data.datasets.shards.tar_samples import Sample, find_samples, is_image, is_label
from vitrail.text import printable

_END = 1 << 62  # an offset after a shard's last image, where nothing more can be read
_LARGEST = 1 << 28  # bytes of an image: those of 100 megapixels, and some more


class TarStream(ImageStream):
    """Images in tar files; an offset counts bytes of a shard."""

    def __init__(
        self,
        name: str,
        classes: Sequence[str],
        shards: Sequence[str],
        *,
        labels: bool,
        length: int | None,
        buffer: int,
    ) -> None:
        self._shards, self._labels = list(shards), labels
        names = [place_of(shard).name for shard in shards]
        self._titles = names if len(set(names)) == len(names) else list(shards)
        super().__init__(
            name,
            classes,
            shards=len(shards),
            multilabel=labels and isinstance(self._first_label(), list),
            length=length,
            buffer=buffer,
        )

    def fingerprint(self) -> str:
        """Hash what is known before any image is read, with the names of the shards."""
        known = repr((super().fingerprint(), [place_of(each).name for each in self._shards]))
        return hashlib.sha256(known.encode("utf-8", "surrogateescape")).hexdigest()

    def shard_names(self) -> Sequence[str]:
        """Name the shards as an index of them does."""
        return [printable(title) for title in self._titles]

    def read_shard(self, shard: int, offset: int = 0) -> Iterator[tuple[int, StreamItem]]:
        """Read a shard's samples; one that is cut off or damaged ends with an unreadable image."""
        numbering, title = ClassIndex(self.classes), self._titles[shard]
        after, none = offset, True
        if offset == _END:
            return
        try:
            for sample in self._samples(shard, offset):
                after, none = sample.end, False
                where = printable(f"{title}:{sample.image.name}")
                yield (
                    after,
                    StreamItem(
                        sample.image.content or _fault("no image, or one too large", where),
                        self._number(numbering, sample.label, where),
                        where,
                    ),
                )
        except DamagedError as error:
            yield self._lost(title, after, str(error))
            return
        if none and not offset:
            yield self._lost(title, after, "no images; expected KEY.jpg with KEY.cls")

    def _lost(self, title: str, after: int, reason: str) -> tuple[int, StreamItem]:
        """Count what can't be read of a shard as one image."""
        label = np.zeros(len(self.classes), np.uint8) if self.multilabel else 0
        where = printable(f"{title}, from byte {after:,} on")
        return _END, StreamItem(_fault(reason, title), label, where)

    def _number(self, numbering: ClassIndex, label: Any, where: str) -> int | np.ndarray:
        try:
            return numbering.row(label) if self.multilabel else numbering.number(label)
        except InputError as error:
            raise InputError(f"{where}: {error}") from None

    def _first_label(self) -> Any:
        """Read one label, and so find out that there are shards before a run begins."""
        try:
            return next(self._samples(0, 0)).label
        except StopIteration:
            title = without_signature(self._shards[0])
            raise InputError(f"{title} has no images; expected KEY.jpg with KEY.cls") from None

    def _samples(self, shard: int, offset: int) -> Iterator[Sample]:
        place = self._shards[shard]
        with closing(ForwardBytes(place, offset)) as source:
            name = without_signature(place)
            reader = TarReader(name, source)
            members = reader.members(_wanted, start=offset, largest=_LARGEST)
            yield from find_samples(members, name, labels=self._labels)


def _wanted(name: str) -> bool:
    return is_label(name) or is_image(name)


def _fault(reason: str, where: str) -> OSError:
    return OSError(errno.EIO, reason, where)
