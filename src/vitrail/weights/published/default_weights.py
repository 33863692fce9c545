"""Which published weights to fine-tune where nobody names any."""

from __future__ import annotations

import logging

from vitrail.config import InputError
from vitrail.machine import available_cores
from vitrail.models.cost.total import cost_of
from vitrail.weights.published.at_hand import is_free, weights_at_hand
from vitrail.weights.published.catalog import CATALOG, I21K, PublishedWeights
from vitrail.weights.sources.resolve import resolve

log = logging.getLogger("vitrail")

_EPOCHS, _MINUTES = 10, 10.0  # of a run whose length nobody gives, and what it may take
_STREAM = 100_000  # images of a stream that does not say how many it has
_RATES = {"cuda": 2e13, "mps": 2e12, "cpu": 5e10}  # training FLOPs a second; of a CPU, per core
_SIZES = ("Ti", "S", "B", "L")


def choose_default_weights(
    images: int | None, device: str, minutes: float | None = None, model: str | None = None
) -> str:
    """Choose weights for so many training images on a device, in the time that there is.

    They are free for any use, of ImageNet-21k at 224 pixels: the largest ViT that ten epochs of the
    images leave time for, preferably one that was downloaded already; or those of a `model`. What
    is chosen is logged.
    """
    able = _candidates(model)
    smallest = [each for each in able if each.spec.width == able[-1].spec.width]
    fitting = [each for each in able if _fits(each, images, device, minutes)] or smallest
    there = weights_at_hand()
    cached = [each for each in fitting if each in there]
    chosen = (cached or fitting)[0]
    try:
        resolve(chosen.source)
    except InputError as error:
        rest = [each for each in able if each in there]
        if not rest:
            reason = str(error).partition("; or ")[0].removesuffix(": is there a network?")
            raise InputError(
                f"no weights given, and {chosen.source} can't be fetched: {reason}; or give a "
                "folder or file that holds weights, such as --weights weights/vit_tiny"
            ) from None
        chosen = rest[-1]
    log.info(
        "weights  %s (%s, %.0f MB, %s); --weights takes others, 'vitrail weights list' lists them",
        *(chosen.source, chosen.model.partition(",")[0], chosen.megabytes, chosen.license),
    )
    return chosen.source


def _candidates(model: str | None) -> list[PublishedWeights]:
    """List what may be chosen, the largest first; of equal models, those for transfer first."""
    names = [f"ViT-{size}/16" for size in _SIZES]
    if model is not None:
        name = model.partition(",")[0].partition("@")[0]
        if name not in names:
            known = ", ".join(names)
            raise InputError(f"no weights to start {name} from; give --weights (known: {known})")
        names = [name]
    found = [
        each
        for each in CATALOG
        if each.source.startswith("timm:") and each.model.partition(",")[0] in names
        if is_free(each) and "augreg" in each.source
    ]
    return sorted(found, key=lambda each: (-each.spec.width, each.data != I21K))


def _fits(each: PublishedWeights, images: int | None, device: str, minutes: float | None) -> bool:
    rate = _RATES.get(device, _RATES["cpu"]) * (available_cores() if device == "cpu" else 1)
    flops = 6 * cost_of(each.spec).macs * _EPOCHS * (images or _STREAM)
    return flops <= rate * 60 * (minutes or _MINUTES)
