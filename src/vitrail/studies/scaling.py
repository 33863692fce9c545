"""Power laws: how error falls with compute, and how much compute one family saves another.

log(error) is fitted as a line in log(compute), for each family over its models' means. Draws of the
lines are of a parametric bootstrap: noise of the residuals' size, whose own uncertainty is drawn
too, so that few models give wide bands.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from vitrail.evaluation.metrics.intervals import Estimate
from vitrail.studies.claims import Check, Finding, Rows, Where, as_number, decide, rows_where

_DRAWS = 4000
_UNIT = "times the compute"


@dataclass(frozen=True, eq=False)
class PowerLaw:
    """error = exp(intercept) * compute ** slope, with draws of both."""

    intercept: float
    slope: float
    draws: np.ndarray
    """(draws, 2): intercepts and slopes."""
    points: np.ndarray
    """(models, 2): compute and mean error."""

    def band(self, compute: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Give the 95 % interval of the error at some computes."""
        lines = self.draws[:, :1] + self.draws[:, 1:] * np.log(compute)
        low, high = np.quantile(np.exp(lines), (0.025, 0.975), axis=0)
        return low, high

    def error(self, compute: np.ndarray) -> np.ndarray:
        """Give the fitted error at some computes."""
        return np.exp(self.intercept + self.slope * np.log(compute))


def fit_power_laws(
    rows: Rows, measure: str, compute: str, model: str, families: list[Where]
) -> list[PowerLaw] | None:
    """Fit 1 - measure over compute for each family; None if there are too few models."""
    sets = [_model_means(rows_where(rows, family), measure, compute, model) for family in families]
    freedom = sum(map(len, sets)) - 2 * len(sets)
    if freedom < 1 or min(map(len, sets)) < 2:
        return None
    rng = np.random.default_rng(0)
    logs = [np.log(points) for points in sets]
    designs = [np.stack([np.ones(len(each)), each[:, 0]], 1) for each in logs]
    fits = [
        np.linalg.lstsq(x, each[:, 1], rcond=None)[0] for x, each in zip(designs, logs, strict=True)
    ]
    squares = sum(
        float(((each[:, 1] - x @ fit) ** 2).sum())
        for x, each, fit in zip(designs, logs, fits, strict=True)
    )
    spread = np.sqrt(squares / rng.chisquare(freedom, _DRAWS))
    found = []
    for x, fit, points in zip(designs, fits, sets, strict=True):
        root = np.linalg.cholesky(np.linalg.inv(x.T @ x))
        noise = rng.standard_normal((_DRAWS, 2)) @ root.T
        draws = fit + spread[:, None] * noise
        found.append(PowerLaw(float(fit[0]), float(fit[1]), draws, points))
    return found


def saves_compute(measure: str, compute: str, model: str, first: Where, second: Where) -> Check:
    """Claim that the first family needs less compute than the second for the same error.

    The effect is the second's compute over the first's, at the middle of the errors that both have.
    """

    def check(rows: Rows, level: float) -> Finding:
        laws = fit_power_laws(rows, measure, compute, model, [first, second])
        if laws is None:
            return _undecided("two models of each family, five in all, are needed for a fit")
        points = sum(len(law.points) for law in laws)
        if max(law.slope for law in laws) >= 0:
            return _undecided("the error of a family does not fall with compute")
        at = common_error(laws)
        value = _log_compute(laws[1], at) - _log_compute(laws[0], at)
        with np.errstate(invalid="ignore"):
            draws = _log_draws(laws[1], at) - _log_draws(laws[0], at)
        # Where neither line falls, the ratio can be anything: it counts at both ends.
        low = np.quantile(np.nan_to_num(draws, nan=-np.inf), level / 2, method="lower")
        high = np.quantile(np.nan_to_num(draws, nan=np.inf), 1 - level / 2, method="higher")
        found = Estimate(value, float(low), float(high))
        ratio = Estimate(*(math.exp(each) if each < 700 else math.inf for each in found))
        return Finding(
            verdict=decide(found),
            effect=ratio.value,
            low=ratio.low,
            high=ratio.high,
            n=points,
            unit=_UNIT,
            note=f"at an error of {math.exp(at):.1%}",
        )

    return check


def common_error(laws: list[PowerLaw]) -> float:
    """Choose a log error to compare at: the middle of what all families reach."""
    low = max(math.log(law.points[:, 1].min()) for law in laws)
    high = min(math.log(law.points[:, 1].max()) for law in laws)
    return (low + high) / 2


def _undecided(note: str) -> Finding:
    nothing = math.nan
    return Finding(
        verdict="undecided", effect=nothing, low=nothing, high=nothing, n=0, unit=_UNIT, note=note
    )


def _log_compute(law: PowerLaw, log_error: float) -> float:
    return (log_error - law.intercept) / law.slope


def _log_draws(law: PowerLaw, log_error: float) -> np.ndarray:
    """Give each draw's compute for an error; a line that does not fall never gets there."""
    intercepts, slopes = law.draws.T
    falls = slopes < -1e-9
    found = (log_error - intercepts) / np.where(falls, slopes, -1.0)
    return np.where(falls, found, np.inf)


def _model_means(rows: Rows, measure: str, compute: str, model: str) -> np.ndarray:
    """Average compute and error of each model over its seeds: (models, 2)."""
    found: dict[object, list[tuple[float, float]]] = {}
    for row in rows:
        cost, score = as_number(row.get(compute)), as_number(row.get(measure))
        if cost and score is not None and score < 1:
            found.setdefault(row[model], []).append((cost, 1 - score))
    return np.array([np.mean(points, axis=0) for points in found.values()]).reshape(-1, 2)
