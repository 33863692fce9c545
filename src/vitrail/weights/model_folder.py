"""Our own model folder: `model.safetensors` and `model.json`, whole or not there at all."""

from __future__ import annotations

import hashlib
import json
import tempfile
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from vitrail.config import InputError, from_dict, read_file, suggest, to_dict
from vitrail.data.trained_on import TrainedOn
from vitrail.data.transforms.preprocess import Preprocess
from vitrail.files import find_stranded, permit, replace_folder, settle_folder, sync
from vitrail.models import Spec, spec_from_dict, spec_to_dict
from vitrail.weights.checkpoint import (
    Activation,
    Checkpoint,
    Provenance,
    check_outputs,
    check_size,
    make_empty,
)
from vitrail.weights.files.tensor_files import check_numbers, open_weights, sha256_of
from vitrail.weights.files.write_safetensors import save_safetensors
from vitrail.weights.formats.mae_decoder import Decoder, DecoderFacts, check_decoder
from vitrail.weights.sources.resolved import LARGEST_JSON
from vitrail.weights.trained_on_record import FILE as TRAINED_ON
from vitrail.weights.trained_on_record import TrainedOnFacts, read_trained_on, write_trained_on
from vitrail.weights.uncertainty_record import (
    FILE,
    UncertaintyFacts,
    read_uncertainty,
    write_uncertainty,
)

WEIGHTS, RECORD = "model.safetensors", "model.json"
_DECODER = "decoder."
VERSION = 1


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
    trained_on: TrainedOnFacts | None = None
    decoder: DecoderFacts | None = None
    changed_by: str | None = None


_SHARED = ("classes", "preprocess", "provenance", "activation", "thresholds", "changed_by")


def save_folder(checkpoint: Checkpoint, folder: Path, *, own: bool = False) -> None:
    """Write a model folder; an older model folder of that name is replaced, nothing else is.

    One process at a time saves to a folder. Whatever stops it leaves the old folder or the new.
    One that is known for the caller's `own` may be damaged.
    """
    make_empty(checkpoint)
    check_outputs(checkpoint)
    folder = folder.resolve()  # so that a link is followed, not replaced
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        settle_folder(folder)
        check_replaceable(folder, own=own)
        try:
            replace_folder(_write(checkpoint, folder), folder)
        except BaseException:
            with suppress(OSError):
                settle_folder(folder)
            raise
    except (OSError, SafetensorError) as error:
        cause = getattr(error, "strerror", None) or error
        raise InputError(f"{folder}: could not be saved: {cause}; what was there stays") from None


def _write(checkpoint: Checkpoint, folder: Path) -> Path:
    """Write all beside the folder, on disk and for all that may read the user's files."""
    new = Path(tempfile.mkdtemp(prefix=f".{folder.name}.new-", dir=folder.parent))
    uncertain, decoder, tensors = checkpoint.uncertainty, checkpoint.decoder, checkpoint.tensors
    seen = checkpoint.trained_on
    if decoder is not None:
        tensors = {**tensors, **{f"{_DECODER}{key}": x for key, x in decoder.tensors.items()}}
    save_safetensors(tensors, new / WEIGHTS, {"format": "pt"})
    record = _Record(
        name=str(checkpoint.spec),
        sha256=sha256_of(new / WEIGHTS),
        parameters=sum(tensor.numel() for tensor in tensors.values()),
        decoder=None if decoder is None else decoder.facts,
        uncertainty=None if uncertain is None else write_uncertainty(uncertain, new),
        trained_on=None if seen is None else write_trained_on(seen, new),
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


def check_replaceable(folder: Path, *, own: bool = False) -> None:
    """Refuse to replace anything but a model folder with nothing else in it."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise InputError(f"{folder}: is a file; choose another name for the model folder")
    others = sorted({path.name for path in folder.iterdir()} - {WEIGHTS, RECORD, FILE, TRAINED_ON})
    if not others and not own and (folder / RECORD).exists():
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


def load_trained_on(folder: Path) -> TrainedOn | None:
    """Read what a folder's model was trained on, without its weights; None without a record."""
    place, _, record = _read_facts(folder)
    return None if record.trained_on is None else read_trained_on(record.trained_on, place)


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


def check_whole(folder: Path) -> None:
    """Refuse a model folder in which a file is missing or damaged."""
    place, spec, record = _read_facts(folder)
    _check_weights(place / WEIGHTS, record)
    if record.uncertainty is not None:
        read_uncertainty(record.uncertainty, place, spec.classes)


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
        if record.trained_on is not None:
            seen = read_trained_on(record.trained_on, place)
            checkpoint = replace(checkpoint, trained_on=seen)
        check_size(spec, {name: tuple(tensor.shape) for name, tensor in checkpoint.tensors.items()})
        make_empty(checkpoint)
        check_outputs(checkpoint)
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


def _check_weights(path: Path, record: _Record) -> None:
    if not path.exists():
        raise InputError(f"{path}: is missing; the folder is not whole")
    if sha256_of(path) != record.sha256:
        raise InputError(f"{path}: {WEIGHTS} is damaged (checksum): copy or download it again")


def _read_weights(path: Path, record: _Record) -> dict[str, Tensor]:
    _check_weights(path, record)
    tensors = open_weights(path).read()
    if (count := sum(map(torch.numel, tensors.values()))) != record.parameters:
        raise InputError(f"{path}: holds {count:_} parameters, {RECORD} says {record.parameters:_}")
    check_numbers(tensors, str(path))
    return tensors
