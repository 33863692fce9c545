"""Our own model folder: `model.safetensors` and `model.json`, whole or not there at all.

A save writes a folder beside, `.NAME.new-…`, and brings it on disk; then the old one is renamed to
`.NAME.old-…`, the new one to NAME, and the old one is removed. Whenever that stops, NAME is the old
folder or the new one, or, between the two renames, is missing and both stand beside: there
loading finds the new one, and the next save cleans up.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from torch import Tensor

from vitrail.config import InputError, from_dict, read_file, suggest, to_dict
from vitrail.data.transforms.preprocess import LARGEST_SIDE, Preprocess
from vitrail.files import permit, sync
from vitrail.models import BiT, Spec, ViT, build, spec_from_dict, spec_to_dict
from vitrail.models.cost.total import cost_of
from vitrail.weights.files.tensor_files import check_numbers, open_weights, sha256_of
from vitrail.weights.files.write_safetensors import save_safetensors
from vitrail.weights.formats.mae_decoder import Decoder, DecoderFacts, check_decoder
from vitrail.weights.sources import LARGEST_JSON
from vitrail.weights.uncertainty_record import (
    FILE,
    Uncertainty,
    UncertaintyFacts,
    check_uncertainty,
    read_uncertainty,
    write_uncertainty,
)

WEIGHTS, RECORD = "model.safetensors", "model.json"
_DECODER = "decoder."
VERSION = 1

Activation = Literal["softmax", "sigmoid", "none"]
"""What makes probabilities of a model's logits: softmax for one class per image, sigmoid for any
number of labels per image."""


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Where weights come from."""

    source: str
    """What they were asked for by."""
    sha256: str
    """Hash of the file that was read; empty where it was only loaded, not kept."""
    format: str
    """Whose names the file uses."""
    changes: tuple[str, ...] = ()
    """What was done to the weights since, one line per change."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """Everything that a model needs: its spec, weights, classes and preprocessing."""

    spec: Spec
    tensors: dict[str, Tensor]
    """All parameters, under our names."""
    classes: tuple[str, ...] | None = None
    """The names of the head's outputs, in their order."""
    preprocess: Preprocess | None = None
    activation: Activation = "softmax"
    """What the loss that it was trained with makes of its logits; `none` if they are numbers."""
    thresholds: tuple[float, ...] | None = None
    """For each output of a sigmoid model, the probability from which on an image has the label,
    chosen on held-out images; 0.5 where there are none."""
    uncertainty: Uncertainty | None = None
    """Its temperature, and how sure and how often right it was on held-out images."""
    provenance: Provenance | None = None
    decoder: Decoder | None = None
    """What MAE predicts pixels with, where the weights come with it."""
    changed_by: str | None = None
    """The import path of what put parts of its own into the model, where something did."""

    def build(self, change: Callable[[Any], Any] | None = None) -> ViT | BiT:
        """Build the model around the tensors, without a copy, in eval mode.

        One with parts of its own needs the `change` that puts them in.
        """
        if change is not None:
            model = change(build(self.spec))
            try:
                model.load_state_dict(self.tensors)
            except RuntimeError as error:
                said = " ".join(str(error).split())
                raise InputError(f"the weights do not fit the changed model: {said}") from None
            return model.eval()
        if self.changed_by is not None:
            raise InputError(
                f"the model has parts of its own, put in by {self.changed_by}; "
                f"load it from Python: vitrail.load(…, change=that function)"
            )
        model = _make_empty(self)
        model.load_state_dict(self.tensors, assign=True)
        return model.eval()


def _make_empty(checkpoint: Checkpoint) -> ViT | BiT:
    """Make the model without memory; refuse weights that are not its own, all misfits at once."""
    model = build(checkpoint.spec, device="meta")
    if checkpoint.changed_by is not None:  # what its parts hold only they know
        return model
    problems = list(_find_misfits(model.state_dict(), checkpoint.tensors))
    if problems:
        more = [f"and {len(problems) - 10} more"] if len(problems) > 10 else []
        listed = "; ".join([*problems[:10], *more])
        raise InputError(f"the weights do not fit {checkpoint.spec}: {listed}")
    return model


def _find_misfits(wanted: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> Iterator[str]:
    for name, tensor in wanted.items():
        shape = tuple(tensor.shape)
        if name not in given:
            yield f"missing {name} {shape}"
        elif tuple(given[name].shape) != shape:
            yield f"{name} has shape {tuple(given[name].shape)}, expected {shape}"
        elif not given[name].is_floating_point():
            yield f"{name} holds {given[name].dtype}, expected floating-point numbers"
    yield from (f"unknown {name[:80]!r}" for name in given if name not in wanted)


def check_size(spec: Spec, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse a spec that a file's tensors are far from filling, or whose images never fit.

    What little is missing is listed later.
    """
    if max(spec.image) > LARGEST_SIDE:
        size = "x".join(str(side)[:20] for side in spec.image)
        raise InputError(f"images of {size} pixels; the limit is {LARGEST_SIDE} on a side")
    blocks = getattr(spec, "depth", 0) + sum(getattr(spec, "stages", ()))
    if 4 * blocks > len(shapes):  # even the smallest block has more
        raise InputError(f"{blocks:_} blocks can't be made of {len(shapes):_} tensors")
    there = sum(map(math.prod, shapes.values()))
    if (needed := cost_of(spec).parameters) > 1000 * there:
        raise InputError(f"{needed:_} parameters can't be made of {there:_} numbers")


@dataclass(frozen=True, kw_only=True)
class _Record:
    """What model.json holds besides its version, the spec and, at its end, its checksum."""

    name: str
    """The spec in one word, for people."""
    classes: tuple[str, ...] | None
    preprocess: Preprocess | None
    provenance: Provenance | None
    sha256: str
    """Hash of model.safetensors."""
    parameters: int
    activation: Activation = "softmax"
    thresholds: tuple[float, ...] | None = None
    uncertainty: UncertaintyFacts | None = None
    decoder: DecoderFacts | None = None
    changed_by: str | None = None


_SHARED = ("classes", "preprocess", "provenance", "activation", "thresholds", "changed_by")


def save_folder(checkpoint: Checkpoint, folder: Path) -> None:
    """Write a model folder; an older model folder of that name is replaced, nothing else is.

    One process at a time saves to a folder. Whatever stops it leaves the old folder or the new.
    """
    _make_empty(checkpoint)
    _check_outputs(checkpoint)
    folder = folder.resolve()  # so that a link is followed, not replaced
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _settle(folder)
        check_replaceable(folder)
        try:
            _swap(_write(checkpoint, folder), folder)
        except BaseException:
            with suppress(OSError):
                _settle(folder)
            raise
    except (OSError, SafetensorError) as error:
        cause = getattr(error, "strerror", None) or error
        raise InputError(f"{folder}: could not be saved: {cause}; what was there stays") from None


def _write(checkpoint: Checkpoint, folder: Path) -> Path:
    """Write all beside the folder, on disk and for all that may read the user's files."""
    new = Path(tempfile.mkdtemp(prefix=f".{folder.name}.new-", dir=folder.parent))
    uncertain, decoder, tensors = checkpoint.uncertainty, checkpoint.decoder, checkpoint.tensors
    if decoder is not None:
        tensors = {**tensors, **{f"{_DECODER}{key}": x for key, x in decoder.tensors.items()}}
    save_safetensors(tensors, new / WEIGHTS, {"format": "pt"})
    record = _Record(
        name=str(checkpoint.spec),
        sha256=sha256_of(new / WEIGHTS),
        parameters=sum(tensor.numel() for tensor in tensors.values()),
        decoder=None if decoder is None else decoder.facts,
        uncertainty=None if uncertain is None else write_uncertainty(uncertain, new),
        **{key: getattr(checkpoint, key) for key in _SHARED},
    )
    data = {"version": VERSION, **to_dict(record), "spec": spec_to_dict(checkpoint.spec)}
    text = json.dumps({**data, "checksum": ""}, indent=2) + "\n"
    sealed = text.replace(_seal(""), _seal(hashlib.sha256(text.encode()).hexdigest()))
    (new / RECORD).write_text(sealed, encoding="utf-8", newline="\n")
    for path in (*sorted(new.iterdir()), new):
        permit(path)  # as mkdtemp does not
        sync(path)
    return new


def _seal(digest: str) -> str:
    """Give the last entry of model.json; within a text its quotes would have backslashes."""
    return f'"checksum": "{digest}"'


def _swap(new: Path, folder: Path) -> None:
    """Put a finished folder under its name."""
    old = new.with_name(f".{folder.name}.old-{new.name[-8:]}")
    if folder.exists():
        folder.rename(old)
    new.rename(folder)
    sync(folder.parent)
    shutil.rmtree(old, ignore_errors=True)  # what stays of it goes with the next save


def _settle(folder: Path) -> None:
    """Finish or remove what a save left behind that was stopped."""
    if not folder.exists() and (stranded := find_stranded(folder)):
        stranded.rename(folder)
        sync(folder.parent)
    for path in _leftovers(folder):
        shutil.rmtree(path)


def _leftovers(folder: Path) -> list[Path]:
    pattern = re.compile(rf"\.{re.escape(folder.name)}\.(new|old)-\w{{8}}")
    return [path for path in folder.parent.glob(".*") if pattern.fullmatch(path.name)]


def find_stranded(folder: Path) -> Path | None:
    """Find the new model between the two renames; it is whole when the old one stands aside."""
    there = {path.name[-12:]: path for path in _leftovers(folder)}
    return next(
        (there[key] for key in there if key[:3] == "new" and f"old{key[3:]}" in there), None
    )


def check_replaceable(folder: Path) -> None:
    """Refuse to replace anything but a model folder with nothing else in it."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise InputError(f"{folder}: is a file; choose another name for the model folder")
    others = sorted({path.name for path in folder.iterdir()} - {WEIGHTS, RECORD, FILE})
    if not others and (folder / RECORD).exists():
        others = [RECORD]
        with suppress(InputError):
            others *= not {"version", "spec", "sha256"} <= _read_record(folder / RECORD).keys()
    if others:
        raise InputError(
            f"{folder}: is not replaced, as it holds what no save of a model wrote "
            f"({', '.join(others[:3])}); choose another folder"
        )


def load_folder_spec(folder: Path) -> Spec:
    """Read which model a folder holds, without its weights."""
    return _read_facts(folder)[1]


def _read_facts(folder: Path) -> tuple[Path, Spec, _Record]:
    place = folder if folder.exists() else find_stranded(folder.absolute()) or folder
    if not place.is_dir():
        what = "is a file, not a model folder" if place.exists() else "no such model folder"
        near = [path.name for path in folder.absolute().parent.glob("*") if path.is_dir()]
        raise InputError(f"{folder}: {what}{suggest(folder.name, near)}")
    data = _read_record(place / RECORD)
    try:
        version = data.pop("version", None)
        if version != VERSION:
            raise InputError(f"has version {version!r}; this vitrail reads {VERSION}: update it")
        spec = data.pop("spec", None)
        spec = spec_from_dict(spec if isinstance(spec, dict) else {})
        record = from_dict(_Record, data)
    except InputError as error:
        raise InputError(f"{place / RECORD}: {error}") from None
    return place, spec, record


def load_folder(folder: Path) -> Checkpoint:
    """Read a model folder, whose checksums must be right."""
    place, spec, record = _read_facts(folder)
    shared: dict[str, Any] = {key: getattr(record, key) for key in _SHARED}
    tensors = _read_weights(place / WEIGHTS, record)
    light = {k.removeprefix(_DECODER): tensors[k] for k in tensors if k.startswith(_DECODER)}
    if record.decoder is not None:
        tensors = {key: tensors[key] for key in tensors if not key.startswith(_DECODER)}
        shared["decoder"] = Decoder(facts=record.decoder, tensors=light)
    checkpoint = Checkpoint(spec=spec, tensors=tensors, **shared)
    try:
        if checkpoint.decoder is not None:
            check_decoder(checkpoint.decoder, spec)
        if record.uncertainty is not None:
            found = read_uncertainty(record.uncertainty, place, spec.classes)
            checkpoint = replace(checkpoint, uncertainty=found)
        check_size(spec, {name: tuple(tensor.shape) for name, tensor in checkpoint.tensors.items()})
        _make_empty(checkpoint)
        _check_outputs(checkpoint)
    except InputError as error:
        raise InputError(f"{place}: {error}") from None
    return checkpoint


def _read_record(path: Path) -> dict[str, Any]:
    if path.is_file() and (size := path.stat().st_size) > LARGEST_JSON:
        raise InputError(f"{path}: has {size:_} bytes; the limit is {LARGEST_JSON:_}")
    data = read_file(path)
    digest = data.pop("checksum", None)
    if digest is None:
        return data
    text = path.read_bytes().replace(_seal(str(digest)).encode(), _seal("").encode())
    if hashlib.sha256(text).hexdigest() != digest:
        raise InputError(
            f"{path}: is damaged (checksum); if you changed it yourself, remove its last entry, "
            "'checksum'"
        )
    return data


def _read_weights(path: Path, record: _Record) -> dict[str, Tensor]:
    if not path.exists():
        raise InputError(f"{path}: is missing; the folder is not whole")
    if sha256_of(path) != record.sha256:
        raise InputError(f"{path}: {WEIGHTS} is damaged (checksum): copy or download it again")
    tensors = open_weights(path).read()
    if (count := sum(map(torch.numel, tensors.values()))) != record.parameters:
        raise InputError(f"{path}: holds {count:_} parameters, {RECORD} says {record.parameters:_}")
    check_numbers(tensors, str(path))
    return tensors


def _check_outputs(checkpoint: Checkpoint) -> None:
    classes, outputs = checkpoint.classes, checkpoint.spec.classes
    if classes is not None and len(classes) != outputs:
        raise InputError(f"{len(classes)} class names for {outputs} outputs of {checkpoint.spec}")
    if checkpoint.uncertainty is not None:
        check_uncertainty(checkpoint.uncertainty, outputs)
    if (thresholds := checkpoint.thresholds) is None:
        return
    if checkpoint.activation != "sigmoid":
        raise InputError(
            f"thresholds require the activation sigmoid; this model has {checkpoint.activation}"
        )
    if len(thresholds) != outputs or not all(0 <= each <= 1 for each in thresholds):
        raise InputError(f"expected {outputs} thresholds in [0, 1], got {[*thresholds][:10]}")
