"""Evaluate a CLIP or SigLIP on a dataset by the names of its classes, without training."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from vitrail.config import InputError
from vitrail.data.checks.output_place import check_output_place
from vitrail.data.datasets.open import Data
from vitrail.evaluation.evaluate import BATCH, evaluate
from vitrail.evaluation.evaluation_result import EvaluationResult
from vitrail.evaluation.inputs import open_images
from vitrail.files import check_writable
from vitrail.weights.load import as_loaded
from vitrail.weights.loaded import as_model
from vitrail.weights.loaded import save as save_model
from vitrail.weights.text.prompts import Texts, parse_classes, parse_templates, spell_classes
from vitrail.weights.text.zero_shot import zero_shot_checkpoint


def zeroshot(
    model: str | os.PathLike[str],
    data: Data,
    *,
    templates: Texts | None = None,
    classes: Texts | None = None,
    split: str | None = None,
    csv: str | Path | None = None,
    out: str | Path | None = None,
    save: str | Path | None = None,
    patches: int | None = None,
    batch: int = BATCH,
    device: str | None = None,
) -> EvaluationResult:
    """Evaluate how often a dataset's classes are found by their names; as `evaluate` else.

    `classes` are the data's classes in words, in their order (by default their names, with spaces
    for underscores, and ImageNet's WordNet IDs as words); `templates` the prompts, whose embeddings
    are averaged; `patches` is a budget within which images keep their aspect ratio. The classifier
    is written to the model folder `save`, if given.
    """
    if not isinstance(model, str | os.PathLike):
        raise InputError("zeroshot needs a text tower: give the model as text, not loaded")
    prompts = parse_templates(templates)
    given = None if classes is None else parse_classes(classes)
    if save is not None:
        check_writable(Path(save), folder=True)
        check_output_place(save, data)
    dataset = open_images(data, split, (model,)).dataset
    words = given or spell_classes(dataset.classes)
    if len(words) != len(dataset.classes):
        raise InputError(
            f"--classes has {len(words)} names for the {len(dataset.classes)} classes of "
            f"{dataset.name}; give one for each, in their order"
        )
    made = zero_shot_checkpoint(os.fspath(model), dataset.classes, words, templates=prompts)
    loaded = as_loaded(as_model(made), patches=patches)
    result = evaluate(loaded, data, split=split, csv=csv, out=out, batch=batch, device=device)
    if save is not None and int(os.environ.get("RANK", 0)) == 0:
        save_model(loaded, save)
    return replace(result, model=os.fspath(model))
