"""Load `hf:NAME` with Hugging Face's `datasets` library, quietly."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitrail.config import InputError, override
from vitrail.data.dataset import BUFFER
from vitrail.data.split import SPLITS, spell
from vitrail.download import knock
from vitrail.text import neighbors, show

_SAVED = ("state.json", "dataset_dict.json")  # what save_to_disk leaves in a folder
_NAME = re.compile(r"((?:[\w.-]+/)?[\w.-]+)(?:@([\w./-]+))?")


@dataclass(frozen=True, kw_only=True)
class HubOptions:
    """Options that may follow a name, as `,key=value`."""

    config: str | None = None
    image: str | None = None
    label: str | None = None
    stream: bool = False
    classes: int | None = None
    """Number of classes, if the dataset has only class indices."""
    buffer: int = BUFFER
    """Images of a stream that are held in memory to be shuffled."""


@dataclass(frozen=True)
class HubName:
    """A dataset on the hub, or a folder that the library reads."""

    place: str | Path
    revision: str | None
    options: HubOptions

    def __str__(self) -> str:
        return self.place if isinstance(self.place, str) else show(self.place)

    @property
    def root(self) -> Path | None:
        """The folder, if it is one."""
        return self.place if isinstance(self.place, Path) else None


def parse_name(text: str) -> HubName:
    """Parse `NAME`, `ORG/NAME@REVISION` or a folder's path, followed by `,key=value` options."""
    options = HubOptions()
    name, *pairs = [text] if os.path.isdir(text) else re.split(r",(?=\w+=)", text)
    for pair in pairs:
        key, _, value = pair.partition("=")
        try:
            options = override(options, key, value)
        except InputError as error:
            raise InputError(f"hf:{text}: {error}") from None
    if options.buffer < 1 or (options.classes or 1) < 1:
        raise InputError(f"hf:{text}: expected at least 1 for buffer= and classes=")
    path = os.path.expanduser(name)
    if os.path.isdir(path):
        return HubName(Path(path), None, options)
    if name.startswith((".", "/", "~")) or os.path.exists(path):
        raise InputError(f"no folder {show(Path(path))}{neighbors(Path(path))}")
    if (match := _NAME.fullmatch(name)) is None:
        raise InputError(f"expected hf:NAME, hf:ORG/NAME@REVISION or hf:FOLDER, got 'hf:{text}'")
    return HubName(match[1], match[2], options)


def import_datasets() -> Any:
    """Import the library, which is optional."""
    try:
        import datasets
    except ImportError:
        raise InputError("hf: needs another package: pip install 'vitrail[data]'") from None
    return datasets


def cache_folders() -> list[Path]:
    """Name the folders that the library downloads to."""
    from huggingface_hub import constants

    config = import_datasets().config
    places = (
        config.HF_DATASETS_CACHE,
        config.DOWNLOADED_DATASETS_PATH,
        config.EXTRACTED_DATASETS_PATH,
        constants.HF_HUB_CACHE,
    )
    return [Path(place) for place in places]


def load_splits(datasets: Any, name: HubName) -> dict[str, Any]:
    """Load all splits of a dataset, by their usual names."""
    place, options = name.place, name.options
    if isinstance(place, str) and not datasets.config.HF_HUB_OFFLINE:
        cached = "set HF_HUB_OFFLINE=1 to use what was downloaded before"
        knock(datasets.config.HF_ENDPOINT, otherwise=f"{cached}, or write hf:FOLDER")
    if isinstance(place, Path) and any((place / file).exists() for file in _SAVED):
        if options.stream:
            raise InputError(f"{name} is on this machine, to be read by number; no stream=true")
        loaded = datasets.load_from_disk(str(place))
    else:
        path = place if isinstance(place, str) else os.path.abspath(place)
        how = {"revision": name.revision, "streaming": options.stream}
        loaded = datasets.load_dataset(path, options.config, **how)
    if not isinstance(loaded, dict):  # one split was saved alone
        usual = spell(str(loaded.split))
        return {usual if usual in SPLITS else "train": loaded}
    splits: dict[str, Any] = {}
    for split, rows in loaded.items():
        usual = spell(str(split))
        splits[str(split) if usual in splits else usual] = rows
    return splits


@contextmanager
def quiet_library(datasets: Any) -> Iterator[None]:
    """Hide the library's progress bars and log for a while."""
    from huggingface_hub import utils as hub

    bars = [library for library in (datasets, hub) if not library.are_progress_bars_disabled()]
    logs = [datasets.logging, hub.logging]
    levels = [log.get_verbosity() for log in logs]
    for library in bars:
        library.disable_progress_bars()
    for log in logs:
        log.set_verbosity(logging.CRITICAL)
    try:
        yield
    finally:
        for library in bars:
            library.enable_progress_bars()
        for log, level in zip(logs, levels, strict=True):
            log.set_verbosity(level)


@contextmanager
def in_one_line(name: str) -> Iterator[None]:
    """Turn any error of the library into an InputError of one line."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        cause: BaseException = error
        while cause.__cause__ is not None:  # what lies behind "an error occurred"
            cause = cause.__cause__
        text = " ".join(str(cause).split())[:300] or type(cause).__name__
        hints = {"config": "config=NAME chooses one", "offlinemode": "HF_HUB_OFFLINE is set"}
        chosen = [f"; {hint}" for word, hint in hints.items() if word in text.lower()]
        raise InputError(f"{name}: {text}{''.join(chosen)}") from error
