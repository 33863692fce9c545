"""Regularized least squares from features to {-1, 1}^K, solved once for every l2.

As in big_vision: features are standardized by the shots' mean and std, a constant feature
stands for the bias, and `l2` times the squared weights (the bias's too) is added to the squared
errors. With the eigenvectors of the features' products (or of the images', where those are fewer)
the scores for any l2 are x diag(1 / (values + l2)) answers: one eigendecomposition serves all.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from vitrail.evaluation.probes.probe_model import LinearHead, unstandardize

_BIAS = 100.0  # large, so that l2 hardly holds the bias back
_EPSILON = 1e-5  # keeps a feature that all shots share from being divided by 0
_ROWS = 512  # images whose scores are in memory at a time
_LOSS = 1e-5  # what the common terms of many l2 may lose; the rest is decided exactly


class Ridge:
    """A least-squares problem in its eigenvectors, solved for any l2; float64 inside.

    `features` (n, width) with class numbers `labels` (n) are the shots.
    """

    def __init__(self, features: Tensor, labels: Tensor, classes: int) -> None:
        self._std, self._mean = torch.std_mean(features.double(), 0, correction=0)
        self._std += _EPSILON
        x = self._standardize(features)
        primal = len(x) >= x.shape[1]
        self._values, vectors = torch.linalg.eigh(x.T @ x if primal else x @ x.T)
        self._values.clamp_(min=0)  # what is below is rounding
        self._project = vectors if primal else x.T @ vectors
        # To multiply with targets of -1 and 1 is to add up what belongs to each class.
        rows = x if primal else torch.eye(len(x), dtype=x.dtype)
        sums = rows.new_zeros(classes, rows.shape[1]).index_add_(0, labels, rows)
        self._answers = vectors.T @ (2 * sums - rows.sum(0)).T

    def _standardize(self, features: Tensor) -> Tensor:
        x = torch.empty(len(features), features.shape[1] + 1, dtype=torch.float64)
        torch.sub(features, self._mean, out=x[:, :-1])
        x[:, :-1] /= self._std
        x[:, -1] = _BIAS
        return x

    def _weights(self, l2: Sequence[float]) -> Tensor:
        """Give each eigenvector's weight for each l2: (l2, vectors)."""
        return 1 / (self._values + torch.tensor(l2, dtype=torch.float64)[:, None])

    def scores(self, features: Tensor, l2: Sequence[float]) -> Tensor:
        """Score images (n, width) for every l2: (l2, n, classes)."""
        x = self._standardize(features) @ self._project
        return (x * self._weights(l2)[:, None]) @ self._answers

    def head(self, l2: float) -> LinearHead:
        """Give the classifier of features as they are whose logits are the scores for this l2."""
        weight = (self._project * self._weights([l2])[0]) @ self._answers
        return unstandardize(weight[:-1], _BIAS * weight[-1], self._mean, self._std)

    def correct(self, features: Tensor, labels: Tensor, l2: Sequence[float]) -> Tensor:
        """Tell for every l2 which images' highest score is that of their label: (l2, n), bool.

        Scores for many l2 share few common terms, which are compared in float32; its error is
        bounded, and what is closer than the bound is decided in float64.
        """
        # What all classes have in common decides nothing, and would cost digits.
        answers = self._answers - self._answers.mean(1, keepdim=True)
        weights = self._weights(l2)
        some = self._standardize(features[:_ROWS]) @ self._project
        terms, mixing = _common_terms(weights, some.square().mean(0) * answers.square().mean(1))
        single, longest = answers.float(), answers.square().sum(0).max().sqrt()
        left_out = (weights - mixing @ terms).square().T
        unit = torch.finfo(torch.float32).eps / 2 * (len(terms.T) + len(terms) + 4)
        parts = []
        for rows, wanted in zip(features.split(_ROWS), labels.split(_ROWS), strict=True):
            x = self._standardize(rows) @ self._project
            lead = _lead((x.float() * terms.float()[:, None]), single, mixing.float(), wanted)
            rounded = unit * mixing.abs() @ (x.square() @ terms.square().T).sqrt().T
            bound = 2 * longest * ((x.square() @ left_out).sqrt().T + rounded)
            parts.append(self._decide(lead, bound, x, weights, wanted))
        return torch.cat(parts, dim=1)

    def _decide(
        self, lead: Tensor, bound: Tensor, x: Tensor, weights: Tensor, labels: Tensor
    ) -> Tensor:
        """Take the sign of a lead; where its bound does not exclude the other, score exactly."""
        correct = lead > 0
        for place, near in enumerate(lead.abs() <= bound):
            if rows := near.nonzero()[:, 0].tolist():
                exact = (x[rows] * weights[place]) @ self._answers
                correct[place, rows] = exact.argmax(1) == labels[rows]
        return correct


def _lead(parts: Tensor, answers: Tensor, mixing: Tensor, labels: Tensor) -> Tensor:
    """Subtract the best of the other classes' scores from the label's own: (l2, n)."""
    products = (parts.flatten(0, 1) @ answers).view(len(parts), -1)
    scores = (mixing @ products).view(len(mixing), len(labels), -1)
    places = labels.expand(len(mixing), -1)[..., None]
    own = scores.gather(2, places)[..., 0]
    return own - scores.scatter_(2, places, -torch.inf).amax(2)


def _common_terms(weights: Tensor, importance: Tensor) -> tuple[Tensor, Tensor]:
    """Write rows (l2, vectors) as mixtures of few: terms (r, vectors) and mixing (l2, r).

    A row may lose a small part of its own length, as the vectors' importance measures it.
    """
    scale = importance.sqrt() if importance.any() else torch.ones_like(importance)
    scale = scale.clamp(min=scale.max() * 1e-12)
    scaled = weights * scale
    lengths = scaled.norm(dim=1, keepdim=True)
    left, values, right = torch.linalg.svd(scaled / lengths, full_matrices=False)
    count = int((values > _LOSS).sum())
    return right[:count] / scale, lengths * left[:, :count] * values[:count]
