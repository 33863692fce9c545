"""What a model was trained on and what training held out: a record by hashes of the images.

An image is known by two hashes of 32 bits: one of its name below the dataset's folder, so that a
moved dataset still matches, and one of its size and of its first and last bytes, so that another
dataset with the same names does not, and a copy under another name does. Beyond `MOST` images
nobody opens each file before a run: there the names alone tell, with 64 bits. A record that is too
large for a model folder becomes a Bloom filter of what was trained on. It errs to one side: an
image that was not trained on may count as trained on, never the other way round.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from vitrail.config import InputError
from vitrail.data.dataset import ImageDataset, ImageStream
from vitrail.data.datasets.mapped import (
    INDEX,
    Parts,
    blocks,
    load_arrays,
    release_pages,
    save_arrays,
)
from vitrail.data.name_hashes import name_hashes
from vitrail.data.smallest import Keys

MOST = 100_000
"""Images up to which contents are looked at, not only names."""
ROOM = 950_272
"""Bytes of hashes or filters in a model folder, at most."""
_BITS = 8 * ROOM  # of a filter; it can be halved 18 times
_BLOCK = 1 << 20  # images that are looked at together
_TABLE = 1 << 21  # hashes that are sorted together
_NAME, _CONTENT = np.uint64(0xFFFFFFFF00000000), np.uint64(0xFFFFFFFF)
_MIX = np.uint64(0x9E3779B97F4A7C15)

UNSEEN, HELD, TRAINED = 0, 1, 2
"""What a record says of an image: nothing, held out of training, trained on."""
Kind = Literal["contents", "names", "shards", "unknown"]


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainingImages:
    """The images of one training: what was trained on, and what was held out."""

    data: str
    """The name of what was trained on."""
    kind: Kind
    """What hashes are of: names and contents, names alone, or the names of a stream's shards;
    unknown where images can't be known again, as those of a torch dataset."""
    images: int
    """Images (or shards) that were trained on."""
    held_out: int
    place: str = ""
    """Hash of the dataset's folder, by which an image that was edited there is known."""
    filtered: bool = False
    """Whether `trained` is a Bloom filter, and what was held out is only counted."""
    chosen_on: str = ""
    """The name of what was held out, if it chose weights or thresholds."""
    trained: np.ndarray = field(repr=False)
    """Hashes (uint64), or a filter's bytes (uint8)."""
    held: np.ndarray = field(repr=False)

    def statuses(self, dataset: ImageDataset) -> tuple[np.ndarray, int]:
        """Tell of each image whether it was trained on or held out (uint8, N).

        Also count those that have a known image's name but another content, and count as new.
        """
        found = np.zeros(len(dataset), np.uint8)
        if self.kind == "unknown" or not dataset.known_again:
            return found, 0
        if self.kind == "contents" and len(dataset) <= MOST:
            return self._by_contents(dataset)
        if self.kind == "contents":  # too many to open: their names alone, with 32 bits
            keys: Keys = partial(_masked, name_hashes(dataset))
            tables = ((self.held & _NAME, HELD), (self.trained & _NAME, TRAINED))
        else:
            keys = shard_hashes(dataset) if self.kind == "shards" else name_hashes(dataset)
            tables = ((self.held, HELD), (self.trained, TRAINED))
        for start, stop in _blocks(len(dataset)):
            here = keys(start, stop)
            for table, status in tables:
                if self.filtered and status == TRAINED:
                    hit = in_filter(table, here, self.images)
                else:
                    hit = _in_table(table, here)
                found[start:stop][hit] = status
        return found, 0

    def _by_contents(self, dataset: ImageDataset) -> tuple[np.ndarray, int]:
        keys = image_hashes(dataset)
        found = np.zeros(len(keys), np.uint8)
        known = (keys & _CONTENT) != 0
        if self.filtered:
            found[in_filter(self.trained, keys & _CONTENT, self.images) & known] = TRAINED
            return found, 0
        tables = ((self.held, HELD), (self.trained, TRAINED))
        same = _in_table(np.concatenate([self.trained, self.held]) & _NAME, keys & _NAME)
        here = self.place != "" and self.place == place_hash(dataset)
        # The weakest evidence first: a name, a content under whatever name, then both.
        for table, status in tables:
            by_name = _in_table(table & _NAME, keys & _NAME)
            bare = _in_table(table[(table & _CONTENT) == 0] & _NAME, keys & _NAME)
            found[(by_name & (here | ~known)) | bare] = status
        for table, status in tables:
            contents = table & _CONTENT
            found[_in_table(contents[contents != 0], keys & _CONTENT) & known] = status
        for table, status in tables:
            found[_in_table(table, keys) & known] = status
        return found, int(np.count_nonzero(same & (found == UNSEEN)))

    def bytes(self) -> int:
        """Count the bytes of the hashes or of the filter."""
        return self.trained.nbytes + self.held.nbytes

    def false_positives(self) -> float:
        """Estimate which part of unseen images counts as trained on, too; 0 of exact hashes."""
        if not self.filtered:
            return 0.0
        return float(np.unpackbits(self.trained).mean()) ** _hashes(self.images)

    def smaller(self, room: int) -> TrainingImages:
        """Make a filter of at most so many bytes."""
        bits = _BITS
        while bits // 8 > room and bits % 2 == 0 and bits > 4096:
            bits //= 2
        if self.filtered:
            folded = np.unpackbits(self.trained)
            while len(folded) > bits:
                folded = folded[: len(folded) // 2] | folded[len(folded) // 2 :]
            return replace(self, trained=np.packbits(folded))
        marked = np.zeros(bits, bool)
        for start, stop in _blocks(len(self.trained)):
            words = np.array(self.trained[start:stop])
            release_pages(self.trained)
            words = words & _CONTENT if self.kind == "contents" else words
            for places in _places(words, bits, self.images):
                marked[places] = True
        nothing = np.empty(0, np.uint64)
        return replace(self, filtered=True, trained=np.packbits(marked), held=nothing)


@dataclass(frozen=True, kw_only=True)
class TrainedOn:
    """What weights were trained on, all their trainings: the last first."""

    trainings: tuple[TrainingImages, ...] = ()
    unrecorded: tuple[str, ...] = ()
    """Weights of ours that they began from, of which nobody recorded it."""

    def fitted(self) -> TrainedOn:
        """Make filters of the largest, the oldest first, until all fit into a model folder."""
        found = list(self.trainings)
        while (total := sum(each.bytes() for each in found)) > ROOM:
            place = max(range(len(found)), key=lambda n: (found[n].bytes(), n))
            largest = found[place]
            others = total - largest.bytes()
            room = max(ROOM - others, ROOM // (2 * len(found)))
            room = min(room, largest.bytes() - 1)
            if room < 1024:
                break
            found[place] = largest.smaller(room)
        return replace(self, trainings=tuple(found))


def join_records(records: Sequence[TrainedOn | None]) -> TrainedOn | None:
    """Join what the weights were trained on that a model is made of; None if no record is there."""
    there = [each for each in records if each is not None]
    if not there:
        return None
    trainings = dict.fromkeys(one for each in there for one in each.trainings)
    unrecorded = dict.fromkeys(one for each in there for one in each.unrecorded)
    return TrainedOn(trainings=tuple(trainings), unrecorded=tuple(unrecorded))


def record_images(
    train: ImageDataset | ImageStream,
    held: Sequence[ImageDataset],
    folder: Path | None = None,
    chosen_on: str = "",
) -> TrainingImages:
    """Record what is trained on and what is held out; `folder` keeps it, and maps a large one."""
    nothing = np.empty(0, np.uint64)
    arrays: dict[str, np.ndarray | Parts] = {"trained": nothing, "held": nothing}
    facts: dict[str, Any] = {"data": train.name, "kind": "unknown", "held_out": 0}
    facts["chosen_on"] = chosen_on
    if isinstance(train, ImageStream):
        if names := train.shard_names():
            facts["kind"], arrays["trained"] = "shards", _hash_texts(names)
        facts["images"] = train.shards
    else:
        facts |= {"images": len(train), "held_out": sum(map(len, held))}
        held = [each for each in held if each.known_again]
        if train.known_again:
            small = facts["images"] + facts["held_out"] <= MOST
            facts |= {"kind": "contents" if small else "names", "place": place_hash(train)}
            make = _hash_small if small else _parts
            arrays = {"trained": make([train]), "held": make(held)}
    if folder is not None:
        save_arrays(folder, arrays, {**facts, "checksum": _checksum(arrays.values())})
        if facts["kind"] == "names":
            arrays = {**load_arrays(folder)}
    whole: dict[str, Any] = {k: a.whole() if isinstance(a, Parts) else a for k, a in arrays.items()}
    return TrainingImages(**facts, **whole)


def _hash_small(datasets: Sequence[ImageDataset]) -> np.ndarray:
    return np.sort(np.concatenate([np.empty(0, np.uint64), *map(image_hashes, datasets)]))


def load_images(folder: Path) -> TrainingImages | None:
    """Map the record of a run's own training from its folder; None if there is none."""
    if not folder.exists():
        return None
    try:
        facts = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        del facts["arrays"]
        arrays = load_arrays(folder)
        if facts.pop("checksum") != _checksum(arrays.values()):
            raise ValueError("wrong checksum")
        return TrainingImages(**{**facts, **arrays})
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        said = " ".join(str(error).split())
        raise InputError(
            f"{folder} is damaged ({said}), so what was trained on is unknown; remove it to go by "
            "what the model folder says"
        ) from None


def _checksum(arrays: Iterable[np.ndarray | Parts]) -> str:
    """Hash arrays part by part."""
    found = hashlib.blake2b(digest_size=16)
    for array in arrays:
        for part in array.make() if isinstance(array, Parts) else blocks(array):
            found.update(np.ascontiguousarray(part).data)
    return found.hexdigest()


def _parts(datasets: Sequence[ImageDataset]) -> Parts:
    def make() -> Iterator[np.ndarray]:
        for dataset in datasets:
            keys = name_hashes(dataset)
            for start, stop in _blocks(len(dataset)):
                yield keys(start, stop)

    return Parts(np.dtype(np.uint64), (sum(map(len, datasets)),), make)


def image_hashes(dataset: ImageDataset) -> np.ndarray:
    """Hash the name and the content of each image (uint64); 0 for a content that is not known."""
    names = name_hashes(dataset)(0, len(dataset)) if len(dataset) else np.empty(0, np.uint64)
    contents = np.zeros(len(dataset), np.uint64)
    for index in range(len(dataset)):
        with suppress(OSError):  # what can't be read is known by its name
            digest = hashlib.blake2b(dataset.excerpt(index), digest_size=4).digest()
            contents[index] = int.from_bytes(digest, "little") or 1
    return (names & _NAME) | contents


def shard_hashes(dataset: ImageDataset) -> Keys:
    """Hash the name of each image's shard, where images are named by shards."""

    def give(start: int, stop: int) -> np.ndarray:
        names = (dataset.where(index) for index in range(start, stop))
        return _hash_texts([name.rpartition(":")[0] or name for name in names])

    return give


def place_hash(dataset: ImageDataset) -> str:
    """Hash the folder that a dataset is in; empty where there is none."""
    if dataset.root is None:
        return ""
    text = str(dataset.root.resolve()).encode("utf-8", "surrogateescape")
    return hashlib.blake2b(text, digest_size=8).hexdigest()


def _masked(keys: Keys, start: int, stop: int) -> np.ndarray:
    return keys(start, stop) & _NAME


def _hash_texts(texts: Sequence[str]) -> np.ndarray:
    encoded = (text.encode("utf-8", "surrogateescape") for text in texts)
    joined = b"".join(hashlib.blake2b(text, digest_size=8).digest() for text in encoded)
    return np.frombuffer(joined, "<u8").astype(np.uint64)


def _blocks(count: int) -> Iterator[tuple[int, int]]:
    for start in range(0, count, _BLOCK):
        yield start, min(start + _BLOCK, count)


def _in_table(table: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Mark the keys that are in a table, of which a part is sorted at a time."""
    found = np.zeros(len(keys), bool)
    for start in range(0, len(table), _TABLE):
        part = np.sort(table[start : start + _TABLE])
        release_pages(table)
        places = np.minimum(np.searchsorted(part, keys), len(part) - 1)
        found |= part[places] == keys
    return found


def _hashes(images: int) -> int:
    """Choose how many bits of a filter an image sets."""
    return int(min(max(round(_BITS / max(images, 1) * 0.693), 1), 8))


def _places(words: np.ndarray, bits: int, images: int) -> Iterator[np.ndarray]:
    words = words * _MIX  # or contents, of 32 bits, would have no second half
    first, second = words & _CONTENT, (words >> np.uint64(32)) | np.uint64(1)
    for number in range(_hashes(images)):
        yield ((first + np.uint64(number) * second) % np.uint64(_BITS)) % np.uint64(bits)


def in_filter(packed: np.ndarray, words: np.ndarray, images: int) -> np.ndarray:
    """Mark the words that a filter of so many images may hold: all that it does, and some more."""
    bits = np.unpackbits(packed).view(bool)
    found = np.ones(len(words), bool)
    for places in _places(words, len(bits), images):
        found &= bits[places]
    return found
