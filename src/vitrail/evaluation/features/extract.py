"""A model's features of a dataset, computed once: what few-shot, probe, kNN and embed share."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitrail.config import to_dict
from vitrail.data.batches import Batch, EvalBatches, UnreadableImage
from vitrail.data.dataset import ImageDataset, select
from vitrail.data.loader import Loader, LoaderConfig
from vitrail.data.transforms.apply import normalize
from vitrail.data.transforms.preprocess import Preprocess
from vitrail.data.unreadable import UnreadableImages
from vitrail.evaluation.features.feature_kinds import (
    FeatureKind,
    check_feature_kind,
    encode,
    parse_feature_kind,
)
from vitrail.evaluation.features.feature_reuse import (
    RowPlace,
    find_rows,
    keep_stamps,
    row_reader,
    stamp_images,
)
from vitrail.evaluation.features.feature_store import CacheEntry, FeaturePart, key_of
from vitrail.evaluation.features.image_features import Features
from vitrail.evaluation.features.mapped_rows import RowWriter
from vitrail.models import Model, spec_to_dict
from vitrail.models.weight_hash import hash_weights

BATCH = 64
"""Images in a forward pass; another number changes the last digits."""
_PER_PART = 16  # batches: about a thousand images are lost when a process is killed
_VERSION = 2  # of what is kept, to be raised when the same key would give other features


@dataclass(frozen=True)
class EncodeBatch:
    """The work on one batch, which can be sent to another process."""

    model: Model[Any]
    batches: EvalBatches
    kind: FeatureKind
    device: torch.device

    def __call__(self, step: int) -> FeaturePart:
        """Compute the features of the batch of this number."""
        return encode_batch(self.model, self.batches[step], self.batches, self.kind, self.device)


Engine = Callable[[EncodeBatch, Sequence[int]], Iterator[FeaturePart]]
"""What computes the batches of these numbers, and yields their features in this order."""


def extract(
    model: Model[Any],
    dataset: ImageDataset,
    preprocess: Preprocess,
    kind: FeatureKind | str = "pre-logits",
    *,
    batch: int = BATCH,
    device: torch.device | str = "cpu",
    loader: LoaderConfig | None = None,
    cache: Path | None = None,
    engine: Engine | None = None,
    report: Callable[[int], None] = lambda done: None,
) -> Features:
    """Run a model over all readable images of a dataset, and give their features.

    feature_kinds.py lists the values of `kind`. With a `cache` folder (usually `features_folder()`)
    what is there is reused and what is computed is kept, part by part. An `engine`, for example
    Ray's workers, computes elsewhere. `report` is told how many images are done.
    """
    kind = parse_feature_kind(kind) if isinstance(kind, str) else kind
    check_feature_kind(model, kind)
    device = torch.device(device)
    batches = EvalBatches(dataset, preprocess, batch=batch)
    work = EncodeBatch(model.to(device), batches, kind, device)
    engine = engine or partial(_encode_here, loader=loader or LoaderConfig())
    if cache is None:
        parts = _complete(CacheEntry(None), work, engine, report)
    else:
        images = to_dict(batches.preprocess)
        if images["reading"] is None:
            del images["reading"]
        facts = [_VERSION, str(kind), batch, device.type, images]
        facts += [spec_to_dict(model.spec), hash_weights(model)]
        parts = _extract_cached(cache, facts, work, engine, report)
    unreadable = UnreadableImages(dataset.name, len(dataset), allowed=1.0)
    values, labels, names = RowWriter(), list[np.ndarray](), list[np.ndarray]()
    for part in parts:
        values.add(part.values)
        labels.append(part.labels)
        names.append(part.names)
        unreadable.note(part.bad)
    return Features(
        name=dataset.name,
        classes=dataset.classes,
        values=values.finish(),
        labels=_join(labels, dataset.labels),
        names=_join(names, np.empty(0, np.str_)),
        bad=tuple(unreadable.bad.values()),
        reading=batches.preprocess.reading,
    )


def _extract_cached(
    cache: Path,
    facts: list[Any],
    work: EncodeBatch,
    engine: Engine,
    report: Callable[[int], None],
) -> Iterator[FeaturePart]:
    """Take from the cache what is there, of this dataset or of others with the same images."""
    dataset, key = work.batches.dataset, key_of(facts)
    folder = cache / key_of([*facts, hash_data(dataset)])
    entry, stamps = CacheEntry(folder), None
    if not folder.exists():
        stamps = stamp_images(dataset)
        if rows := find_rows(cache, key, stamps or {}):
            _fill(entry, rows, work, engine, report)
    names = list[np.ndarray]()
    for part in _complete(entry, work, engine, report):
        names.append(part.names)
        yield part
    if stamps is not None:
        keep_stamps(folder, key, np.concatenate(names), stamps)
    entry.finish()


def _fill(
    entry: CacheEntry,
    rows: dict[str, RowPlace],
    work: EncodeBatch,
    engine: Engine,
    report: Callable[[int], None],
) -> None:
    """Fill an entry with rows that are known by their images' names, and compute the others."""
    batches, bad = work.batches, dict[str, UnreadableImage]()
    dataset = batches.dataset
    names = [dataset.where(index) for index in range(len(dataset))]
    missing = np.array([index for index, name in enumerate(names) if name not in rows], np.int64)
    computed = RowWriter()
    if len(missing):
        some = EvalBatches(select(dataset, missing), batches.preprocess, batch=batches.batch)
        made = 0
        for part in _complete(CacheEntry(None), replace(work, batches=some), engine, report):
            computed.add(part.values)
            rows |= {name: (None, made + n) for n, name in enumerate(part.names.tolist())}
            made += len(part.names)
            bad |= {each.where: each for each in part.bad}
    read, size = row_reader(computed.finish()), _PER_PART * batches.batch
    for number, start in enumerate(range(0, len(names), size)):
        run = range(start, min(start + size, len(names)))
        good = [index for index in run if names[index] in rows]
        part = FeaturePart(
            values=read([rows[names[index]] for index in good]),
            labels=dataset.labels[good],
            names=np.array([names[index] for index in good], np.str_),
            bad=tuple(bad[names[index]] for index in run if names[index] in bad),
        )
        entry.put(number, part)


def _join(arrays: list[np.ndarray], nothing: np.ndarray) -> np.ndarray:
    return np.concatenate(arrays) if arrays else nothing


def _complete(
    entry: CacheEntry, work: EncodeBatch, engine: Engine, report: Callable[[int], None]
) -> Iterator[FeaturePart]:
    """Yield all parts in order: those in the cache, and the others as they are computed."""
    batches, model = work.batches, work.model
    runs = [
        range(start, min(start + _PER_PART, len(batches)))
        for start in range(0, len(batches), _PER_PART)
    ]
    kept = {number for number in range(len(runs)) if entry.get(number) is not None}
    steps = [step for number, run in enumerate(runs) if number not in kept for step in run]
    was_training = model.training
    made = engine(work, steps)
    model.eval()
    for number, run in enumerate(runs):
        done = run.start * batches.batch
        part = entry.get(number) if number in kept else None
        if part is not None:
            yield part
        else:
            assert number not in kept, "a part of the cache vanished while it was read"
            rows = []
            for encoded in islice(made, len(run)):
                rows.append(encoded)
                done += len(encoded.values) + len(encoded.bad)
                report(done)
            part = _merge(rows)
            entry.put(number, part)
            yield part
        report(min(run.stop * batches.batch, len(batches.dataset)))
    model.train(was_training)


def _encode_here(
    work: EncodeBatch, steps: Sequence[int], *, loader: LoaderConfig
) -> Iterator[FeaturePart]:
    """Compute the features of batches in this process, while the next ones are loaded."""
    for batch in Loader(work.batches.__getitem__, steps, loader):
        yield encode_batch(work.model, batch, work.batches, work.kind, work.device)


@torch.inference_mode()
def encode_batch(
    model: Model[Any], batch: Batch, batches: EvalBatches, kind: FeatureKind, device: torch.device
) -> FeaturePart:
    """Compute one batch's features; black stand-ins of unreadable images are dropped."""
    images = normalize(batch.images, batches.preprocess, device=device)
    values = encode(model, images, kind).float().cpu().numpy()
    good = batch.weights.numpy() > 0
    names = [batches.dataset.where(index) for index in batch.indices.tolist()]
    return FeaturePart(
        values=values[good],
        labels=batch.labels.numpy()[good],
        names=np.array(names, np.str_)[good],
        bad=batch.bad,
    )


def _merge(parts: Iterable[FeaturePart]) -> FeaturePart:
    parts = list(parts)
    return FeaturePart(
        values=np.concatenate([part.values for part in parts]),
        labels=np.concatenate([part.labels for part in parts]),
        names=np.concatenate([part.names for part in parts]),
        bad=tuple(bad for part in parts for bad in part.bad),
    )


def hash_data(dataset: ImageDataset) -> str:
    """Hash what says that a dataset's images are still the same: place, names, labels, times."""
    root = "" if dataset.root is None else str(dataset.root.resolve())
    text = f"{root}\0{dataset.stamp()}".encode("utf-8", "surrogateescape")
    return hashlib.sha256(text).hexdigest()
