"""Nearest neighbors by cosine similarity: exact search.

`nearest` multiplies a block of queries with a block of references and keeps the nearest so far, so
that both may be memory-mapped. First only the greatest of each run of similarities is looked at:
the k runs with the greatest ones hold the k nearest, so that few similarities are ever sorted.
Processors that multiply bfloat16 do that first, with an error of a known bound; the best few are
compared in float32, and a query whose k nearest are not proven to be among them is searched again
in float32.

`nearest_rows` makes no copy of its references: for a few queries of a large, perhaps memory-mapped,
index.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.config import InputError
from vitrail.machine import has_bfloat16

_QUERIES = 256  # whose similarities are in memory at a time
_CLOSER = 32  # queries whose best few are compared at a time
_MOST = 64  # neighbors, above which comparing the best few costs more than bfloat16 saves
_Search = Callable[[Tensor], tuple[Tensor, Tensor]]
_RUN = 32  # similarities of which the greatest is found first
_ROWS = 65_536  # whose norms are computed, or nearest merged, at a time
_REFERENCES = 65_536  # that are searched at a time


def row_norms(references: Tensor) -> Tensor:
    """Compute the norm of each row (n, width), without a copy of all."""
    return torch.cat([rows.float().norm(dim=1) for rows in references.split(_ROWS)])


def nearest_rows(
    references: Tensor, queries: Tensor, k: int, *, norms: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Find the k references (n, width) of greatest cosine with each query: cosines, indices.

    Both are (queries, k), the nearest first; all references if there are fewer than k. `norms` are
    those of `row_norms`, if they are known already.
    """
    norms = row_norms(references) if norms is None else norms
    similar = torch.mm(F.normalize(queries.float(), dim=1), references.float().T)
    similar /= norms.clamp_min(1e-12)
    cosines, rows = similar.topk(min(k, len(references)))
    return cosines.clamp(-1, 1), rows


def nearest(references: Tensor, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Find the k references (n, width) of greatest cosine with each query: cosines, indices.

    Both are (queries, k), the nearest first.
    """
    if not 1 <= k <= len(references):
        raise InputError(f"{k} nearest of {len(references):,}: expected 1 to {len(references):,}")
    best = torch.empty(len(queries), 0), torch.empty(len(queries), 0, dtype=torch.int64)
    for number, block in enumerate(references.split(_REFERENCES)):
        found = _nearest_in(F.normalize(block.float(), dim=1), queries, min(k, len(block)))
        found = found[0], found[1] + number * _REFERENCES
        best = _merge_nearest(best, found, k) if number else found
    return best


_Nearest = tuple[Tensor, Tensor]


def _nearest_in(references: Tensor, queries: Tensor, k: int) -> _Nearest:
    """Search one block of references, which have length 1."""
    quick = has_bfloat16() and k <= _MOST and len(references) > 8 * _few(k)
    search = (_by_halves if quick else _by_singles)(references, k)
    blocks = (F.normalize(each.float(), dim=1) for each in queries.split(_QUERIES))
    cosines, indices = zip(*map(search, blocks), strict=True)
    return torch.cat(cosines), torch.cat(indices)


def _merge_nearest(one: _Nearest, other: _Nearest, k: int) -> _Nearest:
    """Keep the nearest of both, in blocks of queries."""
    cosines, indices = (each.new_empty(len(each), min(k, _width(one, other))) for each in one)
    for start in range(0, len(cosines), _ROWS):
        rows = slice(start, start + _ROWS)
        both = torch.cat([one[0][rows], other[0][rows]], dim=1)
        cosines[rows], order = both.topk(cosines.shape[1])
        indices[rows] = torch.cat([one[1][rows], other[1][rows]], dim=1).gather(1, order)
    return cosines, indices


def _width(one: _Nearest, other: _Nearest) -> int:
    return one[0].shape[1] + other[0].shape[1]


def _by_singles(references: Tensor, k: int) -> _Search:
    """Search in float32."""
    buffer = references.new_empty(_QUERIES, len(references))

    def search(rows: Tensor) -> tuple[Tensor, Tensor]:
        return _greatest(torch.mm(rows, references.T, out=buffer[: len(rows)]), k)

    return search


def _by_halves(references: Tensor, k: int) -> _Search:
    """Search in bfloat16 and decide in float32; both multiply unit vectors."""
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
    """Give the largest distance of a row from its bfloat16."""
    return float((rows - rows.bfloat16()).norm(dim=1).max())


def _few(k: int) -> int:
    """Give how many of the best are compared exactly."""
    return 2 * k + 16


def _greatest(similar: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Find the k greatest of each row, by runs where that saves sorting."""
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
