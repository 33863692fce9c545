"""Measure a model the way the paper does.

The names below are imported when first asked for, so that each costs only what it needs.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitrail.evaluate.features import Features as Features
    from vitrail.evaluate.features import extract as extract
    from vitrail.evaluate.fewshot import FewShot as FewShot
    from vitrail.evaluate.fewshot import few_shot as few_shot
    from vitrail.evaluate.knn import nearest_neighbours as nearest_neighbours
    from vitrail.evaluate.probe import probe_lbfgs as probe_lbfgs
    from vitrail.evaluate.probe import probe_sgd as probe_sgd
    from vitrail.evaluate.store import features_folder as features_folder

_LAZY = {
    "Features": "features",
    "extract": "features",
    "FewShot": "fewshot",
    "few_shot": "fewshot",
    "nearest_neighbours": "knn",
    "probe_lbfgs": "probe",
    "probe_sgd": "probe",
    "features_folder": "store",
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
