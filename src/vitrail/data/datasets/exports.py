"""Exports of labeling tools, where they hold one label per image: COCO, Label Studio and YOLO.

Boxes and masks are not learned here: an export with several classes in an image is refused.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from vitrail.config import InputError, read_file
from vitrail.data.datasets.folder import FolderDataset, find_files
from vitrail.data.datasets.lists import Columns, Row, open_rows
from vitrail.data.split import split_word
from vitrail.text import neighbors, quoted, show

_LARGEST = 1 << 30  # bytes of a file of labels


def open_json(
    path: Path, split: str = "train", *, columns: Columns | None = None, seed: int = 0
) -> FolderDataset:
    """Open a split of a COCO or Label Studio export."""
    data = _read(path)
    if isinstance(data, dict) and {"images", "annotations", "categories"} <= data.keys():
        kind, rows = "COCO", _read_coco(data)
    elif isinstance(data, list) and data and all(isinstance(task, dict) for task in data):
        kind, rows = "Label Studio", _read_tasks(data)
    else:
        raise InputError(
            f"{show(path)} is neither a COCO nor a Label Studio export; expected a CSV file, or "
            "one JSON object per line as jsonl:FILE"
        )
    try:
        listed = list(rows)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise InputError(f"{show(path)}: a damaged {kind} export: {error!r}") from None
    labeled, notes = _check_one_label(f"{show(path)} is a {kind} export", listed)
    return open_rows(path, labeled, split, seed, columns=columns, notes=notes)


def _read(path: Path) -> Any:
    try:
        if path.stat().st_size > _LARGEST:
            raise InputError(f"{show(path)} is larger than {_LARGEST >> 30} GB; split it")
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        raise InputError(f"no file {show(path)}{neighbors(path)}") from None
    except OSError as error:
        raise InputError(f"cannot read {show(path)}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{show(path)}: {getattr(error, 'msg', error)}") from None


def _read_coco(data: Mapping[str, Any]) -> Iterator[tuple[str, set[str]]]:
    """Yield each image's file and its classes."""
    names = {each["id"]: str(each["name"]) for each in data["categories"]}
    found: dict[Any, set[str]] = {each["id"]: set() for each in data["images"]}
    for each in data["annotations"]:
        found[each["image_id"]].add(names[each["category_id"]])
    for each in data["images"]:
        yield each["file_name"], found[each["id"]]


def _read_tasks(tasks: list[dict[str, Any]]) -> Iterator[tuple[str, set[str]]]:
    """Yield the file and the chosen classes of each task, of the full JSON or of JSON-MIN."""
    for task in tasks:
        values = task["data"] if isinstance(task.get("data"), dict) else task
        texts = [text for text in values.values() if isinstance(text, str)]
        image = next((text for text in texts if re.search(r"\.\w{3,5}(\?|$)|\?d=", text)), None)
        if image is None:
            raise KeyError("image")
        if "annotations" not in task:
            chosen = task.get("choice")
            yield _local(image), {chosen} if isinstance(chosen, str) else set()
            continue
        results = [
            result
            for annotation in task["annotations"]
            if not annotation.get("was_cancelled")
            for result in annotation["result"]
        ]
        labels = set[str]()
        for result in results:
            for kind, value in result["value"].items():
                if kind == "choices" or kind.endswith("labels"):
                    labels.update(map(str, value))
        yield _local(image), labels


def _local(image: str) -> str:
    """Return the path of a file that Label Studio serves itself."""
    parts = urlsplit(image)
    local = parse_qs(parts.query).get("d")
    if local and not parts.netloc:
        return local[0]
    return image if parts.netloc else parts.path or image


def _check_one_label(
    what: str, found: list[tuple[str, set[str]]], splits: list[str | None] | None = None
) -> tuple[list[Row], list[str]]:
    """Make rows of images that have one class each, and say how many have none.

    InputError, in one line, where an image has several, or none has any.
    """
    several = [file for file, labels in found if len(labels) > 1]
    none = [file for file, labels in found if not labels]
    if several or len(none) == len(found):
        counts = [f"{len(several):,} show several classes"] if several else []
        counts += [f"{len(none):,} have none"] if none else []
        some = quoted((several or none)[:1])
        raise InputError(
            f"{what}: of {len(found):,} images {' and '.join(counts)}, such as {some}; whole "
            "images are classified here: export one label per image, or a CSV with labels as a|b"
        )
    rows = [
        Row(number, file, next(iter(labels)), split, unit="image")
        for number, ((file, labels), split) in enumerate(
            zip(found, splits or [None] * len(found), strict=True), 1
        )
        if labels
    ]
    if not none:
        return rows, []
    are = "has no label and is" if len(none) == 1 else "have no label and are"
    told = f"{what}: {len(none):,} of {len(found):,} images {are} left out, such as"
    return rows, [f"{told} {quoted(none[:1])}"]


def is_yolo(folder: Path) -> bool:
    """Tell whether a folder is a YOLO export: images, and beside them a text of labels for each."""
    return bool(_yolo_parts(folder))


def _yolo_parts(folder: Path) -> list[tuple[str | None, Path, Path]]:
    """List the splits of a YOLO export: name (None if inside), images and labels."""
    found: list[tuple[str | None, Path, Path]] = []
    with suppress(OSError):
        places = [folder, *sorted(each for each in folder.iterdir() if each.is_dir())]
        for place in places:
            images, labels = place / "images", place / "labels"
            word = None if place == folder else split_word(place.name)[0]
            if (place == folder or word) and images.is_dir() and labels.is_dir():
                texts = (each for each in labels.rglob("*") if each.is_file())
                first = next(texts, None)
                if first is not None and first.suffix in (".txt", ".cache"):
                    found.append((word, images, labels))
    return found


def open_yolo(folder: Path, split: str = "train", *, seed: int = 0) -> FolderDataset:
    """Open a split of a YOLO export whose images have boxes of one class each."""
    names = _yolo_names(folder)
    found: list[tuple[str, set[str]]] = []
    splits: list[str | None] = []
    for word, images, labels in _yolo_parts(folder):
        for file in map(os.fsdecode, find_files(images)):
            text = labels / Path(file).with_suffix(".txt")
            numbers = set[str]()
            with suppress(OSError):
                lines = text.read_text(encoding="utf-8", errors="replace").splitlines()
                numbers = {line.split()[0] for line in lines if line.split()}
            path = os.path.relpath(images / file, folder)
            found.append((path, {names.get(number, number) for number in numbers}))
            splits.append(word or split_word(file.partition("/")[0])[0])
    what = f"{show(folder)} is a YOLO export"
    if not found:
        raise InputError(f"{what} without images")
    rows, notes = _check_one_label(what, found, None if None in splits else splits)
    return open_rows(folder / "labels", rows, split, seed, notes=notes)


def _yolo_names(folder: Path) -> dict[str, str]:
    """Read the names of classes by their numbers, where the export has them."""
    for place in ("data.yaml", "dataset.yaml", "classes.txt", "labels/classes.txt", "obj.names"):
        path = folder / place
        if not path.is_file():
            continue
        if path.suffix != ".yaml":
            lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
            return {str(number): name.strip() for number, name in enumerate(lines) if name.strip()}
        names = read_file(path).get("names", [])
        pairs = names.items() if isinstance(names, dict) else enumerate(names)
        return {str(number): str(name) for number, name in pairs}
    return {}
