"""The curves of a run, read back from its metrics."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vitrail.config import InputError

METRICS = "metrics.jsonl"


@dataclass(frozen=True)
class Curves:
    """What a run measured, by name: the steps, and a value at each."""

    values: dict[str, tuple[np.ndarray, np.ndarray]]

    def describe(self) -> str:
        """Say in words where the curves end."""
        said = [f"{name} ends at {each[-1]:.4g}" for name, (_, each) in self.values.items()]
        return ", ".join(said) or "no measurement yet"


def read_curves(folder: Path) -> Curves:
    """Read the curves of a run's folder; a value that was no number is NaN."""
    path = folder / METRICS
    found: dict[str, list[tuple[int, float]]] = {}
    try:
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            for name, value in row.items():
                if name not in ("step", "epoch"):
                    found.setdefault(name, []).append((int(row["step"]), float(value)))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; give a run's folder") from None
    except (ValueError, LookupError, TypeError, AttributeError):
        raise InputError(f"{path}: is damaged; expected lines that training wrote") from None
    columns = {name: np.array(rows, float).T for name, rows in found.items()}
    return Curves({name: (steps, values) for name, (steps, values) in columns.items()})
