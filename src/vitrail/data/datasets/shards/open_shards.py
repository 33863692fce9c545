"""Open `wds:PATTERN`: shards by an index, or as a stream.

Shards on this machine are indexed. Of shards with a URL the training images are read as they come;
other splits, whose images must be reached by number, are downloaded. `,stream=true` and
`,stream=false` decide otherwise.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from vitrail.config import InputError, override
from vitrail.data.dataset import BUFFER, ImageDataset, ImageStream
from vitrail.data.datasets.labels import UNLABELED
from vitrail.data.datasets.shards.patterns import (
    is_address,
    list_shards,
    name_splits,
    place_of,
    without_signature,
)
from vitrail.data.datasets.shards.shard_bytes import fetch_address
from vitrail.data.datasets.shards.tar_dataset import open_tar
from vitrail.data.datasets.shards.tar_samples import CLASSES, read_class_file
from vitrail.data.datasets.shards.tar_stream import TarStream
from vitrail.data.split import SPLITS, NoSplitError, choose_split, spell
from vitrail.download import MissingError, cache_folder

_OPTION = re.compile(r"(.+),(stream|classes|buffer|length)=([^,{}/]*)", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class ShardOptions:
    """Options that may follow a pattern, as `,key=value`."""

    stream: bool | None = None
    """Whether images are read as they come; by default, those to train on from a URL."""
    classes: int | None = None
    """Number of classes of a stream, if no file beside the shards names them."""
    length: int | None = None
    """Images of a stream's epoch, so that a run can last epochs."""
    buffer: int = BUFFER
    """Images of a stream that are held in memory to be shuffled."""


def open_shards(
    rest: str, split: str, *, seed: int = 0, labels: bool = True
) -> ImageDataset | ImageStream:
    """Open a split of `wds:PATTERN`; `seed` samples the images to hold out if it has no splits.

    A shard whose name does not tell a split belongs to `train`. Without `labels`, images that are
    not all labeled are one class.
    """
    pattern, options = parse_shards(rest)
    shards = list_shards(pattern)
    words = [word or "train" for word in name_splits(shards)]
    there = [word for word in SPLITS if word in words]
    asked, alone = spell(split), there == ["train"]
    remote = [shard for shard in shards if is_address(shard)]
    name = place_of(shards[0]).parent.name or pattern
    streams = bool(remote) if options.stream is None else options.stream
    if streams and alone and asked not in ("train", "all"):
        hint = "of a stream none is held out; write ,stream=false to read all shards first"
        raise NoSplitError(f"wds:{rest} has no split {asked!r}, and {hint}")
    chosen = "all" if alone else choose_split(asked, there, f"wds:{rest}")
    ours = [s for s, word in zip(shards, words, strict=True) if chosen in (word, "all")]
    title = name if alone else f"{name}/{chosen}"
    if streams and (options.stream or asked == "train"):
        return _open_stream(title, ours, options, labels=labels)
    fetched = _download([shard for shard in ours if is_address(shard)])
    files = [fetched.get(shard) or Path(shard) for shard in ours]
    held = (asked, seed) if alone else None
    try:
        return open_tar(title, files, held)
    except InputError:
        if labels:
            raise
        return open_tar(title, files, held, labels=False)


def parse_shards(text: str) -> tuple[str, ShardOptions]:
    """Parse `PATTERN,stream=true,classes=1000,length=1281167,buffer=4096`."""
    options, given = ShardOptions(), text
    while match := _OPTION.fullmatch(text):
        text, key, value = match.groups()
        try:
            options = override(options, key, value)
        except InputError as error:
            raise InputError(f"wds:{given}: {error}") from None
    if min(options.buffer, options.classes or 1, options.length or 1) < 1:
        raise InputError(f"wds:{given}: expected at least 1 for buffer=, classes= and length=")
    return text, options


def _open_stream(
    title: str, shards: Sequence[str], options: ShardOptions, *, labels: bool
) -> TarStream:
    first = shards[0]
    folder = _fetch_classes(first) if is_address(first) else Path(first).parent
    classes = read_class_file(folder)
    if options.classes and (classes is None or len(classes) != options.classes):
        classes = [str(number) for number in range(options.classes)]
    if classes is None and labels:
        raise InputError(
            f"{title} is a stream whose classes no classes.txt names; write ,classes=NUMBER, put "
            "one beside the shards, or write ,stream=false to read all shards first"
        )
    return TarStream(
        title,
        classes or [UNLABELED],
        shards,
        labels=classes is not None,
        length=options.length,
        buffer=options.buffer,
    )


def _fetch_classes(address: str) -> Path:
    """Download the files that name the classes; return their folder in the cache."""
    target = _target(address)
    for file in CLASSES:
        with suppress(MissingError):
            beside = urlsplit(address)._replace(
                path=str(place_of(address).with_name(file)), query=""
            )
            fetch_address(beside.geturl(), target.with_name(file))
    return target.parent


def _download(addresses: Sequence[str]) -> dict[str, Path]:
    """Download shards that are not in the cache, and the files that name their classes."""
    targets = {address: _target(address) for address in addresses}
    missing = [address for address, target in targets.items() if not target.exists()]
    if missing:
        _fetch_classes(missing[0])
        _check_space(fetch_address(missing[0], targets[missing[0]]), len(missing) - 1)
    for address, target in targets.items():
        fetch_address(address, target)
    return targets


def _target(address: str) -> Path:
    """Return a shard's place in the cache: one folder for all shards of a URL's folder."""
    place, parts = place_of(address), urlsplit(without_signature(address))
    folder = parts._replace(path=place.parent.as_posix()).geturl()
    digest = hashlib.sha256(folder.encode()).hexdigest()
    return cache_folder() / "shards" / f"{parts.hostname}-{digest[:12]}" / place.name


def _check_space(first: Path, more: int) -> None:
    """Estimate from the first shard whether the disk has space for the others."""
    needed, free = first.stat().st_size * more, shutil.disk_usage(first.parent).free
    if needed > free:
        space = f"about {needed / 1e9:,.1f} GB needed, {free / 1e9:,.1f} GB free"
        hint = "free some space, set VITRAIL_CACHE to another folder, or take fewer shards"
        raise InputError(f"no room for {more:,} more shards in {first.parent} ({space}); {hint}")
