"""Model soups: the mean of fine-tuned models' weights (arXiv 2203.05482)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from vitrail.config import InputError

Tensors = Mapping[str, Tensor]


class GreedySoup(NamedTuple):
    """A greedy soup, and what it was made of."""

    tensors: dict[str, Tensor]
    chosen: list[int]
    """The candidates that are in it, best first."""
    alone: list[float]
    """Each candidate's own score."""
    score: float
    """The soup's."""


def uniform_soup(models: Iterable[Tensors]) -> dict[str, Tensor]:
    """Average models, which are in memory one at a time if they come from a generator."""
    added = _Sum()
    for tensors in models:
        added.add(tensors)
    if not added.count:
        raise InputError("a soup needs at least one model")
    return added.mean()


def greedy_soup(
    candidates: Sequence[Tensors], score: Callable[[dict[str, Tensor]], float]
) -> GreedySoup:
    """Average those models that do not lower the held-out score.

    Starting with the best model, each other one, from better to worse, is added if the mean does
    not score lower with it (the paper's recipe 1).
    """
    if not candidates:
        raise InputError("a soup needs at least one model")
    scores = [score(dict(tensors)) for tensors in candidates]
    first, *rest = sorted(range(len(candidates)), key=lambda index: -scores[index])
    added, best, chosen = _Sum(), scores[first], [first]
    added.add(candidates[first])
    for index in rest:
        reached = score(added.mean(candidates[index]))
        if reached >= best:
            best = reached
            chosen.append(index)
            added.add(candidates[index])
    return GreedySoup(added.mean(), chosen, scores, best)


class _Sum:
    """A sum of models, in float64 so that their mean is exact to their own precision."""

    def __init__(self) -> None:
        self.total: dict[str, Tensor] = {}
        self.kinds: dict[str, torch.dtype] = {}
        self.count = 0

    def add(self, tensors: Tensors) -> None:
        if not self.count:
            self.kinds = {name: tensor.dtype for name, tensor in tensors.items()}
            zeros = partial(torch.zeros_like, dtype=torch.float64)
            self.total = {name: zeros(tensor) for name, tensor in tensors.items()}
        self.check(tensors)
        for name, total in self.total.items():
            total += tensors[name]
        self.count += 1

    def mean(self, *more: Tensors) -> dict[str, Tensor]:
        """Give the mean of what was added, and of more."""
        for tensors in more:
            self.check(tensors)
        count = self.count + len(more)
        sums = {name: sum((t[name] for t in more), total) for name, total in self.total.items()}
        return {name: (total / count).to(self.kinds[name]) for name, total in sums.items()}

    def check(self, tensors: Tensors) -> None:
        number = self.count + 1
        for name in self.total.keys() ^ tensors.keys():
            verb = "lacks" if name in self.total else "adds"
            raise InputError(f"model {number} of the soup {verb} {name}; expected one architecture")
        for name, total in self.total.items():
            if tensors[name].shape != total.shape:
                found, expected = tuple(tensors[name].shape), tuple(total.shape)
                raise InputError(
                    f"model {number} of the soup: {name} has shape {found}, the first's {expected}"
                )
