"""Weights on this machine: a file, a folder that holds one, a run's model."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from vitrail.config import InputError
from vitrail.files import find_stranded
from vitrail.text import neighbors
from vitrail.weights.sources.resolved import HUB_NAMES, OPEN_CLIP, Resolved, read_json

WEIGHTS = (".safetensors", ".npz", ".bin", ".pth", ".pt")
"""How the names of weights files end."""


def find_path(text: str) -> Path | None:
    """Find what a path names, also a model that a stopped save left under another name."""
    with suppress(OSError, RuntimeError):  # a name that no file, or no user's home, can have
        path = Path(text).expanduser()
        return path if path.exists() else find_stranded(path.absolute())
    return None


def resolve_file(rest: str, cache: Path | None) -> Resolved:
    """Find the weights that a path stands for; it needs no cache."""
    path = find_path(rest)
    if path is None:
        raise InputError(f"no file or folder {rest!r}{neighbors(Path(rest))}")
    return _local(path, f"file:{rest}")


def resolve_run(rest: str, cache: Path | None) -> Resolved:
    """Find the model of a run's folder; it needs no cache."""
    folder = find_path(rest)
    if folder is None or not folder.is_dir():
        raise InputError(f"no run folder {rest!r}{neighbors(Path(rest))}")
    found = _model_folder(folder)
    if found is None:
        raise InputError(_describe_unfinished(folder) or f"{folder} holds no model.json")
    return Resolved(f"run:{rest}", found)


def _describe_unfinished(folder: Path) -> str | None:
    """Say how far a run got that has no model yet; None if the folder is not a run's."""
    if not (folder / "run.json").is_file():
        return None
    said = "stopped before its first save"
    for manifest in sorted(folder.glob("checkpoints/step-*/manifest.json")):
        with suppress(OSError, ValueError, LookupError):
            data = json.loads(manifest.read_text())
            said = f"stopped at step {data['step']:,} of {data['metadata']['total']:,}"
    return f"{folder} has no model yet: {said}; run the same command to continue"


def _local(path: Path, source: str) -> Resolved:
    """Take a file as it is; in a folder, find the weights."""
    hub_like = path.name in (*HUB_NAMES, "model.json")
    folder = path if path.is_dir() else path.parent
    if path.is_dir() or (hub_like and (folder / "model.json").is_file()):
        model = _model_folder(folder)
        if model is not None:
            return Resolved(source, model)
        if unfinished := _describe_unfinished(folder):
            raise InputError(unfinished)
        path, hub_like = _weights_in(folder), True
    if not path.is_file():
        raise InputError(f"{path} is neither a file nor a folder")
    if path.name.startswith(OPEN_CLIP):
        return Resolved(source, path, read_json(folder / f"{OPEN_CLIP}config.json"))
    if not hub_like:
        return Resolved(source, path)
    config, preprocessor = folder / "config.json", folder / "preprocessor_config.json"
    return Resolved(source, path, read_json(config), read_json(preprocessor))


def find_model_folder(text: str) -> Path | None:
    """Find our own model folder that a model's text names; None for weights of any other kind."""
    path = find_path(text.removeprefix("run:").removeprefix("file:"))
    if path is None:
        return None
    return _model_folder(path if path.is_dir() else path.parent)


def _model_folder(folder: Path) -> Path | None:
    """Find our own model folder: this one, or the only one inside it.

    Hidden ones inside are parts of a save; one that was stopped at its end counts by its name.
    """
    if (folder / "model.json").is_file():
        return folder
    inside = sorted(file.parent for file in folder.glob("[!.]*/model.json") if file.is_file())
    if not inside:
        parts = [file.parent.name for file in folder.glob(".*.new-????????/model.json")]
        named = {folder / part.rpartition(".")[0][1:] for part in parts}
        inside = sorted(filter(None, map(find_stranded, named)))
    if len(inside) > 1:
        names = ", ".join(str(each) for each in inside[:5])
        raise InputError(f"{folder} holds several models; name one of {names}")
    return inside[0] if inside else None


def _weights_in(folder: Path) -> Path:
    for name in HUB_NAMES:
        if (folder / name).is_file():
            return folder / name
    files = sorted(file for file in folder.iterdir() if file.suffix in WEIGHTS and file.is_file())
    if len(files) == 1:
        return files[0]
    if files:
        names = ", ".join(f"file:{file}" for file in files[:5])
        raise InputError(f"{folder} holds several weights files; name one of {names}")
    raise InputError(f"{folder} holds no weights: expected model.json, {' or '.join(HUB_NAMES)}")
