"""How other projects' files say that a model is multi-label, with thresholds, or a regression."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from vitrail.data.transforms.geometry import size_before_crop
from vitrail.data.transforms.preprocess import Preprocess
from vitrail.weights.checkpoint import Activation, Checkpoint

MULTI_LABEL = {"problem_type": "multi_label_classification"}
"""In the config.json of transformers."""
_KEY, _NUMBERS = "vitrail.thresholds", "vitrail.numbers"
REGRESSION = {"problem_type": "regression"}
_LONGEST = 40_000  # characters; the comment of an archive has room for 65,535


def multilabel_metadata(checkpoint: Checkpoint) -> dict[str, str]:
    """Give what a file's metadata says of a multi-label model or a regression, if it is one."""
    if checkpoint.activation == "none":
        return {_NUMBERS: "true"}
    if checkpoint.activation != "sigmoid":
        return {}
    text = json.dumps(checkpoint.thresholds)
    return {_KEY: text if len(text) <= _LONGEST else "null"}


def read_multilabel(
    metadata: Mapping[str, str], config: Mapping[str, Any], classes: int
) -> tuple[Activation, tuple[float, ...] | None]:
    """Tell by a file's metadata or config how its logits are read, and the thresholds.

    Anybody may have written them: thresholds that can't be the model's are none.
    """
    if _NUMBERS in metadata or REGRESSION.items() <= config.items():
        return "none", None
    if _KEY not in metadata:
        theirs = MULTI_LABEL.items() <= config.items()
        return "sigmoid" if theirs else "softmax", None
    try:
        found = tuple(map(float, json.loads(metadata[_KEY])))
    except (ValueError, TypeError, RecursionError):
        return "sigmoid", None
    return "sigmoid", found if len(found) == classes and all(0 <= x <= 1 for x in found) else None


def list_lost(before: Checkpoint, after: Checkpoint) -> tuple[str, ...]:
    """Name what a file does not say of the model that was written to it."""
    named = before.classes is not None and after.classes != before.classes
    lost = {
        "class names": named,
        "preprocessing": before.preprocess is not None and after.preprocess is None,
        "sigmoid probabilities": before.activation == "sigmoid" != after.activation,
        "that outputs are numbers": before.activation == "none" != after.activation,
        "thresholds": after.thresholds != before.thresholds,
        "the decoder": before.decoder is not None and after.decoder is None,
        "that the decoder predicts raw pixels": before.decoder is not None
        and after.decoder is not None
        and before.decoder.facts.pixels != after.decoder.facts.pixels,
        "calibration": before.uncertainty is not None and after.uncertainty is None,
    }
    found = [name for name, is_lost in lost.items() if is_lost]
    if before.preprocess is not None and after.preprocess is not None:
        found += _list_changes(before.preprocess, after.preprocess)
    return tuple(found)


def _list_changes(before: Preprocess, after: Preprocess) -> list[str]:
    """List what a file says otherwise of the preprocessing; numbers may be rounded."""
    changes: list[str] = []
    for name in (field.name for field in fields(before)):
        ours, theirs = getattr(before, name), getattr(after, name)
        if name == "patch_size" and not before.patches | after.patches:
            continue
        if name == "center" and "stretch" in (before.fit, after.fit):
            continue
        if name == "crop":  # what counts is the size before it
            same = size_before_crop(before) == size_before_crop(after)
        elif name in ("mean", "std"):
            pairs = zip(ours, theirs, strict=True)
            same = all(math.isclose(x, y, rel_tol=1e-6, abs_tol=1e-9) for x, y in pairs)
        else:
            same = ours == theirs
        if not same:
            changes.append(f"preprocessing's {name}={ours} (it says {theirs})")
    return changes
