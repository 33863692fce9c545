"""Write a model in any project's format, and check what was written by reading it back."""

from __future__ import annotations

import json
import os
import shutil
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor

from vitrail.config import InputError, suggest
from vitrail.files import sync
from vitrail.models import BiT, BiTSpec, ViT, ViTSpec, spec_to_dict
from vitrail.result import Result
from vitrail.weights.checkpoint import Checkpoint, save_folder
from vitrail.weights.files.shards import open_checkpoint
from vitrail.weights.files.write_safetensors import save_safetensors
from vitrail.weights.formats.bigvision import BIGVISION
from vitrail.weights.formats.bit_tf import BIT_TF
from vitrail.weights.formats.format import Format
from vitrail.weights.formats.google import GOOGLE
from vitrail.weights.formats.huggingface.huggingface import format_for
from vitrail.weights.formats.huggingface.huggingface_config import (
    write_hf_config,
    write_hf_preprocess,
)
from vitrail.weights.formats.keymap import Tensors, write_table
from vitrail.weights.formats.mae_decoder import write_decoder
from vitrail.weights.formats.timm.timm import TIMM
from vitrail.weights.formats.timm.timm_config import write_timm_config
from vitrail.weights.formats.torchvision import TORCHVISION
from vitrail.weights.load import SPEC_KEY, read_resolved
from vitrail.weights.loaded import AnyModel, LoadedModel, as_checkpoint
from vitrail.weights.multilabel import MULTI_LABEL, REGRESSION, list_lost, multilabel_metadata
from vitrail.weights.reference import NoReferenceError, run_reference
from vitrail.weights.sources import Resolved, resolve

TOLERANCE = 1e-5
"""Largest difference of the logits, as a part of the largest logit."""


@dataclass(frozen=True)
class ConversionResult(Result):
    """What was written, and how far its logits are from the source's."""

    format: str
    files: tuple[Path, ...]
    max_difference: float
    compared_with: str
    """What the source's logits were compared with, and what could not be checked."""
    lost: tuple[str, ...] = ()
    """What the format has no place for."""

    def summary(self) -> Iterator[str]:
        """Name the files, then say how near their logits are, and to what."""
        yield from map(str, self.files)
        yield f"{self.format}: logits differ from the source's by {self.max_difference:.1e}"
        yield f"compared with {self.compared_with}"
        if self.lost:
            yield f"not kept by {self.format}: {', '.join(self.lost)}"


def convert(
    source: AnyModel, out: str | Path, to: str, *, model: str | None = None
) -> ConversionResult:
    """Write a source, or a loaded model, in another format.

    What does not give the same logits is not left behind. `model` names what the source holds.
    """
    out = Path(out)
    if to not in WRITERS:
        raise InputError(f"no format {to!r}; there are: {', '.join(WRITERS)}{suggest(to, WRITERS)}")
    if not out.resolve().name:
        raise InputError(f"{out}: is not a place for a model; name a file or folder in it")
    if out.exists() and to != "vitrail":
        raise InputError(f"{out} exists; remove it or choose another name")
    found = None
    if isinstance(source, str | os.PathLike):
        found = resolve(os.fspath(source))
        checkpoint = read_resolved(found, model=model)
    else:
        checkpoint = as_checkpoint(source)
    if not out.exists():
        return _convert(checkpoint, found, out, to)
    trial = _part(out)  # an older model of ours stays until the new one has proved right
    try:
        return replace(_convert(checkpoint, found, trial, to), files=_write(checkpoint, out, to))
    finally:
        shutil.rmtree(trial, ignore_errors=True)


def _convert(
    checkpoint: Checkpoint, found: Resolved | None, out: Path, to: str
) -> ConversionResult:
    files = _write(checkpoint, out, to)
    try:
        written = resolve(f"file:{out}")
        again = read_resolved(written, model=str(checkpoint.spec))
        difference = compare_logits(checkpoint, again)
        if not difference <= TOLERANCE:
            raise InputError(f"{out} as {to} gives other logits than its source: {difference:.1e}")
        sides = [(written, again)] if found is None else [(found, checkpoint), (written, again)]
        off, compared_with = _compare_with_reference(checkpoint, sides)
    except BaseException:
        for file in files:
            file.unlink(missing_ok=True)
        if out.is_dir():
            out.rmdir()
        raise
    lost = list_lost(checkpoint, again)
    return ConversionResult(to, files, max(difference, off), compared_with, lost)


@torch.inference_mode()
def _compare_with_reference(
    checkpoint: Checkpoint, sides: list[tuple[Resolved, Checkpoint]]
) -> tuple[float, str]:
    """Hold a model against a second reading of the files that it came from and went to.

    Give the largest difference, and say what was compared. Models too large for float64 are
    compared in float32, less strictly.
    """
    count = sum(tensor.numel() for tensor in checkpoint.tensors.values())
    dtype, tolerance = (torch.float64, TOLERANCE) if count <= 2**28 else (torch.float32, 1e-4)
    images = _random_images(checkpoint).to(dtype)
    largest, checked, unchecked = 0.0, list[str](), list[str]()
    ours: list[Tensor] = []
    for place, read in sides:
        if place.path.is_dir() or read.provenance is None:
            continue  # vitrail's own format
        format = read.provenance.format
        try:
            tensors = open_checkpoint(place.path).read()
            theirs = run_reference(format, tensors, place.config, read.spec, images)
        except NoReferenceError as error:
            unchecked.append(f"{place.source}: {error}")
            continue
        if not ours:
            model = checkpoint.build().to(dtype)
            ours = [model.features(images), model(images)]
        off = _largest_difference(zip(ours, theirs, strict=True))
        if not off <= tolerance:
            raise InputError(
                f"{place.source}: vitrail's reading as {format} {read.spec.name} differs by "
                f"{off:.1e} from a plain forward pass on the file's tensors: it is not converted"
            )
        largest = max(largest, off)
        checked.append(f"{place.source} ({format})")
    text = "vitrail's reading of what was written"
    if checked:
        text += f", and plain forward passes on the tensors of {' and '.join(checked)}"
    if not checked and not unchecked:
        unchecked = ["both are vitrail's own format"]
    return largest, text + "".join(f"; not checked independently: {why}" for why in unchecked)


def _write(checkpoint: Checkpoint, out: Path, to: str) -> tuple[Path, ...]:
    """Write under a name of its own first; whatever stops it leaves nothing behind."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        _remove(_part(out))  # of a conversion that was killed
        return WRITERS[to](checkpoint, out)
    except (OSError, SafetensorError) as error:
        cause = getattr(error, "strerror", None) or error
        raise InputError(f"{out}: could not be written: {cause}") from None
    finally:
        _remove(_part(out))


def _remove(part: Path) -> None:
    shutil.rmtree(part) if part.is_dir() else part.unlink(missing_ok=True)


def _part(out: Path) -> Path:
    whole = out.resolve()  # so that "." has a name
    return whole.with_name(f".{whole.name}.part")


@torch.inference_mode()
def compare_logits(first: Checkpoint, second: Checkpoint) -> float:
    """Give the largest difference of two models on random images, relative to their outputs.

    Features count beside logits: a head of zeros would hide any difference.
    """
    images = _random_images(first)
    one, two = (checkpoint.build().float() for checkpoint in (first, second))
    pairs = [(one.features(images), two.features(images)), (one(images), two(images))]
    if any(ours.shape != theirs.shape for ours, theirs in pairs):
        raise InputError(f"{first.spec} and {second.spec} have outputs of other sizes")
    return _largest_difference(pairs)


def _random_images(checkpoint: Checkpoint) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    spec = checkpoint.spec
    return torch.randn(2, spec.channels, *spec.image, generator=generator)


def _largest_difference(pairs: Iterable[tuple[Tensor, Tensor]]) -> float:
    parts = [(x - y).abs().max() / x.abs().max().clamp_min(1e-30) for x, y in pairs]
    return torch.stack(parts).max().item()  # as python's max does not, it keeps NaN


def to_state_dict(model: LoadedModel | ViT | BiT, format: str) -> Tensors:
    """Give a model's weights under another project's names: timm, hf, torchvision or google."""
    checkpoint = as_checkpoint(model)
    theirs = {
        "timm": TIMM,
        "hf": format_for(checkpoint.spec),
        "torchvision": TORCHVISION,
        "google": GOOGLE,
    }
    if format not in theirs:
        hint = suggest(format, theirs)
        raise InputError(f"no format {format!r}; there are: {', '.join(theirs)}{hint}")
    return _tensors(checkpoint, theirs[format])


def _tensors(checkpoint: Checkpoint, format: Format) -> Tensors:
    spec = checkpoint.spec
    return format.denormalize(write_table(format.table(spec), checkpoint.tensors), spec)


def _write_npz(
    checkpoint: Checkpoint, out: Path, format: Format, prefix: str = ""
) -> tuple[Path, ...]:
    theirs = _tensors(checkpoint, format)
    arrays = {f"{prefix}{key}": _array(value) for key, value in theirs.items()}
    part = _part(out)
    with part.open("wb") as file:
        np.savez(file, **arrays)  # pyright: ignore[reportArgumentType]
    with zipfile.ZipFile(part, "a") as archive:  # where no other reader looks
        said = {SPEC_KEY: spec_to_dict(checkpoint.spec), **multilabel_metadata(checkpoint)}
        archive.comment = json.dumps(said).encode()
    _finish(part, out)
    return (out,)


def _array(tensor: Tensor) -> np.ndarray:
    """Give a numpy array; bfloat16, which numpy lacks, becomes float32 and loses nothing."""
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()


def _write_google(checkpoint: Checkpoint, out: Path) -> tuple[Path, ...]:
    published = isinstance(checkpoint.spec, BiTSpec) and checkpoint.spec.pool_padding == "zeros"
    return _write_npz(checkpoint, out, BIT_TF if published else GOOGLE)


def _write_bigvision(checkpoint: Checkpoint, out: Path) -> tuple[Path, ...]:
    return _write_npz(_fold_class_position(checkpoint), out, BIGVISION, prefix="params/")


def _fold_class_position(checkpoint: Checkpoint) -> Checkpoint:
    """Add the class token's position to the token itself, as big_vision does with old files."""
    spec = checkpoint.spec
    if not isinstance(spec, ViTSpec) or spec.position != "learned-1d" or spec.positioned != 1:
        return checkpoint
    table = checkpoint.tensors["positions.0.table"]
    folded = {"class_token": checkpoint.tensors["class_token"] + table[0]}
    folded["positions.0.table"] = table[1:]
    tensors = {**checkpoint.tensors, **folded}
    return replace(checkpoint, spec=replace(spec, class_position=False), tensors=tensors)


def _write_timm(checkpoint: Checkpoint, out: Path) -> tuple[Path, ...]:
    config = write_timm_config(checkpoint.spec, checkpoint.preprocess, checkpoint.classes)
    tensors = _tensors(checkpoint, TIMM)
    return _write_hub_folder(checkpoint, out, tensors, {"config.json": config})


def _write_hf(checkpoint: Checkpoint, out: Path) -> tuple[Path, ...]:
    config = write_hf_config(checkpoint.spec, checkpoint.classes)
    if checkpoint.activation == "sigmoid":
        config |= MULTI_LABEL
    elif checkpoint.activation == "none":
        config |= REGRESSION
    spec, tensors = checkpoint.spec, _tensors(checkpoint, format_for(checkpoint.spec))
    if checkpoint.decoder is not None and isinstance(spec, ViTSpec):
        tensors, said = write_decoder(checkpoint.decoder, spec, tensors)
        config |= said
    extra = {"config.json": config}
    if checkpoint.preprocess is not None:
        extra["preprocessor_config.json"] = write_hf_preprocess(checkpoint.preprocess)
    return _write_hub_folder(checkpoint, out, tensors, extra)


def _write_hub_folder(
    checkpoint: Checkpoint, out: Path, tensors: Tensors, extra: dict[str, dict[str, Any]]
) -> tuple[Path, ...]:
    part = _part(out)
    part.mkdir(parents=True, exist_ok=True)
    spec = json.dumps(spec_to_dict(checkpoint.spec))
    metadata = {"format": "pt", SPEC_KEY: spec, **multilabel_metadata(checkpoint)}
    save_safetensors(tensors, part / "model.safetensors", metadata)
    for name, data in extra.items():
        (part / name).write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
    _finish(part, out)
    return tuple(out / name for name in ("model.safetensors", *extra))


def _write_torchvision(checkpoint: Checkpoint, out: Path) -> tuple[Path, ...]:
    theirs = _tensors(checkpoint, TORCHVISION)
    part = _part(out)
    torch.save(theirs, part)
    _finish(part, out)
    return (out,)


def _write_vitrail(checkpoint: Checkpoint, out: Path) -> tuple[Path, ...]:
    save_folder(checkpoint, out)
    return out / "model.safetensors", out / "model.json"


def _finish(part: Path, out: Path) -> None:
    """Put a finished file or folder under its name, on disk before it can be seen."""
    for path in part.iterdir() if part.is_dir() else (part,):
        sync(path)
    part.rename(out)


WRITERS: dict[str, Callable[[Checkpoint, Path], tuple[Path, ...]]] = {
    "vitrail": _write_vitrail,
    "npz": _write_google,
    "bigvision": _write_bigvision,
    "timm": _write_timm,
    "hf": _write_hf,
    "torchvision": _write_torchvision,
}
"""The formats that a model can be written in, by the word that `--to` takes."""
