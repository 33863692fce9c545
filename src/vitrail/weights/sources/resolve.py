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

import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from vitrail.config import InputError, suggest
from vitrail.download import MissingError
from vitrail.models.names import parse
from vitrail.text import neighbors
from vitrail.weights.published.catalog import CATALOG
from vitrail.weights.sources.local_sources import (
    WEIGHTS,
    find_path,
    resolve_file,
    resolve_run,
)
from vitrail.weights.sources.remote_sources import (
    resolve_dinov2,
    resolve_google,
    resolve_hub,
    resolve_timm,
)
from vitrail.weights.sources.resolved import Resolved


def resolve(source: str, *, cache: Path | None = None) -> Resolved:
    """Find a source's files, on this machine first, then on the network.

    Downloads are kept in `cache`; without it, in the user's cache folders.
    """
    _check_text(source)
    prefix, colon, rest = source.partition(":")
    try:
        if colon and prefix in _SCHEMES:
            return _SCHEMES[prefix](rest, cache)
        if find_path(source):
            return resolve_file(source, cache)
    except InputError as error:
        known = [record.source for record in CATALOG]
        if source in known or not (prefix == "timm" or isinstance(error, MissingError)):
            raise
        raise InputError(f"{error}{suggest(source, known)}") from None
    except OSError as error:
        raise InputError(f"cannot read {source}: {error.strerror}") from None
    raise _unreadable(source)


def _check_text(source: str) -> None:
    if not source.strip():
        raise InputError("no source of weights given; for example file:model.safetensors")
    if len(source) > 4096 or min(source) < " ":
        raise InputError(f"no source of weights: {source[:60]!r} (too long, or not plain text)")


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
    near = neighbors(Path(source))
    hubs = re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", source) and not source.endswith(WEIGHTS)
    if hubs and not near:
        return InputError(f"no file {source!r}; write hf:{source} for the hub's, or {file}")
    return InputError(f"no file or folder {source!r}{near}")


_SCHEMES: dict[str, Callable[[str, Path | None], Resolved]] = {
    "timm": resolve_timm,
    "hf": resolve_hub,
    "google": resolve_google,
    "dinov2": resolve_dinov2,
    "file": resolve_file,
    "run": resolve_run,
}
