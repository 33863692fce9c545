"""A model's features of a data set, computed once: what few-shot, probe, kNN and embed share."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitrail.config import InputError, to_dict
from vitrail.data.batches import Batch, EvalBatches, UnreadableImage
from vitrail.data.dataset import ImageDataset
from vitrail.data.loader import Loader, LoaderConfig
from vitrail.data.transforms.apply import normalize
from vitrail.data.transforms.preprocess import Preprocess
from vitrail.data.unreadable import UnreadableImages
from vitrail.evaluation.features.feature_kinds import Kind, check_kind, encode, parse_kind
from vitrail.evaluation.features.feature_store import Entry, Part, key_of
from vitrail.models import Model, spec_to_dict
from vitrail.text import quoted

BATCH = 64
"""Images of a forward pass; another number changes the last digits."""
_PER_PART = 16  # batches: about a thousand images are lost when a process is killed
_VERSION = 1  # of what is kept, to be raised when the same key would give other features


@dataclass(frozen=True, kw_only=True)
class Features:
    """The features of a set's images, in its order, with their labels and names."""

    name: str
    """What a message calls the set."""
    classes: tuple[str, ...]
    values: np.ndarray
    """(n, width), float32."""
    labels: np.ndarray
    """(n) class numbers, int64; with several labels an image (n, classes) of 0 and 1."""
    names: np.ndarray
    """(n) each image's name, text."""
    bad: tuple[UnreadableImage, ...] = ()
    """Images of the set that could not be read, and have no row here."""

    def __len__(self) -> int:
        return len(self.values)

    def __post_init__(self) -> None:
        """Refuse what nothing could be measured on; nothing is renumbered or left out."""
        if not len(self.values):
            bad = f": {len(self.bad):,} images, none of them readable" if self.bad else ""
            raise InputError(f"{self.name} has no images to measure on{bad}")
        assert len(self.values) == len(self.labels) == len(self.names)
        finite = np.isfinite(self.values).all(axis=1)
        if not finite.all():
            first = np.flatnonzero(~finite)[0]
            count = f"{np.sum(~finite):,} of {len(self):,} images"
            raise InputError(
                f"{self.name}: the features of {count} are NaN or infinite, first those of "
                f"{self.names[first]}; the model is damaged, or overflows"
            )
        labels, known = self.labels, len(self.classes)
        if labels.ndim == 1 and (labels.min() < 0 or labels.max() >= known):
            stray = labels[(labels < 0) | (labels >= known)][0]
            raise InputError(
                f"{self.name}: label {stray} is outside the {known:,} classes (0 to {known - 1})"
            )
        if labels.ndim == 2 and labels.shape[1] != known:
            raise InputError(f"{self.name}: {labels.shape[1]} labels an image, {known} classes")


@dataclass(frozen=True)
class EncodeBatch:
    """The work on one batch, which can be sent to another process."""

    model: Model[Any]
    batches: EvalBatches
    kind: Kind
    device: torch.device

    def __call__(self, step: int) -> Part:
        """Compute the features of the batch of this number."""
        return _encode_batch(self.model, self.batches[step], self.batches, self.kind, self.device)


Engine = Callable[[EncodeBatch, Sequence[int]], Iterator[Part]]
"""Who does the work for batches of these numbers, and gives what comes of it in their order."""


def check_pair(train: Features, test: Features) -> None:
    """Refuse two sets that do not mean the same by a label, or have several labels an image."""
    for each in (train, test):
        if each.labels.ndim == 2:
            raise InputError(f"{each.name} has several labels an image; expected one class each")
    if train.classes != test.classes:
        here, there = (set(each.classes) for each in (train, test))
        lone = [f"{quoted(sorted(here - there))} only in {train.name}"] if here - there else []
        lone += [f"{quoted(sorted(there - here))} only in {test.name}"] if there - here else []
        why = "; ".join(lone) or "the same names in another order"
        raise InputError(f"the classes of {train.name} and {test.name} differ: {why}")
    if train.values.shape[1] != test.values.shape[1]:
        widths = f"{train.values.shape[1]} and {test.values.shape[1]}"
        raise InputError(f"{train.name} and {test.name} have features of widths {widths}")


def extract(
    model: Model[Any],
    source: ImageDataset,
    preprocess: Preprocess,
    kind: Kind | str = "pre-logits",
    *,
    batch: int = BATCH,
    device: torch.device | str = "cpu",
    loader: LoaderConfig | None = None,
    cache: Path | None = None,
    engine: Engine | None = None,
    report: Callable[[int], None] = lambda done: None,
) -> Features:
    """Run a model over all images of a set that can be read, and give their features.

    `kind` is as kinds.py says. With a `cache` folder (`features_folder()` is the usual one) what is
    there is taken and what is computed is kept, part by part. An `engine`, such as Ray's workers,
    computes elsewhere. `report` is told of images done.
    """
    kind = parse_kind(kind) if isinstance(kind, str) else kind
    check_kind(model, kind)
    device = torch.device(device)
    batches = EvalBatches(source, preprocess, batch=batch)
    entry = Entry(None)
    if cache is not None:
        facts = [_VERSION, str(kind), batch, device.type, to_dict(preprocess)]
        facts += [spec_to_dict(model.spec), hash_weights(model), hash_data(source)]
        entry = Entry(cache / key_of(facts))
    work = EncodeBatch(model.to(device), batches, kind, device)
    here: Engine = partial(_encode_here, loader=loader or LoaderConfig())
    parts = list(_complete(entry, work, engine or here, report))
    entry.finish()
    ledger = UnreadableImages(source.name, len(source), allowed=1.0)
    ledger.note(each for part in parts for each in part.bad)
    return Features(
        name=source.name,
        classes=source.classes,
        values=_join([part.values for part in parts], np.empty((0, 0), np.float32)),
        labels=_join([part.labels for part in parts], source.labels),
        names=_join([part.names for part in parts], np.empty(0, np.str_)),
        bad=tuple(ledger.bad.values()),
    )


def _join(arrays: list[np.ndarray], nothing: np.ndarray) -> np.ndarray:
    return np.concatenate(arrays) if arrays else nothing


def _complete(
    entry: Entry, work: EncodeBatch, engine: Engine, report: Callable[[int], None]
) -> Iterator[Part]:
    """Give all parts in order: those that are kept, and the others as they are computed."""
    batches, model = work.batches, work.model
    runs = [
        range(start, min(start + _PER_PART, len(batches)))
        for start in range(0, len(batches), _PER_PART)
    ]
    kept = {number: part for number in range(len(runs)) if (part := entry.get(number))}
    steps = [step for number, run in enumerate(runs) if number not in kept for step in run]
    was_training = model.training
    made = engine(work, steps)
    model.eval()
    for number, run in enumerate(runs):
        done = run.start * batches.batch
        if number in kept:
            yield kept.pop(number)
        else:
            rows = []
            for encoded in islice(made, len(run)):
                rows.append(encoded)
                done += len(encoded.values) + len(encoded.bad)
                report(done)
            part = _merge(rows)
            entry.put(number, part)
            yield part
        report(min(run.stop * batches.batch, len(batches.source)))
    model.train(was_training)


def _encode_here(
    work: EncodeBatch, steps: Sequence[int], *, loader: LoaderConfig
) -> Iterator[Part]:
    """Compute the features of batches in this process, of which others are made meanwhile."""
    for batch in Loader(work.batches.__getitem__, steps, loader):
        yield _encode_batch(work.model, batch, work.batches, work.kind, work.device)


@torch.inference_mode()
def _encode_batch(
    model: Model[Any], batch: Batch, batches: EvalBatches, kind: Kind, device: torch.device
) -> Part:
    """Compute one batch's features; black stand-ins of bad images are computed and left out."""
    images = normalize(batch.images, batches.preprocess, device=device)
    values = encode(model, images, kind).float().cpu().numpy()
    good = batch.weights.numpy() > 0
    names = [batches.source.where(index) for index in batch.indices.tolist()]
    return Part(
        values=values[good],
        labels=batch.labels.numpy()[good],
        names=np.array(names, np.str_)[good],
        bad=batch.bad,
    )


def _merge(parts: Iterable[Part]) -> Part:
    parts = list(parts)
    return Part(
        values=np.concatenate([part.values for part in parts]),
        labels=np.concatenate([part.labels for part in parts]),
        names=np.concatenate([part.names for part in parts]),
        bad=tuple(bad for part in parts for bad in part.bad),
    )


def hash_weights(model: Model[Any]) -> str:
    """Hash all parameters, whatever file they came from or were changed since."""
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def hash_data(source: ImageDataset) -> str:
    """Hash what says that a set's images are still the same: place, names, labels, times."""
    root = "" if source.root is None else str(source.root.resolve())
    text = f"{root}\0{source.stamp()}".encode("utf-8", "surrogateescape")
    return hashlib.sha256(text).hexdigest()
