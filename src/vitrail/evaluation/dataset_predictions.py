"""What a model predicts for each image of a dataset: one pass, small enough to keep for millions.

Classes are those of the data, in its order; `ClassMatching` maps the model's outputs to them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.config import InputError
from vitrail.data.batches import Batch, EvalBatches, UnreadableImage
from vitrail.data.loader import Loader, LoaderConfig
from vitrail.data.transforms.preprocess import Preprocess
from vitrail.evaluation.accuracy import TOP_K, rank_classes, run_batches
from vitrail.weights.checkpoint import Activation


@dataclass(frozen=True)
class ClassMatching:
    """Which class of the data each output of the model stands for."""

    owner: np.ndarray
    """(outputs) the number of the data's class, -1 for none; a class may own several outputs."""
    notes: tuple[str, ...] = ()
    """What a person should know about it, one line each."""
    restricted: bool = False
    """Whether outputs that stand for no class are ignored, as if the model did not have them."""

    def outputs(self, classes: int) -> np.ndarray:
        """Give the output of each class, where each has one."""
        found = np.zeros(classes, np.int64)
        known = self.owner >= 0
        found[self.owner[known]] = np.flatnonzero(known)
        return found


@dataclass(frozen=True)
class Predictions:
    """What a model predicts, one row per readable image."""

    indices: np.ndarray
    """(n) each image's number in the dataset."""
    labels: np.ndarray
    """(n) its class; (n, classes) of 0 and 1 where images have several labels; (n, targets) of
    numbers."""
    top: np.ndarray
    """(n, 5 or fewer) the most likely classes, best first; -1 for outputs that stand for none."""
    confidence: np.ndarray
    """(n) the probability of the most likely output."""
    losses: np.ndarray
    """(n) cross-entropy; for a sigmoid model or several labels, binary and summed over classes; for
    numbers, the squared error, averaged over targets."""
    logits: np.ndarray | None
    """(n, classes), kept only where images have several labels, or numbers to predict."""
    unreadable: tuple[UnreadableImage, ...]
    ranked: int = 0
    """How many outputs the most likely classes are the best of."""

    def correct(self, k: int = 1) -> np.ndarray:
        """Tell for each image whether its class is among the k most likely."""
        return (self.top[:, :k] == self.labels[:, None]).any(1)


def read_predictions(
    batch: Batch,
    logits: Tensor,
    matching: ClassMatching,
    activation: Activation = "softmax",
    temperature: float = 1.0,
) -> Predictions:
    """Reduce one batch's logits to predictions; the temperature is that of the confidence."""
    readable = batch.weights > 0
    labels, logits = batch.labels[readable], logits[readable[: len(logits)]]
    rows = batch.indices[readable].numpy()
    owner = torch.from_numpy(matching.owner)
    multilabel = labels.ndim == 2
    if not len(rows):
        empty = np.empty((0, labels.shape[-1]), np.float32) if multilabel else None
        none = np.empty(0)
        return Predictions(
            rows, labels.numpy(), np.empty((0, 0), np.int64), none, none, empty, batch.bad
        )
    if logits.shape[-1] != len(owner):
        raise InputError(f"the model has {logits.shape[-1]} outputs, expected {len(owner)}")
    if multilabel:
        logits = logits[:, torch.from_numpy(matching.outputs(labels.shape[1]))]
        targets = labels.float()
        if labels.is_floating_point():  # numbers to predict
            losses = (logits - targets).square().mean(-1)
        else:
            losses = F.binary_cross_entropy_with_logits(logits, targets, reduction="none").sum(-1)
        none, unknown = np.empty((len(rows), 0), np.int64), np.full(len(rows), np.nan)
        kept = logits.numpy()
        return Predictions(
            rows, labels.numpy(), none, unknown, losses.double().numpy(), kept, batch.bad
        )
    if matching.restricted:
        logits = logits.masked_fill(owner < 0, -torch.inf)
    ranked = int((owner >= 0).sum()) if matching.restricted else len(owner)
    own = owner == labels[:, None]
    if activation == "sigmoid":
        scores = F.logsigmoid(logits)
        losses = F.softplus(logits).masked_fill(own, 0).sum(-1)
        losses = losses - scores.masked_fill(~own, -torch.inf).amax(-1)
    else:
        scores = F.log_softmax(logits, -1)
        losses = -scores.masked_fill(~own, -torch.inf).logsumexp(-1)
    best = rank_classes(logits, min(TOP_K, ranked))
    confidence = scores.gather(-1, best[:, :1])[:, 0].double().exp()
    if activation == "softmax" and temperature != 1:
        confidence = (logits.double() / temperature).softmax(-1).amax(-1)
    return Predictions(
        rows,
        labels.numpy(),
        owner[best].numpy(),
        confidence.numpy(),
        losses.double().numpy(),
        None,
        batch.bad,
        ranked,
    )


def join_predictions(parts: Sequence[Predictions]) -> Predictions:
    """Join the predictions of batches or processes, in the order of the dataset."""
    full = [part for part in parts if len(part.indices)]
    if not full:
        count = sum(len(part.unreadable) for part in parts)
        raise InputError(f"nothing to evaluate: none of {count:,} images can be read")
    order = np.argsort(np.concatenate([part.indices for part in full]), kind="stable")

    def joined(pick: Callable[[Predictions], np.ndarray]) -> np.ndarray:
        return np.concatenate([pick(part) for part in full])[order]

    losses = joined(lambda part: part.losses)
    if bad := int((~np.isfinite(losses)).sum()):
        raise InputError(
            f"the model's outputs for {bad:,} of {len(losses):,} images are NaN or infinite; its "
            "weights are damaged, or they overflow"
        )
    multilabel = full[0].logits is not None
    return Predictions(
        joined(lambda part: part.indices),
        joined(lambda part: part.labels),
        joined(lambda part: part.top),
        joined(lambda part: part.confidence),
        losses,
        joined(lambda part: np.asarray(part.logits)) if multilabel else None,
        tuple(image for part in parts for image in part.unreadable),
        full[0].ranked,
    )


def predict_batches(
    model: nn.Module,
    batches: Iterable[Batch],
    preprocess: Preprocess,
    matching: ClassMatching,
    *,
    device: torch.device,
    activation: Activation = "softmax",
    temperature: float = 1.0,
    report: Callable[[int], None] = lambda done: None,
) -> list[Predictions]:
    """Run a model over batches; `report` is told how many images are done."""
    found: list[Predictions] = []
    done = 0
    for batch, logits in run_batches(model, batches, preprocess, device=device):
        found.append(read_predictions(batch, logits, matching, activation, temperature))
        done += len(batch.labels)
        report(done)
    return found


def predict_dataset(
    model: nn.Module,
    batches: EvalBatches,
    matching: ClassMatching,
    *,
    device: torch.device,
    activation: Activation = "softmax",
    temperature: float = 1.0,
    loader: LoaderConfig | None = None,
    report: Callable[[int], None] = lambda done: None,
) -> list[Predictions]:
    """Run a model over this process's share of a dataset; `join_predictions` joins the parts."""
    made = Loader(batches.__getitem__, range(len(batches)), loader or LoaderConfig())
    return predict_batches(
        model.to(device),
        made,
        batches.preprocess,
        matching,
        device=device,
        activation=activation,
        temperature=temperature,
        report=report,
    )
