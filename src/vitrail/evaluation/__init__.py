"""Evaluate a model the way the paper does.

The names below are imported when they are first used, so that each costs only what it needs.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitrail.evaluation.features.extract import Features as Features
    from vitrail.evaluation.features.extract import extract as extract
    from vitrail.evaluation.features.feature_store import features_folder as features_folder
    from vitrail.evaluation.probes.fewshot import fit_shots as fit_shots
    from vitrail.evaluation.probes.knn import classify_by_neighbors as classify_by_neighbors
    from vitrail.evaluation.probes.linear_probe import probe_lbfgs as probe_lbfgs
    from vitrail.evaluation.probes.linear_probe import probe_sgd as probe_sgd

_LAZY = {
    "Features": "features.extract",
    "extract": "features.extract",
    "features_folder": "features.feature_store",
    "fit_shots": "probes.fewshot",
    "classify_by_neighbors": "probes.knn",
    "probe_lbfgs": "probes.linear_probe",
    "probe_sgd": "probes.linear_probe",
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
