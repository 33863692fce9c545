"""Expand patterns such as `data/train-{000..146}.tar` to shards, and tell the split of each.

A shard is a path or a URL, as text.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from glob import escape, glob, has_magic
from itertools import islice
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from vitrail.config import InputError
from vitrail.data.datasets.shards.shard_bytes import check_address
from vitrail.data.split import SPLITS, spell
from vitrail.text import neighbors, show

_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"([0-9]{1,18})\.\.([0-9]{1,18})")
_URL = re.compile(r"[A-Za-z][\w+.-]*://")
_NO_ADDRESS = ("file://", "pipe:")
_SIGNS = re.compile(
    r"x-amz-.*|x-goog-.*|x-oss-signature|sig|signature|(access_)?token|(aws|oss)accesskeyid"
    r"|googleaccessid"
)
"""Names of query parameters that sign an address, in lower case."""
_BESIDE = {
    "expires", "policy", "key-pair-id", "hash-algorithm", "security-token", "x-oss-credential",
    "x-oss-date", "x-oss-expires", "x-oss-signature-version", "x-oss-security-token",
    "sv", "ss", "srt", "sr", "sp", "st", "se", "spr", "sip", "sdd", "scid",  # Azure's
    "skoid", "sktid", "skt", "ske", "sks", "skv", "saoid", "suoid",
}  # fmt: skip
"""Parameters that belong to a signature, where an address has one."""
_MOST = 100_000  # shards of one pattern


def list_shards(text: str) -> list[str]:
    """List the shards of a pattern: paths, URLs or folders, separated by `::`.

    `{000..146}` and `{a,b}` stand for several; in a path, so do `*`, `?` and `[…]`.
    """
    places = list(islice((p for part in text.split("::") for p in _expand(part)), _MOST + 1))
    if len(places) > _MOST:
        raise InputError(f"wds:{text} stands for more than {_MOST:,} shards")
    shards = [shard for place in places for shard in _find(place)]
    twice = [shard for shard, count in Counter(shards).items() if count > 1]
    if twice:
        raise InputError(f"wds:{text} names {twice[0]} twice")
    return shards


def is_address(shard: str) -> bool:
    """Tell URLs from paths."""
    return _URL.match(shard) is not None


def place_of(shard: str) -> PurePosixPath:
    """Return the path of a shard, on this machine or its server."""
    return PurePosixPath(urlsplit(shard).path if is_address(shard) else shard)


def without_signature(address: str) -> str:
    """Drop what signs an address, which changes from day to day while the file stays the same."""
    parts = urlsplit(address)
    fields = {field: field.partition("=")[0].lower() for field in parts.query.split("&")}
    if not any(map(_SIGNS.fullmatch, fields.values())):
        return address
    kept = [f for f, name in fields.items() if not _SIGNS.fullmatch(name) and name not in _BESIDE]
    return parts._replace(query="&".join(kept)).geturl()


def name_splits(shards: Sequence[str]) -> list[str | None]:
    """Tell the split of each shard by a word of its name, or else by its folder's name.

    Folders count only if there are several.
    """
    places = [place_of(shard) for shard in shards]
    several = len({place.parent for place in places}) > 1
    words = (re.split(r"[^A-Za-z]+", place.name) for place in places)
    folders = ([place.parent.name] if several else [] for place in places)
    return [_first_split([*w, *f]) for w, f in zip(words, folders, strict=True)]


def _first_split(words: Iterable[str]) -> str | None:
    return next((spell(word) for word in words if spell(word) in SPLITS), None)


def _expand(text: str) -> Iterator[str]:
    """Expand the braces of a text, in order."""
    match = _BRACES.search(text)
    before = text[: match.start()] if match else text
    if "{" in before or "}" in before:
        raise InputError(f"expected {{000..146}} or {{a,b}}, one after the other, in {text!r}")
    if match is None:
        yield text
        return
    for choice in _choices(match[1]):
        for rest in _expand(text[match.end() :]):
            yield before + choice + rest


def _choices(inner: str) -> Iterable[str]:
    if match := _RANGE.fullmatch(inner):
        padded = any(end != "0" and end.startswith("0") for end in match.groups())
        width = max(map(len, match.groups())) if padded else 0
        first, last = map(int, match.groups())
        if first <= last:
            return (f"{number:0{width}}" for number in range(first, last + 1))
    elif "," in inner:
        return inner.split(",")
    raise InputError(f"{{{inner}}} is not a range; expected {{000..146}} or {{a,b}}")


def _find(place: str) -> list[str]:
    """List the shards of a folder, a path with wildcards, a path or a URL."""
    if place.startswith(_NO_ADDRESS):
        raise InputError(f"expected paths or https:// addresses of .tar files, got {place}")
    if is_address(place):
        check_address(place)
        if not place_of(place).name.endswith(".tar"):
            raise InputError(f"expected an address that ends in .tar, got {place}")
        return [place]
    path = os.path.expanduser(place)
    if os.path.isdir(path):
        found = sorted(glob(f"{escape(path)}/*.tar")) or sorted(glob(f"{escape(path)}/*/*.tar"))
    elif os.path.isfile(path):
        return [path]
    elif has_magic(path):
        found = sorted(filter(os.path.isfile, glob(path)))
    else:
        raise InputError(f"no file or folder {show(Path(path))}{neighbors(Path(path))}")
    if not found:
        raise InputError(f"no .tar files in {show(Path(path))}")
    return found
