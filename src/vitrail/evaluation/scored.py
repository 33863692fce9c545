"""What a model answers to each image of a set: one pass, small enough to keep for millions.

Classes are those of the data, in its order; `Matching` says which of the model's outputs they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.config import InputError
from vitrail.data.batches import Batch, UnreadableImage
from vitrail.data.transforms.preprocess import Preprocess
from vitrail.evaluation.accuracy import answer

MOST = 5
"""How many of the most likely classes are kept."""


@dataclass(frozen=True)
class Matching:
    """Which class of the data each output of the model stands for."""

    owner: np.ndarray
    """(outputs) the number of the data's class, -1 for none; a class may own several outputs."""
    notes: tuple[str, ...] = ()
    """What a person should know of it, each in one line."""
    restricted: bool = False
    """Whether outputs that stand for no class are left out, as if the model did not have them."""


@dataclass(frozen=True)
class Predictions:
    """What a model answered, a row an image that could be read."""

    indices: np.ndarray
    """(n) each image's number in the source."""
    labels: np.ndarray
    """(n) its class; with several labels an image (n, classes) of 0 and 1."""
    top: np.ndarray
    """(n, 5 or fewer) the most likely classes, best first; -1 for outputs that stand for none."""
    confidence: np.ndarray
    """(n) the probability of the most likely output."""
    losses: np.ndarray
    """(n) cross-entropy; with several labels, summed over them."""
    scores: np.ndarray | None
    """(n, classes) logits, kept only with several labels an image."""
    bad: tuple[UnreadableImage, ...]
    """The images that could not be read."""

    def right(self, most: int = 1) -> np.ndarray:
        """Tell of each image whether its class is among the most likely."""
        return (self.top[:, :most] == self.labels[:, None]).any(1)


def read_answers(batch: Batch, logits: Tensor, matching: Matching) -> Predictions:
    """Keep what matters of one batch's logits."""
    good = batch.weights > 0
    labels, logits = batch.labels[good], logits[good[: len(logits)]]
    rows = batch.indices[good].numpy()
    owner = torch.from_numpy(matching.owner)
    if not len(rows):
        several = labels.ndim == 2
        empty = np.empty((0, labels.shape[-1]), np.float32) if several else None
        none = np.empty(0)
        return Predictions(
            rows, labels.numpy(), np.empty((0, 0), np.int64), none, none, empty, batch.bad
        )
    if logits.shape[-1] != len(owner):
        raise InputError(f"the model has {logits.shape[-1]} outputs, {len(owner)} were expected")
    if labels.ndim == 2:
        scores, losses = _several(logits, labels, owner)
        none = np.empty((len(rows), 0), np.int64)
        return Predictions(
            rows, labels.numpy(), none, np.full(len(rows), np.nan), losses, scores, batch.bad
        )
    if matching.restricted:
        logits = logits.masked_fill(owner < 0, -torch.inf)
    most = min(MOST, int((owner >= 0).sum()) if matching.restricted else len(owner))
    chances = F.log_softmax(logits, -1)
    best = chances.topk(most, -1)
    own = chances.masked_fill(owner != labels[:, None], -torch.inf)
    return Predictions(
        rows,
        labels.numpy(),
        owner[best.indices].numpy(),
        best.values[:, 0].double().exp().numpy(),
        -own.logsumexp(-1).double().numpy(),
        None,
        batch.bad,
    )


def _several(logits: Tensor, labels: Tensor, owner: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Give each class's logit and each image's loss, where an image may have several labels."""
    outputs = torch.empty(labels.shape[1], dtype=torch.int64)
    known = owner >= 0
    outputs[owner[known]] = torch.arange(len(owner))[known]
    scores = logits[:, outputs]
    losses = F.binary_cross_entropy_with_logits(scores, labels.float(), reduction="none").sum(-1)
    return scores.numpy(), losses.double().numpy()


def join_answers(parts: Sequence[Predictions]) -> Predictions:
    """Put the answers of batches or processes together, in the order of the source."""
    if not any(len(part.indices) for part in parts):
        bad = sum(len(part.bad) for part in parts)
        raise InputError(f"there is nothing to measure: {bad:,} images, none of them readable")
    full = [part for part in parts if len(part.indices)]
    order = np.argsort(np.concatenate([part.indices for part in full]), kind="stable")

    def whole(pick: Callable[[Predictions], np.ndarray]) -> np.ndarray:
        return np.concatenate([pick(part) for part in full])[order]

    losses = whole(lambda part: part.losses)
    if bad := int((~np.isfinite(losses)).sum()):
        raise InputError(
            f"the model's answers to {bad:,} of {len(losses):,} images are NaN or infinite; its "
            "weights are damaged, or overflow"
        )
    several = full[0].scores is not None
    return Predictions(
        whole(lambda part: part.indices),
        whole(lambda part: part.labels),
        whole(lambda part: part.top),
        whole(lambda part: part.confidence),
        losses,
        whole(lambda part: np.asarray(part.scores)) if several else None,
        tuple(image for part in parts for image in part.bad),
    )


def collect(
    model: nn.Module,
    batches: Iterable[Batch],
    preprocess: Preprocess,
    matching: Matching,
    *,
    device: torch.device,
    report: Callable[[int], None] = lambda done: None,
) -> list[Predictions]:
    """Ask a model about every image of some batches; `report` is told how many are done."""
    found: list[Predictions] = []
    done = 0
    for batch, logits in answer(model, batches, preprocess, device=device):
        found.append(read_answers(batch, logits, matching))
        done += len(batch.labels)
        report(done)
    return found
