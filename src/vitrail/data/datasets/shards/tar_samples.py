"""Samples of tar files as webdataset writes them: an image and its label.

A sample is the files of one key, which is a name up to its first dot: `0001.jpg` with `0001.cls`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from vitrail.config import InputError
from vitrail.data.datasets.labels import UNLABELED
from vitrail.data.datasets.shards.tar_reader import Member
from vitrail.text import printable, show

_IMAGES = ("jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "ppm", "avif", "npy")
_LABELS = ("cls", "json", "txt")  # the first one with a label counts
_KEYS = ("label", "class", "cls")  # of a label in a JSON object
CLASSES = ("classes.txt", "dataset_info.json")
"""Files beside the shards, of which either may name the classes."""
_NAME = re.compile(r"((?:.*/)?[^./]+)\.([^/]*)", re.DOTALL)  # key and extension


class Sample(NamedTuple):
    """An image, and its label as it is written: a number, a name, or a list of them."""

    image: Member
    label: Any
    end: int
    """Where the file after the sample begins."""


def is_label(name: str) -> bool:
    """Tell whether a file holds a label, by its name."""
    return name.lower().endswith(tuple(f".{extension}" for extension in _LABELS))


def is_image(name: str) -> bool:
    """Tell whether a file holds an image, by its name."""
    return (match := _NAME.fullmatch(name)) is not None and match[2].lower() in _IMAGES


def find_samples(members: Iterable[Member], shard: str, *, labels: bool) -> Iterator[Sample]:
    """Find the images among a shard's files, with their labels; without `labels`, of one class."""
    seen: set[str] = set()
    for key, files in _groups(members, shard):
        try:
            if key in seen:
                raise InputError("it appears twice; files of one key must be adjacent")
            seen.add(key)
            if sample := _find_sample(files, labels):
                yield sample
        except InputError as error:
            raise InputError(f"{shard}: sample {printable(key)!r}: {error}") from None


def _find_sample(files: dict[str, Member], labeled: bool) -> Sample | None:
    """Find image and label among the files of a key; None if it has neither, like a README."""
    images = [extension for extension in files if extension in _IMAGES]
    labels = {extension: files[extension].content for extension in _LABELS if extension in files}
    if len(images) == 1:
        label = _read_label(labels) if labeled else UNLABELED
        return Sample(files[images[0]], label, max(file.end for file in files.values()))
    if images:
        raise InputError(f"it has several images ({', '.join(images)}); expected one")
    if labels:
        kinds, there = ", ".join(_IMAGES), ", ".join(files)
        raise InputError(f"it has no image; expected one of {kinds}, got {there}")
    return None


def _groups(members: Iterable[Member], shard: str) -> Iterator[tuple[str, dict[str, Member]]]:
    """Yield the files of each key by their extensions; a key ends where another starts."""
    key, files = "", dict[str, Member]()
    for member in members:
        if (match := _NAME.fullmatch(member.name)) is None:
            continue  # no extension, or hidden
        if match[1] != key:
            if files:
                yield key, files
            key, files = match[1], {}
        extension = match[2].lower()
        if extension in files:
            raise InputError(f"{shard}: {printable(member.name)} appears twice")
        files[extension] = member
    if files:
        yield key, files


def _read_label(contents: dict[str, bytes | None]) -> Any:
    """Read a sample's label: a number, a name, or a list of them."""
    for extension, content in contents.items():
        try:
            text = (content or b"").decode("utf-8-sig").strip()
            value = json.loads(text) if extension == "json" or text.startswith("[") else text
        except (ValueError, RecursionError):
            raise InputError(f"its .{extension} can't be read as text or JSON") from None
        if isinstance(value, dict):
            value = next((value[key] for key in _KEYS if key in value), None)
        if isinstance(value, list):
            return [_number_or_name(item) for item in value]
        if value not in (None, ""):
            return _number_or_name(value)
    raise InputError('it has no label; expected KEY.cls, KEY.json with a "label", or KEY.txt')


def _number_or_name(value: Any) -> int | str:
    if isinstance(value, str) and len(value.splitlines()) == 1:
        return int(value) if re.fullmatch("-?[0-9]{1,18}", value) else value
    if type(value) is not int:
        raise InputError(f"expected a class index or name, got {value!r}")
    return value


def read_class_file(folder: Path) -> list[str] | None:
    """Read the class names from a file beside the shards, if there is one."""
    for path in (folder / file for file in CLASSES):
        try:
            text = path.read_text(encoding="utf-8-sig")
            names = text.splitlines() if path.suffix == ".txt" else _names_in(json.loads(text))
            names = [name.strip() for name in names if name.strip()]
        except FileNotFoundError:
            continue
        except (OSError, ValueError, LookupError, AttributeError, TypeError):
            raise InputError(f"{show(path)}: expected class names") from None
        if len(set(names)) < len(names):
            raise InputError(f"{show(path)}: expected unique class names")
        if names:
            return names
    return None


def _names_in(information: Any) -> list[str]:
    """Read the class names from a dataset_info.json; empty if it has none."""
    labels = [f for f in information["features"].values() if f.get("_type") == "ClassLabel"]
    return labels[0]["names"] if len(labels) == 1 else []
