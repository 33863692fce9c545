"""Model soups of classifiers, as model folders (arXiv 2203.05482)."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from vitrail.config import InputError
from vitrail.data.batches import EvalBatches
from vitrail.data.dataset import ImageDataset
from vitrail.data.datasets.open import Data
from vitrail.data.loader import Loader, LoaderConfig
from vitrail.data.split import NoSplitError
from vitrail.data.trained_on import join_records
from vitrail.distributed import choose_device
from vitrail.evaluation.accuracy import measure_accuracy
from vitrail.evaluation.choosing_images import open_choosing_images, open_other_images
from vitrail.evaluation.evaluation_result import Selected
from vitrail.evaluation.inputs import OpenedImages, open_images, read_run_config
from vitrail.files import check_writable
from vitrail.models.spec import Spec, ViTSpec
from vitrail.models.vit_spec import QUIET
from vitrail.result import Result, ResultTable
from vitrail.tasks.classification import result_of
from vitrail.training.optimization.averaging import greedy_soup, uniform_soup
from vitrail.weights.checkpoint import Checkpoint, Provenance
from vitrail.weights.load import read_checkpoint
from vitrail.weights.loaded import AnyModel, as_checkpoint
from vitrail.weights.model_folder import save_folder

_BATCH = 64  # images in a forward pass
_METRICS = {"top1": "top-1", "map": "mAP", "loss": "-loss"}


@dataclass(frozen=True, kw_only=True)
class SoupResult(Result):
    """What is in a soup, and how well it does."""

    model: Path
    """The model folder."""
    candidates: tuple[str, ...]
    chosen: tuple[str, ...]
    """Those that are in it; the best first in a greedy one."""
    metric: str | None = None
    """What scores are: top1, or map where images have several labels; None without data."""
    scores: tuple[float, ...] | None = None
    """Each candidate's own, on the images that chose, otherwise on those evaluated on."""
    chosen_on: str | None = None
    """The dataset that chose; None if all candidates are in."""
    choosing_images: int = 0
    evaluated_on: str | None = None
    """The dataset that the soup was evaluated on: images that did not choose, if there are any."""
    images: int = 0
    """Images evaluated on."""
    score: float | None = None
    """The soup's."""
    selected: Selected | None = None
    """How many images of how many chose, or were evaluated on where none did, and why those."""
    notes: tuple[str, ...] = ()
    """What a person should know before believing the numbers, one line each."""

    def summary(self) -> Iterator[ResultTable | str]:
        """Give one row per candidate, then what the soup reaches, and where."""
        metric = "" if self.metric is None else _METRICS[self.metric]
        scores = self.scores or [None] * len(self.candidates)
        yield ResultTable(
            ("model", metric, "in the soup"),
            [
                (name, "" if each is None else _show(each), "yes" if name in self.chosen else "no")
                for name, each in zip(self.candidates, scores, strict=True)
            ],
        )
        yield from self.notes
        if self.chosen_on is not None:
            yield f"chosen on {self.selected}"
        elif self.selected is not None:
            yield f"evaluated on {self.selected}"
        count = "1 model" if len(self.chosen) == 1 else f"{len(self.chosen)} models"
        line = f"{self.model}: the mean of {count}"
        if self.score is not None:
            line += f", {metric} {_show(self.score)} on {self.images:,} images "
            same = self.evaluated_on == self.chosen_on
            line += "that chose: there are no others" if same else f"of {self.evaluated_on}"
        yield line


def _show(score: float) -> str:
    return f"{score:.2%}" if score >= 0 else f"{score:.4g}"


def soup(
    models: Sequence[AnyModel],
    *,
    out: str | Path,
    greedy: bool = False,
    data: Data | None = None,
    split: str | None = None,
    device: str | None = None,
) -> SoupResult:
    """Average models of one architecture, and write the mean to a model folder.

    `models` are classifiers: run folders, any weights, or loaded models. A greedy soup leaves out
    models that do not help on images that no model was trained on: by default those that all runs
    held out of their data, or its validation split; otherwise the `split` of `data`. Without
    `greedy`, `data` is only evaluated on.
    """
    check_writable(Path(out), folder=True)
    if split is not None and data is None and not greedy:
        raise InputError("--split requires --data or --greedy: otherwise no image is looked at")
    found = [_read(each, number) for number, each in enumerate(models, 1)]
    if not found:
        raise InputError("a soup needs at least one model")
    name, first = found[0]
    for other, checkpoint in found[1:]:
        _check_alike(name, first, other, checkpoint)
    candidates = [checkpoint.tensors for _, checkpoint in found]
    facts: dict[str, Any] = {}
    if greedy:
        runs = [config for each in models if (config := read_run_config(each)) is not None]
        if data is None and not runs:
            raise InputError("--greedy requires --data with images that no model was trained on")
        data = runs[0].data if data is None else data
        opened = open_choosing_images(data, models, split=split)
        others = open_other_images(data, opened.dataset)
        tensors, chosen, facts = _choose_greedily(first, candidates, opened.dataset, others, device)
        facts |= {"selected": opened.selected, "notes": opened.notes}
    else:
        tensors, chosen = uniform_soup(candidates), [*range(len(found))]
        if data is not None:
            opened = _open_evaluated(data, split, models)
            evaluate = _Evaluate(first, opened.dataset, device)
            scores = tuple(map(evaluate, candidates))
            facts = {"scores": scores, "score": evaluate(tensors), **evaluate.describe()}
            facts |= {"selected": opened.selected, "notes": opened.notes}
    names = tuple(found[number][0] for number in chosen)
    changes = (f"mean of {', '.join(names)}",)
    mean = replace(
        first,
        tensors=tensors,
        thresholds=_average_thresholds([found[number][1] for number in chosen]),
        uncertainty=None,
        trained_on=join_records([found[number][1].trained_on for number in chosen]),
        provenance=Provenance(source="soup", sha256="", format="vitrail", changes=changes),
    )
    save_folder(mean, Path(out))
    everyone = tuple(name for name, _ in found)
    return SoupResult(model=Path(out), candidates=everyone, chosen=names, **facts)


def _choose_greedily(
    first: Checkpoint,
    candidates: Sequence[Mapping[str, Tensor]],
    dataset: ImageDataset,
    others: ImageDataset | None,
    device: str | None,
) -> tuple[dict[str, Tensor], list[int], dict[str, Any]]:
    """Mix what helps on a dataset; evaluate the soup on other images, if there are any."""
    evaluate = _Evaluate(first, dataset, device)
    tensors, chosen, scores, score = greedy_soup(candidates, evaluate)
    if others is not None:
        evaluate = _Evaluate(first, others, device)
        score = evaluate(tensors)
    facts = {"chosen_on": dataset.name, "choosing_images": len(dataset)}
    return (
        tensors,
        chosen,
        {**facts, "scores": tuple(scores), "score": score, **evaluate.describe()},
    )


def _read(model: AnyModel, number: int) -> tuple[str, Checkpoint]:
    """Read a model with its name; refuse what is no classifier."""
    if isinstance(model, str | os.PathLike):
        name, found = os.fspath(model), read_checkpoint(os.fspath(model), hashed=False)
    else:
        name, found = f"model {number}", as_checkpoint(model)
    if found.activation == "none":
        raise InputError(f"{name} predicts numbers; a soup is of models that predict classes")
    if not found.spec.classes:
        raise InputError(f"{name} has no head; a soup is of models that predict classes")
    return name, found


def _check_alike(one: str, first: Checkpoint, other: str, second: Checkpoint) -> None:
    """Refuse models whose mean has no meaning."""
    mine, theirs = _without_regularization(first.spec), _without_regularization(second.spec)
    if mine != theirs:
        raise InputError(f"{other} is {theirs}, {one} is {mine}; expected one architecture")
    if first.classes != second.classes:
        raise InputError(f"{other} has other classes than {one}; expected models of one task")
    if first.activation != second.activation:
        raise InputError(
            f"{other} was trained with {second.activation}, {one} with {first.activation}; "
            "expected models of one task"
        )
    if first.preprocess != second.preprocess:
        raise InputError(
            f"{other} preprocesses images otherwise than {one}: {second.preprocess}, "
            f"not {first.preprocess}"
        )


def _without_regularization(spec: Spec) -> Spec:
    return replace(spec, **QUIET) if isinstance(spec, ViTSpec) else spec


def _average_thresholds(models: Sequence[Checkpoint]) -> tuple[float, ...] | None:
    """Average the thresholds as the weights; None unless all models have some."""
    found = [each.thresholds for each in models if each.thresholds is not None]
    return tuple(np.mean(found, 0).tolist()) if len(found) == len(models) else None


def _open_evaluated(data: Data, split: str | None, models: Sequence[AnyModel]) -> OpenedImages:
    """Open images to evaluate on: by default the test split, or what no model was trained on."""
    if split is None:
        with suppress(NoSplitError):
            return open_images(data, "test", models)
    return open_images(data, split, models)


class _Evaluate:
    """What scores weights of one model on a dataset."""

    def __init__(self, checkpoint: Checkpoint, dataset: ImageDataset, device: str | None) -> None:
        if checkpoint.preprocess is None:
            raise InputError("the models of the soup do not say how images are preprocessed")
        if checkpoint.classes is not None and dataset.classes != checkpoint.classes:
            raise InputError(f"{dataset.name} has other classes than the models of the soup")
        self.checkpoint, self.dataset, self.device = checkpoint, dataset, choose_device(device)
        self.batches = EvalBatches(dataset, checkpoint.preprocess, batch=_BATCH)
        self.metric: str | None = None

    def __call__(self, tensors: Mapping[str, Tensor]) -> float:
        model = replace(self.checkpoint, tensors=dict(tensors)).build().to(self.device)
        made = Loader(self.batches.__getitem__, range(len(self.batches)), LoaderConfig())
        kind, preprocess = self.checkpoint.activation, self.batches.preprocess
        found = measure_accuracy(model, made, preprocess, device=self.device, activation=kind)
        result = result_of(found)
        self.metric = next(iter(result.values))
        return result.score

    def describe(self) -> dict[str, Any]:
        """Give what a result says of the evaluation."""
        dataset = self.dataset
        return {"metric": self.metric, "evaluated_on": dataset.name, "images": len(dataset)}
