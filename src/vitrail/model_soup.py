"""Model soups of finished runs, or of a run's checkpoints, as model folders (arXiv 2203.05482)."""

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
from vitrail.data.datasets.open import Data, open_dataset
from vitrail.data.loader import Loader, LoaderConfig
from vitrail.data.split import NoSplitError, split_dataset
from vitrail.distributed import choose_device
from vitrail.evaluation.accuracy import measure_accuracy
from vitrail.evaluation.choosing_images import open_choosing_images, open_other_images
from vitrail.evaluation.inputs import open_images, read_run_config
from vitrail.files import check_writable
from vitrail.models.spec import Spec, ViTSpec
from vitrail.models.vit_spec import QUIET
from vitrail.result import Result, ResultTable
from vitrail.tasks.classification import result_of
from vitrail.tasks.masked_image_modeling import encoder_state
from vitrail.text import expand
from vitrail.training.checkpoints.checkpoint_files import valid_checkpoints
from vitrail.training.checkpoints.resume import TENSORS
from vitrail.training.checkpoints.run_folder import CHECKPOINTS
from vitrail.training.checkpoints.state_dicts import load_tensors
from vitrail.training.optimization.averaging import greedy_soup, uniform_soup
from vitrail.training.peft import plain_state
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
    chosen_on_test: bool = False
    choosing_images: int = 0
    evaluated_on: str | None = None
    """The dataset that the soup was evaluated on: images that did not choose, if there are any."""
    images: int = 0
    """Images evaluated on."""
    score: float | None = None
    """The soup's."""
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
            yield f"chosen on {self.choosing_images:,} images of {self.chosen_on}"
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
    hold_out: float | None = None,
    choose_on_test: bool = False,
    checkpoints: bool = False,
    device: str | None = None,
) -> SoupResult:
    """Average models of one architecture, and write the mean to a model folder.

    `models` are run folders, any weights, or loaded models; with `checkpoints` run folders, whose
    kept checkpoints are taken instead of their models. A greedy soup leaves out models that do not
    help on images that no run was trained on: by default what the runs held out of their data, or
    its validation split; otherwise `split`, or a `hold_out` fraction of the training split of
    `data`. `choose_on_test` allows the test split. Without `greedy`, `data` is only evaluated on.
    """
    check_writable(Path(out), folder=True)
    if choose_on_test and not greedy:
        raise InputError("--choose-on-test requires --greedy: otherwise nothing is chosen")
    for flag, value in (("--split", split), ("--hold-out", hold_out)):
        if value is not None and data is None and not greedy:
            raise InputError(f"{flag} requires --data or --greedy: otherwise no image is looked at")
    found = [
        pair
        for number, each in enumerate(models, 1)
        for pair in _read(each, number, checkpoints=checkpoints)
    ]
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
        dataset, notes = open_choosing_images(
            data, runs, split=split, hold_out=hold_out, on_test=choose_on_test
        )
        others = open_other_images(data, dataset)
        tensors, chosen, facts = _choose_greedily(first, candidates, dataset, others, device)
        facts |= {"chosen_on_test": choose_on_test, "notes": notes}
    else:
        tensors, chosen = uniform_soup(candidates), [*range(len(found))]
        if data is not None:
            evaluate = _Evaluate(first, _open_evaluated(data, split, hold_out, models), device)
            scores = tuple(map(evaluate, candidates))
            facts = {"scores": scores, "score": evaluate(tensors), **evaluate.describe()}
    names = tuple(found[number][0] for number in chosen)
    changes = (f"mean of {', '.join(names)}",)
    mean = replace(
        first,
        tensors=tensors,
        thresholds=_average_thresholds([found[number][1] for number in chosen]),
        uncertainty=None,
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


def _read(model: AnyModel, number: int, *, checkpoints: bool) -> list[tuple[str, Checkpoint]]:
    """Read a model, or the checkpoints that a run has kept, each with a name."""
    if not isinstance(model, str | os.PathLike):
        return [(f"model {number}", as_checkpoint(model))]
    text = os.fspath(model)
    if not checkpoints:
        return [(text, read_checkpoint(text, hashed=False))]
    if (config := read_run_config(text)) is None:
        raise InputError(f"{text} is not a run folder; --checkpoints requires run folders")
    run = expand(text.removeprefix("run:"))
    kept = read_checkpoint(f"run:{run}")
    found = []
    for saved in valid_checkpoints(run / CHECKPOINTS):
        if not (saved.path / TENSORS).is_file():
            raise InputError(f"{saved.path} is sharded; a soup needs whole checkpoints")
        parts: dict[str, dict[str, Tensor]] = {"model": {}, "ema": {}, "optimizer": {}}
        for name, tensor in load_tensors(saved.path / TENSORS).items():
            part, _, rest = name.partition(":")
            parts[part][rest] = tensor
        tensors = {**parts["model"], **parts["ema"]}
        if config.task == "classification":
            tensors = plain_state(kept.spec, tensors, config.tune)
        else:
            tensors = encoder_state(tensors)
        found.append((f"{text}@{saved.step}", replace(kept, tensors=tensors)))
    if not found:
        raise InputError(f"{text} has no checkpoints; --checkpoints requires some")
    return found


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


def _open_evaluated(
    data: Data, split: str | None, hold_out: float | None, models: Sequence[AnyModel]
) -> ImageDataset:
    """Open images to evaluate on: by default the test split, or what the runs held out."""
    if hold_out is not None:
        return split_dataset(open_dataset(data, split="train"), hold_out, seed=0)[1]
    with suppress(NoSplitError):
        return open_dataset(data, split=split or "test")
    return open_images(data, split, models).dataset


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
