"""Nearest neighbors by cosine: exact search, and votes weighted as DINO's.

The search multiplies a block of queries with all references. Of each run of similarities only the
greatest is looked at first: the k runs with the greatest ones hold the k nearest, so that few
similarities are ever sorted. Processors that multiply bfloat16 take that first, which is off by a
known bound; the best few are compared in float32, and a query whose k nearest these can't be proven
to hold is asked again in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.config import InputError
from vitrail.evaluation.features.extract import Features, check_pair
from vitrail.evaluation.probes.holdout import hold_out

K = (1, 5, 10, 20, 50, 100, 200)
TEMPERATURE = 0.07
"""DINO's: a vote counts exp(cosine / temperature)."""
_QUERIES = 256  # whose similarities are in memory at a time
_CLOSER = 32  # queries whose best few are compared at a time
_MOST = 64  # neighbors, above which comparing the best few costs more than bfloat16 spares
_Search = Callable[[Tensor], tuple[Tensor, Tensor]]
_RUN = 32  # similarities of which the greatest is found first


def nearest(references: Tensor, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Find the k references (n, width) of greatest cosine with each query: cosines, indices.

    Both are (queries, k), the nearest first.
    """
    if not 1 <= k <= len(references):
        raise InputError(f"{k} nearest of {len(references):,}: expected 1 to {len(references):,}")
    references, queries = (F.normalize(each.float(), dim=1) for each in (references, queries))
    quick = _has_halves() and k <= _MOST and len(references) > 8 * _few(k)
    search = (_by_halves if quick else _by_singles)(references, k)
    cosines, indices = zip(*map(search, queries.split(_QUERIES)), strict=True)
    return torch.cat(cosines), torch.cat(indices)


def _by_singles(references: Tensor, k: int) -> _Search:
    """Search in float32."""
    buffer = references.new_empty(_QUERIES, len(references))

    def search(rows: Tensor) -> tuple[Tensor, Tensor]:
        return _greatest(torch.mm(rows, references.T, out=buffer[: len(rows)]), k)

    return search


def _by_halves(references: Tensor, k: int) -> _Search:
    """Search in bfloat16 and decide in float32; both are products of unit vectors."""
    halves = references.bfloat16()
    off = max(_lost(rows) for rows in references.split(_QUERIES))
    buffer = halves.new_empty(_QUERIES, len(references))
    closer = references.new_empty(_CLOSER * _few(k), references.shape[1])
    exactly = _by_singles(references, k)
    unit = torch.finfo(torch.bfloat16).eps / 2

    def rescore(rows: Tensor, places: Tensor) -> Tensor:
        taken = closer[: places.numel()]
        torch.index_select(references, 0, places.flatten(), out=taken)
        return (taken.view(*places.shape, -1) @ rows[..., None])[..., 0]

    def search(rows: Tensor) -> tuple[Tensor, Tensor]:
        similar = torch.mm(rows.bfloat16(), halves.T, out=buffer[: len(rows)])
        about, places = _greatest(similar, _few(k))
        pairs = zip(rows.split(_CLOSER), places.split(_CLOSER), strict=True)
        cosines, order = torch.cat([rescore(*pair) for pair in pairs]).topk(k)
        indices = places.gather(1, order)
        # What is left out is below the last of the few, but for rounded vectors and results.
        most = about[:, -1].float()
        most += 1.001 * (off + _lost(rows) + unit * most.abs())
        unsure = (cosines[:, -1] <= most).nonzero()[:, 0]
        if len(unsure):
            cosines[unsure], indices[unsure] = exactly(rows[unsure])
        return cosines, indices

    return search


def _lost(rows: Tensor) -> float:
    """Say how long the longest difference of rows from their bfloat16 is."""
    return float((rows - rows.bfloat16()).norm(dim=1).max())


def _few(k: int) -> int:
    """Say how many of the best are looked at more closely."""
    return 2 * k + 16


def _has_halves() -> bool:
    """Tell whether this processor multiplies bfloat16 faster than float32."""
    known = getattr(torch.cpu, "get_capabilities", dict)()
    return bool(known.get("avx512_bf16") or known.get("amx_bf16"))


def _greatest(similar: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Find the k greatest of each row, by runs where that spares sorting."""
    runs = similar.shape[1] // _RUN
    if runs <= 2 * k:
        values, indices = similar.topk(k)
        return values, indices
    # Place p of run r is column p * runs + r, so that maxima are taken of whole rows at a time.
    whole = runs * _RUN
    greatest = similar[:, :whole].view(-1, _RUN, runs).amax(1)
    chosen = greatest.topk(k, sorted=False).indices
    places = (torch.arange(_RUN)[:, None] * runs + chosen[:, None]).flatten(1)
    rest = torch.arange(whole, similar.shape[1]).expand(len(similar), -1)
    places = torch.cat([places, rest], dim=1)
    values, order = similar.gather(1, places).topk(k)
    return values, places.gather(1, order)


def vote(cosines: Tensor, labels: Tensor, classes: int, temperature: float | None) -> Tensor:
    """Let neighbors (n, k) of classes `labels` (n, k) vote; of equals the first class wins.

    Without a temperature every vote counts alike.
    """
    weights = torch.ones_like(cosines, dtype=torch.float64)
    if temperature is not None:  # the nearest's vote is 1, since exp(1 / 0.01) is beyond float32
        behind = cosines.double() - cosines.amax(1, keepdim=True)
        weights = (behind / temperature).exp()
    votes = torch.zeros(len(labels), classes, dtype=torch.float64)
    return votes.scatter_add_(1, labels, weights).argmax(1)


@dataclass(frozen=True, kw_only=True)
class Neighbors:
    """Accuracies of nearest neighbors, and which k held-out images choose."""

    k: tuple[int, ...]
    accuracy: np.ndarray
    """(k), of the test images by all training images."""
    held_out: np.ndarray
    """(k), of held-out training images by the others."""

    @property
    def best(self) -> int:
        """Say which k held-out images choose, the smaller of equals."""
        return max(range(len(self.k)), key=lambda place: (self.held_out[place], -self.k[place]))


def nearest_neighbors(
    train: Features,
    test: Features,
    *,
    k: Sequence[int] = K,
    temperature: float | None = TEMPERATURE,
    seed: int = 0,
    report: Callable[[int], None] = lambda done: None,
) -> Neighbors:
    """Classify test images by their nearest training images, for several k at once.

    `k` is chosen by a fifth of the training images, held out of each class by `seed`.
    """
    check_pair(train, test)
    if temperature is not None and not 0 < temperature < float("inf"):
        raise InputError(f"expected a temperature above 0, got {temperature}")
    rest, held = hold_out(train, seed)
    if not k or not 1 <= min(k) <= max(k) <= len(rest):
        raise InputError(f"expected k of 1 to {len(rest):,} (the images learnt from), got {[*k]}")
    x, y = torch.from_numpy(train.values), torch.from_numpy(train.labels)
    options = (len(train.classes), k, temperature)
    chosen = _measure((x[rest], y[rest]), (x[held], y[held]), *options)
    report(len(held))
    asked = torch.from_numpy(test.values), torch.from_numpy(test.labels)
    accuracy = _measure((x, y), asked, *options)
    report(len(held) + len(test))
    return Neighbors(k=tuple(k), accuracy=accuracy, held_out=chosen)


def _measure(
    references: tuple[Tensor, Tensor],
    asked: tuple[Tensor, Tensor],
    classes: int,
    k: Sequence[int],
    temperature: float | None,
) -> np.ndarray:
    cosines, indices = nearest(references[0], asked[0], max(k))
    labels = references[1][indices]
    right = [
        vote(cosines[:, :count], labels[:, :count], classes, temperature) == asked[1] for count in k
    ]
    return torch.stack(right).double().mean(1).numpy()
