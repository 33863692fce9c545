"""Weights on the network: the Hugging Face hub, Google's storage, DINOv2's."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

from vitrail.config import InputError
from vitrail.download import cache_folder, fetch, fetch_from_hub
from vitrail.weights.published.catalog import CATALOG, RECOMMENDED, choose_augreg, find
from vitrail.weights.sources.resolved import HUB_NAMES, INDEX, OPEN_CLIP, Resolved, read_json

GOOGLE = "https://storage.googleapis.com"
"""Google's public storage, where the paper's authors keep their files."""
DINOV2 = "https://dl.fbaipublicfiles.com/dinov2"
"""Where DINOv2's authors keep theirs."""

_LONGEST = 200  # letters of a name, which leaves room for the suffixes of a download

_GOOGLE_FOLDERS = {
    "imagenet21k": "vit_models/imagenet21k",
    "imagenet21k+imagenet2012": "vit_models/imagenet21k+imagenet2012",
    "augreg": "vit_models/augreg",
    "sam": "vit_models/sam",
    "gsam": "vit_models/gsam",
    "bit": "bit_models",
}


def resolve_timm(rest: str, cache: Path | None) -> Resolved:
    """Fetch NAME.TAG of timm; a NAME with one known tag needs none."""
    if not re.fullmatch(r"[a-z]\w*(\.\w+)?", rest, re.ASCII) or len(rest) > _LONGEST:
        example = "timm:vit_base_patch16_224.augreg_in21k"
        raise InputError(f"timm:{rest[:60]} is not a name of timm's; expected one like {example}")
    if "." not in rest:
        tagged = [r.source for r in CATALOG if r.source.startswith(f"timm:{rest}.")]
        if len(tagged) > 1:
            raise InputError(f"timm:{rest} has several weights; name one of {', '.join(tagged)}")
        rest = tagged[0].removeprefix("timm:") if tagged else rest
    return _from_repository(f"timm:{rest}", f"timm/{rest}", None, cache)


def resolve_hub(rest: str, cache: Path | None) -> Resolved:
    """Fetch ORG/NAME or ORG/NAME@REVISION from the Hugging Face hub."""
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
    weights = next((path for name in HUB_NAMES if (path := file(name))), None)
    if weights is None and (clip := file(f"{OPEN_CLIP}model.safetensors")):
        said = read_json(file(f"{OPEN_CLIP}config.json"))
        return Resolved(source, clip, said, published=find(source))
    if weights is None:
        raise InputError(f"{repository} on the hub has neither {' nor '.join(HUB_NAMES)}")
    if weights.name == INDEX:
        from vitrail.weights.files.shards import read_shard_index  # here, because it imports torch

        for shard in sorted(set(read_shard_index(weights).values())):
            if file(shard) is None:
                raise InputError(f"{repository} on the hub lacks {shard}, which {INDEX} lists")
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


def resolve_google(rest: str, cache: Path | None) -> Resolved:
    """Fetch a file of the paper's, AugReg's, (G)SAM's or BiT's authors."""
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
    return Resolved(source, path, published=find(source))


def resolve_dinov2(rest: str, cache: Path | None) -> Resolved:
    """Fetch an encoder of DINOv2, with or without registers."""
    match = re.fullmatch(r"(vit[sblg]14)(_reg)?", rest)
    if not match:
        names = ", ".join(r.source for r in CATALOG if r.source.startswith("dinov2:"))
        raise InputError(f"unknown source 'dinov2:{rest[:60]}'; there are: {names}")
    name = f"dinov2_{match[1]}"
    file = f"{name}/{name}{'_reg4' if match[2] else ''}_pretrain.pth"
    path = _download(DINOV2, file, "dinov2", cache)
    return Resolved(f"dinov2:{rest}", path, published=find(f"dinov2:{rest}"))


def _download(address: str, name: str, room: str, cache: Path | None) -> Path:
    """Fetch a file to its place in the cache, which no name leads out of."""
    for part in name.split("/"):
        if not re.fullmatch(r"[A-Za-z0-9][\w.+-]*", part, re.ASCII) or len(part) > _LONGEST:
            raise InputError(f"{name[:60]!r} is not a file name: {part[:60]!r}")
    return fetch(f"{address}/{quote(name)}", (cache or cache_folder()) / room / name)
