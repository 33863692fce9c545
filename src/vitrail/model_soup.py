"""Soups of finished runs, or of a run's checkpoints, as model folders (arXiv 2203.05482)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from torch import Tensor

from vitrail.config import InputError, from_dict, read_file
from vitrail.data.batches import EvalBatches
from vitrail.data.dataset import ImageDataset
from vitrail.data.datasets.open import open_dataset
from vitrail.data.loader import Loader, LoaderConfig
from vitrail.data.split import split as hold_out_part
from vitrail.distributed import choose_device
from vitrail.evaluation.accuracy import measure_accuracy
from vitrail.models.spec import Spec
from vitrail.run.prediction import encoder_state
from vitrail.training.averaging import greedy_soup, uniform_soup
from vitrail.training.checkpoints.checkpoint_files import valid_checkpoints
from vitrail.training.checkpoints.resume import TENSORS
from vitrail.training.checkpoints.run_folder import CHECKPOINTS, CONFIG
from vitrail.training.checkpoints.state_dicts import load_tensors
from vitrail.training.peft import plain_state
from vitrail.training.train_config import TrainConfig
from vitrail.weights.checkpoint import Checkpoint, Provenance, save_folder
from vitrail.weights.load import read_checkpoint

_BATCH = 64  # images that are measured at a time
_NOISE = ("dropout", "attention_dropout", "stochastic_depth")  # of training only


@dataclass(frozen=True, kw_only=True)
class SoupResult:
    """What went into a soup, and what it reaches."""

    folder: Path
    candidates: tuple[str, ...]
    chosen: tuple[str, ...]
    """Those that are in it; of a greedy one, the best first."""
    alone: tuple[float, ...] | None
    """What each candidate reaches on the held-out images, where there are any."""
    top1: float | None
    """What the soup reaches there."""
    images: int
    """Held-out images."""


def cook(
    sources: Sequence[str],
    out: Path,
    *,
    greedy: bool = False,
    data: str | None = None,
    split: str = "val",
    hold_out: float = 0.0,
    checkpoints: bool = False,
) -> SoupResult:
    """Average models to one, and write its folder.

    Sources are run folders or any weights; with `checkpoints` run folders, whose kept states are
    taken instead of their models. A greedy soup leaves out what does not help on the split of
    `data`, or on what runs with this `hold_out` have held out of its training split.
    """
    if greedy and data is None:
        raise InputError("a greedy soup needs --data with images that no run has learnt from")
    found = [pair for source in sources for pair in _read(source, checkpoints=checkpoints)]
    if not found:
        raise InputError("a soup needs at least one model")
    names, bundles = [name for name, _ in found], [bundle for _, bundle in found]
    for name, bundle in found[1:]:
        _check_alike(names[0], bundles[0], name, bundle)
    first, candidates = bundles[0], [bundle.tensors for bundle in bundles]
    chosen, alone, top1, images = [*range(len(found))], None, None, 0
    if data is None:
        tensors = uniform_soup(candidates)
    else:
        source = _open(data, split, hold_out, first)
        score, images = _scorer(first, source), len(source)
        if greedy:
            tensors, chosen, alone, top1 = greedy_soup(candidates, score)
        else:
            tensors = uniform_soup(candidates)
            alone, top1 = [score(dict(each)) for each in candidates], score(tensors)
    made = f"mean of {', '.join(names[number] for number in chosen)}"
    provenance = Provenance(source="soup", sha256="", format="vitrail", changes=(made,))
    save_folder(replace(first, tensors=tensors, provenance=provenance), out)
    return SoupResult(
        folder=out,
        candidates=tuple(names),
        chosen=tuple(names[number] for number in chosen),
        alone=None if alone is None else tuple(alone),
        top1=top1,
        images=images,
    )


def _read(source: str, *, checkpoints: bool) -> list[tuple[str, Checkpoint]]:
    """Read the models that a source stands for, each with a name."""
    if not checkpoints:
        return [(source, read_checkpoint(source, hashed=False))]
    run = Path(source.removeprefix("run:")).expanduser()
    if not (run / CONFIG).is_file():
        raise InputError(f"{source} is no run folder, whose checkpoints could be taken")
    config = from_dict(TrainConfig, read_file(run / CONFIG))
    kept = read_checkpoint(f"run:{run}")
    found = []
    for saved in valid_checkpoints(run / CHECKPOINTS):
        if not (saved.path / TENSORS).is_file():
            raise InputError(f"{saved.path} lies in shards, which no soup is made of")
        parts: dict[str, dict[str, Tensor]] = {"model": {}, "ema": {}, "optimizer": {}}
        for name, tensor in load_tensors(saved.path / TENSORS).items():
            part, _, rest = name.partition(":")
            parts[part][rest] = tensor
        tensors = {**parts["model"], **parts["ema"]}
        if config.task == "classification":
            tensors = plain_state(kept.spec, tensors, config.tune)
        else:
            tensors = encoder_state(tensors)
        found.append((f"{source}@{saved.step}", replace(kept, tensors=tensors)))
    if not found:
        raise InputError(f"{source} has kept no checkpoint")
    return found


def _check_alike(one: str, first: Checkpoint, other: str, bundle: Checkpoint) -> None:
    """Refuse models whose mean has no meaning."""
    mine, theirs = _quiet(first.spec), _quiet(bundle.spec)
    if mine != theirs:
        raise InputError(f"{other} is {theirs}, {one} is {mine}; a soup takes models of one shape")
    if first.classes != bundle.classes:
        raise InputError(f"{other} names other classes than {one}; a soup takes models of one task")
    if first.preprocess != bundle.preprocess:
        raise InputError(f"{other} takes its images otherwise than {one}: "
                         f"{bundle.preprocess}, not {first.preprocess}")  # fmt: skip


def _quiet(spec: Spec) -> Spec:
    """Leave out of a spec what only training knows."""
    return replace(spec, **{field.name: 0.0 for field in fields(spec) if field.name in _NOISE})


def _open(data: str, split: str, hold_out: float, bundle: Checkpoint) -> ImageDataset:
    source = open_dataset(data, split="train" if hold_out else split)
    if bundle.classes is not None and source.classes != bundle.classes:
        raise InputError(f"{source.name} has other classes than the models of the soup")
    return hold_out_part(source, hold_out, seed=0)[1] if hold_out else source


def _scorer(bundle: Checkpoint, source: ImageDataset) -> Callable[[dict[str, Tensor]], float]:
    """Make what measures weights of this model on held-out images."""
    preprocess = bundle.preprocess
    if preprocess is None:
        raise InputError("the models of the soup do not say how they take images")
    device = choose_device()

    def score(tensors: dict[str, Tensor]) -> float:
        model = replace(bundle, tensors=tensors).build().to(device)
        batches = EvalBatches(source, preprocess, batch=_BATCH)
        made = Loader(batches.__getitem__, range(len(batches)), LoaderConfig())
        return measure_accuracy(model, made, preprocess, device=device).top1

    return score
