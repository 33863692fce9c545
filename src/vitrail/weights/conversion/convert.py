"""Write a model in any project's format, and check what was written by reading it back."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor

from vitrail.config import InputError, suggest
from vitrail.files import replacing, temporary_folder
from vitrail.result import Result
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.conversion.reference import NoReferenceError, run_reference
from vitrail.weights.conversion.write_formats import WRITERS
from vitrail.weights.files.shards import open_checkpoint
from vitrail.weights.formats.format import FileFacts
from vitrail.weights.identify import identify
from vitrail.weights.load import read_resolved
from vitrail.weights.loaded import AnyModel, as_checkpoint
from vitrail.weights.multilabel import list_lost
from vitrail.weights.sources.resolve import resolve
from vitrail.weights.sources.resolved import Resolved

TOLERANCE = 1e-5
"""Largest difference of the logits, as a fraction of the largest logit."""


@dataclass(frozen=True)
class ConversionResult(Result):
    """What was written, and how far its logits are from the source's."""

    format: str
    files: tuple[Path, ...]
    max_difference: float
    compared_with: str
    """What the source's logits were compared with, and what could not be checked."""
    lost: tuple[str, ...] = ()
    """What the format can't hold."""

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

    What does not give the same logits never gets its name. `model` names what the source holds.
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
    try:
        if not out.exists():
            with replacing(out) as part:
                WRITERS[to](checkpoint, part)
                result = _check(checkpoint, found, part, out, to)
        else:  # an older model of ours stays until the new one has proved right
            with temporary_folder(".vitrail-", out.resolve().parent) as beside:
                WRITERS[to](checkpoint, beside / "model")
                result = _check(checkpoint, found, beside / "model", out, to)
            WRITERS[to](checkpoint, out)
    except (OSError, SafetensorError) as error:
        cause = getattr(error, "strerror", None) or error
        raise InputError(f"{out}: cannot be written: {cause}") from None
    return result


def _check(
    checkpoint: Checkpoint, found: Resolved | None, part: Path, out: Path, to: str
) -> ConversionResult:
    """Read a model that was written for `out`, and compare it with its source."""
    written = replace(resolve(f"file:{part}"), source=f"file:{out}")
    again = read_resolved(written, model=str(checkpoint.spec))
    difference = compare_logits(checkpoint, again)
    if not difference <= TOLERANCE:
        raise InputError(f"{out} as {to} gives other logits than its source: {difference:.1e}")
    sides = [(written, again)] if found is None else [(found, checkpoint), (written, again)]
    off, compared_with = _compare_with_reference(checkpoint, sides)
    lost = (*list_lost(checkpoint, again), *_list_unsaid(checkpoint, written))
    return ConversionResult(to, _list_files(part, out), max(difference, off), compared_with, lost)


def _list_unsaid(checkpoint: Checkpoint, written: Resolved) -> tuple[str, ...]:
    """List what the written file does not say to its project's own code, which reads no spec."""
    if written.path.is_dir():  # our own
        return ()
    file = replace(open_checkpoint(written.path), metadata={})
    spec, lost = checkpoint.spec, list[str]()
    try:
        found = identify(file, FileFacts(written.config, spec))[1]
    except InputError:
        lost.append("the number of heads")
        found = identify(file, FileFacts(written.config, spec, frozenset({"heads"})))[1]
    for name in ("activation", "norm_eps"):
        ours, theirs = (getattr(each, name, None) for each in (spec, found))
        if ours != theirs:
            changed = replace(checkpoint, spec=replace(spec, **{name: theirs}))
            off = compare_logits(checkpoint, changed)
            lost.append(f"{name}={ours} (its own code has {theirs}: logits differ by {off:.1e})")
    return tuple(lost)


def _list_files(part: Path, out: Path) -> tuple[Path, ...]:
    """Name what was written as it will be found at `out`, weights first."""
    if not part.is_dir():
        return (out,)
    inside = sorted(part.iterdir(), key=lambda file: (file.suffix == ".json", file.name))
    return tuple(out / file.name for file in inside)


@torch.inference_mode()
def _compare_with_reference(
    checkpoint: Checkpoint, sides: list[tuple[Resolved, Checkpoint]]
) -> tuple[float, str]:
    """Compare a model with a second reading of the files it came from and went to.

    Return the largest difference, and what was compared. Models too large for float64 are
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
