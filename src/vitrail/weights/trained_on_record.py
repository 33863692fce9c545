"""How a model folder keeps what its weights were trained on.

The counts are in model.json, the hashes of the images (data/trained_on.py) in
`trained_on.safetensors` beside it, at most a megabyte of them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
import torch

from vitrail.config import InputError
from vitrail.data.trained_on import Kind, TrainedOn, TrainingImages
from vitrail.weights.checkpoint import Provenance
from vitrail.weights.files.tensor_files import open_weights, sha256_of
from vitrail.weights.files.write_safetensors import save_safetensors

FILE = "trained_on.safetensors"
TRAINED = "trained on "
"""How a change of weights by training begins in their provenance."""


@dataclass(frozen=True, kw_only=True)
class TrainingFacts:
    """What model.json says of one training."""

    data: str
    """The name of what was trained on."""
    kind: Kind
    images: int
    """Images (or shards of a stream) that were trained on."""
    held_out: int
    place: str = ""
    filtered: bool = False
    chosen_on: str = ""
    """What was held out, if it chose weights or thresholds."""


@dataclass(frozen=True, kw_only=True)
class TrainedOnFacts:
    """What model.json says of all trainings, the last first."""

    trainings: tuple[TrainingFacts, ...]
    unrecorded: tuple[str, ...] = ()
    """Weights that they began from, of which nobody recorded it."""
    sha256: str = ""
    """Hash of trained_on.safetensors."""


def extend_record(
    before: TrainedOn | None, own: TrainingImages, provenance: Provenance | None
) -> TrainedOn:
    """Put a training before those that its weights had; note weights of ours without a record."""
    if provenance is not None:  # its last change is this training
        provenance = replace(provenance, changes=provenance.changes[:-1])
    before = lineage(before, provenance) or TrainedOn()
    return replace(before, trainings=(own, *before.trainings))


def lineage(record: TrainedOn | None, provenance: Provenance | None) -> TrainedOn | None:
    """Return a record, or of weights of ours without one, that it is missing."""
    if record is not None or provenance is None:
        return record
    if not any(change.startswith(TRAINED) for change in provenance.changes):
        return None
    return TrainedOn(unrecorded=(provenance.source,))


def write_trained_on(record: TrainedOn, folder: Path) -> TrainedOnFacts:
    """Write the hashes into a folder; return the facts with their file's hash."""
    record, tensors = record.fitted(), {}
    names = [field.name for field in fields(TrainingFacts)]
    for number, each in enumerate(record.trainings):
        for key in ("trained", "held"):
            array = np.array(getattr(each, key))
            signed = array.view(np.int64) if array.dtype == np.uint64 else array
            tensors[f"{number}.{key}"] = torch.from_numpy(signed)
    save_safetensors(tensors, folder / FILE, {"format": "pt"})
    return TrainedOnFacts(
        trainings=tuple(
            TrainingFacts(**{name: getattr(each, name) for name in names})
            for each in record.trainings
        ),
        unrecorded=record.unrecorded,
        sha256=sha256_of(folder / FILE),
    )


def read_trained_on(facts: TrainedOnFacts, folder: Path) -> TrainedOn:
    """Read the hashes, whose checksum and number must be right."""
    path = folder / FILE
    if not path.exists():
        raise InputError(f"{path}: is missing; the folder is not whole")
    if sha256_of(path) != facts.sha256:
        raise InputError(f"{path}: is damaged (checksum): copy or download it again")
    tensors, found = open_weights(path).read(), []
    for number, each in enumerate(facts.trainings):
        arrays = [tensors.get(f"{number}.{key}") for key in ("trained", "held")]
        trained, held = (np.empty(0, np.int64) if a is None else a.numpy() for a in arrays)
        known = (trained.dtype == np.uint8) == each.filtered and held.dtype == np.int64
        counts = each.kind == "unknown" or each.filtered or len(trained) == each.images
        if None in arrays or not (known and counts and trained.ndim == held.ndim == 1):
            raise InputError(f"{path}: expected the hashes of {each.images:,} images")
        signed = trained if each.filtered else trained.view(np.uint64)
        images = TrainingImages(**vars(each), trained=signed, held=held.view(np.uint64))
        found.append(images)
    return TrainedOn(trainings=tuple(found), unrecorded=facts.unrecorded)
