"""A model's frozen features of the sets that a command names, and the flags that say how."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from vitrail.console import show_progress

if TYPE_CHECKING:
    from vitrail.data.dataset import ImageDataset
    from vitrail.evaluation.features.extract import Engine, Features
    from vitrail.weights.load import LoadedModel


@dataclass(frozen=True, kw_only=True)
class Computing:
    """How features are computed, the same for all commands."""

    features: Annotated[str, tyro.conf.arg(metavar="KIND")] = "pre-logits"
    """pre-logits, class-token or patch-mean; of an earlier block class-token@6, patch-mean@6."""
    batch: Annotated[int, tyro.conf.arg(metavar="N")] = 64
    """Images that go through the model at a time."""
    device: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """cpu, cuda:1, mps; the best unless given."""
    workers: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Threads that decode images, or Ray's workers; one a core unless given."""
    engine: Literal["local", "ray"] = "local"
    """ray computes on many machines, by Ray Data."""
    fresh: bool = False
    """Neither take features from the cache nor keep them there."""


Flags = Annotated[Computing, tyro.conf.arg(name="")]


def compute_pair(
    model: str, data: str, test: str | None, flags: Computing
) -> tuple[Features, Features]:
    """Compute the features of the training split and of the one to measure on."""
    from vitrail.data.datasets.open import open_dataset
    from vitrail.data.split import NoSplitError
    from vitrail.evaluation.features.extract import check_pair

    if test is not None:
        asked = open_dataset(data, split=test)
    else:
        try:
            asked = open_dataset(data, split="test")
        except NoSplitError:
            asked = open_dataset(data, split="val")
    sources = [open_dataset(data, split="train"), asked]
    train, measured = compute(load_model(model, flags), sources, flags)
    check_pair(train, measured)
    return train, measured


def load_model(model: str, flags: Computing) -> LoadedModel:
    """Load a model, unless nobody could know which of its features are meant."""
    from vitrail.evaluation.features.feature_kinds import parse_kind
    from vitrail.weights.load import load

    parse_kind(flags.features)
    return load(model)


def compute(loaded: LoadedModel, sources: list[ImageDataset], flags: Computing) -> list[Features]:
    """Run a model over sets, or take what the cache has of them."""
    from vitrail.data.loader import LoaderConfig
    from vitrail.data.transforms.preprocess import default_preprocess
    from vitrail.distributed import process_group
    from vitrail.evaluation.features.extract import extract
    from vitrail.evaluation.features.feature_kinds import parse_kind
    from vitrail.evaluation.features.feature_store import features_folder

    kind = parse_kind(flags.features)
    spec = loaded.model.spec
    preprocess = loaded.preprocess or default_preprocess(spec.image, spec.channels)
    found: list[Features] = []
    with process_group(flags.device) as processes:
        for source in sources:
            with show_progress(source.name, len(source)) as report:
                found.append(
                    extract(
                        loaded.model,
                        source,
                        preprocess,
                        kind,
                        batch=flags.batch,
                        device=processes.device,
                        loader=LoaderConfig(workers=flags.workers),
                        cache=None if flags.fresh else features_folder(),
                        engine=_choose_engine(flags),
                        report=report,
                    )
                )
    return found


def _choose_engine(flags: Computing) -> Engine | None:
    """Give who computes, if it is not this process."""
    if flags.engine == "local":
        return None
    from vitrail.evaluation.engine_ray import encode_on_ray

    return encode_on_ray(flags.workers)
