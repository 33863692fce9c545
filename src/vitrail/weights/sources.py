"""Where weights come from: a source, written as text, becomes files on this machine.

timm:NAME.TAG                                     timm's repositories on the Hugging Face hub
hf:ORG/NAME, hf:ORG/NAME@REVISION                 any other repository there
google:imagenet21k/ViT-B_16                       the paper's files; also imagenet21k+imagenet2012/
google:augreg/B/16, google:augreg/B/16@384        recommended pre-training; fine-tuned to ImageNet
google:augreg/FILE, google:sam/…, google:bit/…    any file of AugReg, (G)SAM and BiT
dinov2:vits14, dinov2:vits14_reg                  DINOv2's encoders
file:PATH, run:FOLDER, PATH                       a weights file, or a folder that holds one
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from vitrail.config import InputError, suggest
from vitrail.download import MissingError, cache_folder, fetch, fetch_from_hub
from vitrail.models.names import parse
from vitrail.weights.published.catalog import (
    CATALOG,
    RECOMMENDED,
    PublishedWeights,
    choose_augreg,
    find,
)

GOOGLE = "https://storage.googleapis.com"
"""Google's public storage, where the paper's authors keep their files."""
DINOV2 = "https://dl.fbaipublicfiles.com/dinov2"
"""Where DINOv2's authors keep theirs."""

WEIGHTS = (".safetensors", ".npz", ".bin", ".pth", ".pt")
"""How the names of weights files end."""
LARGEST_JSON = 16 << 20
"""Most bytes of a config; 21,843 class names take 2 million."""
_INDEX = "model.safetensors.index.json"
_HUB_NAMES = ("model.safetensors", _INDEX, "pytorch_model.bin")
_OPEN_CLIP = "open_clip_"  # its files may stand beside transformers' of the same model
_LONGEST = 200  # letters of a name, which leaves room for the suffixes of a download

_GOOGLE_FOLDERS = {
    "imagenet21k": "vit_models/imagenet21k",
    "imagenet21k+imagenet2012": "vit_models/imagenet21k+imagenet2012",
    "augreg": "vit_models/augreg",
    "sam": "vit_models/sam",
    "gsam": "vit_models/gsam",
    "bit": "bit_models",
}


@dataclass(frozen=True)
class Resolved:
    """A source's files on this machine."""

    source: str
    """The source in full: a short name is replaced by the file that it stands for."""
    path: Path
    """The weights file; for our own model folder, the folder."""
    config: dict[str, Any]
    """What the folder's config.json says; empty without one."""
    preprocessor: dict[str, Any]
    """What the folder's preprocessor_config.json says; empty without one."""
    published: PublishedWeights | None
    """The checkpoint's record, if it is a known one."""


def resolve(source: str, *, cache: Path | None = None) -> Resolved:
    """Find a source's files, on this machine first, then on the network.

    Downloads are kept in `cache`; without it, in the user's cache folders.
    """
    _check_text(source)
    prefix, colon, rest = source.partition(":")
    try:
        if colon and prefix in _SCHEMES:
            return _SCHEMES[prefix](rest, cache)
        if _find(source):
            return _from_file(source, cache)
    except MissingError as error:
        near = suggest(source, (record.source for record in CATALOG))
        raise InputError(f"{error}{near}") from None
    except OSError as error:
        raise InputError(f"cannot read {source}: {error.strerror}") from None
    raise _unreadable(source)


def _check_text(source: str) -> None:
    if not source.strip():
        raise InputError("no source of weights given; for example file:model.safetensors")
    if len(source) > 4096 or min(source) < " ":
        raise InputError(f"no source of weights: {source[:60]!r} (too long, or not plain text)")


def _find(text: str) -> Path | None:
    """Find what a path names, also a model that a stopped save left under another name."""
    from vitrail.weights.checkpoint import find_stranded  # here, because it imports torch

    with suppress(OSError, RuntimeError):  # a name that no file, or no user's home, can have
        path = Path(text).expanduser()
        return path if path.exists() else find_stranded(path.absolute())
    return None


def _unreadable(source: str) -> InputError:
    """Explain a source that is neither a path nor has a prefix that we know."""
    prefix, colon, _ = source.partition(":")
    if prefix in ("http", "https"):
        return InputError(f"{source}: download it, then write file:PATH")
    if colon and re.fullmatch(r"[A-Za-z][\w+-]+", prefix):
        known = ", ".join(f"{scheme}:" for scheme in _SCHEMES)
        near = suggest(prefix, _SCHEMES)
        return InputError(f"unknown source {source!r}: a source begins with {known}{near}")
    file = f"file:{source} if it is a path"
    with suppress(InputError):
        base = str(parse(source)).partition(",")[0]
        same = [r.source for r in CATALOG if r.model.partition(",")[0] == base]
        each = [next((s for s in same if s.startswith(p)), "") for p in ("google:", "timm:")]
        named = " or ".join(filter(None, each)) or "its source"
        return InputError(f"{source!r} is a model: write {named} for its weights, or {file}")
    if re.fullmatch(r"(vit|deit\d?|resnetv2)_\w+(\.\w+)?", source):
        return InputError(f"no file {source!r}; write timm:{source} for timm's weights, or {file}")
    if re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", source) and not source.endswith(WEIGHTS):
        return InputError(f"no file {source!r}; write hf:{source} for the hub's, or {file}")
    return InputError(f"no file or folder {source!r}{_neighbors(Path(source))}")


def _neighbors(path: Path) -> str:
    with suppress(OSError):
        return suggest(path.name, (other.name for other in path.parent.iterdir()))
    return ""


def _from_file(rest: str, cache: Path | None) -> Resolved:
    path = _find(rest)
    if path is None:
        raise InputError(f"no file or folder {rest!r}{_neighbors(Path(rest))}")
    return _local(path, f"file:{rest}")


def _from_run(rest: str, cache: Path | None) -> Resolved:
    folder = _find(rest)
    if folder is None or not folder.is_dir():
        raise InputError(f"no run folder {rest!r}{_neighbors(Path(rest))}")
    found = _model_folder(folder)
    if found is None:
        raise InputError(_describe_unfinished(folder) or f"{folder} holds no model.json")
    return Resolved(f"run:{rest}", found, {}, {}, None)


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
    hub_like = path.name in (*_HUB_NAMES, "model.json")
    folder = path if path.is_dir() else path.parent
    if path.is_dir() or (hub_like and (folder / "model.json").is_file()):
        model = _model_folder(folder)
        if model is not None:
            return Resolved(source, model, {}, {}, None)
        if unfinished := _describe_unfinished(folder):
            raise InputError(unfinished)
        path, hub_like = _weights_in(folder), True
    if not path.is_file():
        raise InputError(f"{path} is neither a file nor a folder")
    if path.name.startswith(_OPEN_CLIP):
        return Resolved(source, path, read_json(folder / f"{_OPEN_CLIP}config.json"), {}, None)
    if not hub_like:
        return Resolved(source, path, {}, {}, None)
    config, preprocessor = folder / "config.json", folder / "preprocessor_config.json"
    return Resolved(source, path, read_json(config), read_json(preprocessor), None)


def _model_folder(folder: Path) -> Path | None:
    """Find our own model folder: this one, or the only one inside it.

    Hidden ones inside are parts of a save; one that was stopped at its end counts by its name.
    """
    from vitrail.weights.checkpoint import find_stranded  # here, because it imports torch

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
    for name in _HUB_NAMES:
        if (folder / name).is_file():
            return folder / name
    files = sorted(file for file in folder.iterdir() if file.suffix in WEIGHTS and file.is_file())
    if len(files) == 1:
        return files[0]
    if files:
        names = ", ".join(f"file:{file}" for file in files[:5])
        raise InputError(f"{folder} holds several weights files; name one of {names}")
    raise InputError(f"{folder} holds no weights: expected model.json, {' or '.join(_HUB_NAMES)}")


def read_json(path: Path | None) -> dict[str, Any]:
    """Read a folder's config; nothing where there is none."""
    if path is None or not path.is_file():
        return {}
    if path.stat().st_size > LARGEST_JSON:
        raise InputError(f"{path}: too large for a config ({path.stat().st_size:,} bytes)")
    try:
        data = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: {error}") from None
    if not isinstance(data, dict):
        raise InputError(f"{path}: expected keys and values at the top")
    return data


def _from_timm(rest: str, cache: Path | None) -> Resolved:
    if not re.fullmatch(r"[a-z]\w*(\.\w+)?", rest, re.ASCII) or len(rest) > _LONGEST:
        example = "timm:vit_base_patch16_224.augreg_in21k"
        raise InputError(f"timm:{rest[:60]} is not a name of timm's; expected one like {example}")
    if "." not in rest:
        tagged = [r.source for r in CATALOG if r.source.startswith(f"timm:{rest}.")]
        if len(tagged) > 1:
            raise InputError(f"timm:{rest} has several weights; name one of {', '.join(tagged)}")
        rest = tagged[0].removeprefix("timm:") if tagged else rest
    return _from_repository(f"timm:{rest}", f"timm/{rest}", None, cache)


def _from_hub(rest: str, cache: Path | None) -> Resolved:
    repository, _, revision = rest.partition("@")
    good = re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", repository, re.ASCII) and "--" not in rest
    path = re.fullmatch(r"\w[\w./-]*", revision or "main", re.ASCII)
    if not good or not path or ".." in rest or max(map(len, rest.split("/"))) > _LONGEST:
        raise InputError(f"hf:{rest[:60]}: expected hf:ORG/NAME or hf:ORG/NAME@REVISION")
    return _from_repository(f"hf:{rest}", repository, revision or None, cache)


def _from_repository(
    source: str, repository: str, revision: str | None, cache: Path | None
) -> Resolved:
    def file(name: str) -> Path | None:
        return fetch_from_hub(repository, name, revision=revision, cache=cache and cache / "hub")

    config = read_json(file("config.json"))  # first: it is small, and tells a wrong name at once
    weights = next((path for name in _HUB_NAMES if (path := file(name))), None)
    if weights is None and (clip := file(f"{_OPEN_CLIP}model.safetensors")):
        said = read_json(file(f"{_OPEN_CLIP}config.json"))
        return Resolved(source, clip, said, {}, find(source))
    if weights is None:
        raise InputError(f"{repository} on the hub has neither {' nor '.join(_HUB_NAMES)}")
    if weights.name == _INDEX:
        from vitrail.weights.files.shards import read_shard_index  # here, because it imports torch

        for shard in sorted(set(read_shard_index(weights).values())):
            if file(shard) is None:
                raise InputError(f"{repository} on the hub lacks {shard}, which {_INDEX} lists")
    preprocessor: dict[str, Any] = {}
    if not source.startswith("timm:"):
        preprocessor = read_json(file("preprocessor_config.json"))
    return Resolved(source, weights, config, preprocessor, find(source))


def hub_repository(source: str) -> tuple[str, str | None] | None:
    """Give the hub's repository and revision that a source names; None for any other source."""
    prefix, _, rest = source.partition(":")
    if prefix == "timm":
        return f"timm/{rest}", None
    repository, _, revision = rest.partition("@")
    return (repository, revision or None) if prefix == "hf" else None


def cached_path(source: str) -> Path | None:
    """Say where in the cache folder a file of Google or DINOv2 is kept once it was downloaded."""
    scheme, _, rest = source.partition(":")
    folder, _, name = rest.partition("/")
    if scheme == "google" and folder in _GOOGLE_FOLDERS:
        return Path("google", _GOOGLE_FOLDERS[folder], f"{name}.npz")
    if scheme == "dinov2":
        name, _, reg = rest.partition("_")
        return Path("dinov2", f"dinov2_{name}", f"dinov2_{name}{'_reg4' * bool(reg)}_pretrain.pth")
    return None


def _from_google(rest: str, cache: Path | None) -> Resolved:
    folder, _, name = rest.partition("/")
    if folder not in _GOOGLE_FOLDERS or not name:
        there = ", ".join(f"google:{each}/" for each in _GOOGLE_FOLDERS)
        raise InputError(f"google:{rest[:60]}: Google's files are in {there}")
    short = re.fullmatch(r"((?:R\d*\+)?[A-Za-z]+/\d+)(?:@(\d+))?", name, re.ASCII)
    if folder == "augreg" and short:
        known = RECOMMENDED.get(f"google:{rest}")
        if known is None:
            index = _download(GOOGLE, "vit_models/augreg/index.csv", "google", cache)
            known = choose_augreg(index, short[1], short[2])
        name = known.removeprefix("google:augreg/")
    name = name.removesuffix(".npz")
    path = _download(GOOGLE, f"{_GOOGLE_FOLDERS[folder]}/{name}.npz", "google", cache)
    source = f"google:{folder}/{name}"
    return Resolved(source, path, {}, {}, find(source))


def _from_dinov2(rest: str, cache: Path | None) -> Resolved:
    match = re.fullmatch(r"(vit[sblg]14)(_reg)?", rest)
    if not match:
        names = ", ".join(r.source for r in CATALOG if r.source.startswith("dinov2:"))
        raise InputError(f"unknown source 'dinov2:{rest[:60]}'; there are: {names}")
    name = f"dinov2_{match[1]}"
    file = f"{name}/{name}{'_reg4' if match[2] else ''}_pretrain.pth"
    path = _download(DINOV2, file, "dinov2", cache)
    return Resolved(f"dinov2:{rest}", path, {}, {}, find(f"dinov2:{rest}"))


def _download(address: str, name: str, room: str, cache: Path | None) -> Path:
    """Fetch a file to its place in the cache, which no name leads out of."""
    for part in name.split("/"):
        if not re.fullmatch(r"[A-Za-z0-9][\w.+-]*", part, re.ASCII) or len(part) > _LONGEST:
            raise InputError(f"{name[:60]!r} is not a file name: {part[:60]!r}")
    return fetch(f"{address}/{quote(name)}", (cache or cache_folder()) / room / name)


_SCHEMES: dict[str, Callable[[str, Path | None], Resolved]] = {
    "timm": _from_timm,
    "hf": _from_hub,
    "google": _from_google,
    "dinov2": _from_dinov2,
    "file": _from_file,
    "run": _from_run,
}
