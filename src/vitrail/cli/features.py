"""Commands on frozen features: few-shot, linear probe, nearest neighbors, or only a file."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from vitrail.cli.options import Data, Device, File, Json, Model, Patches, Split, Workers, optional
from vitrail.result import print_result


@dataclass(frozen=True, kw_only=True)
class Computing:
    """How features are computed, the same for all commands."""

    features: Annotated[str, tyro.conf.arg(metavar="KIND")] = "pre-logits"
    """pre-logits, class-token or patch-mean; after an earlier block class-token@6, patch-mean@6."""
    batch: Annotated[int, tyro.conf.arg(metavar="N")] = 64
    """Images in a forward pass."""
    device: Device = None
    workers: Workers = None
    """Threads that decode images, or Ray workers. Default: one per core."""
    engine: Literal["local", "ray"] = "local"
    """ray: run on a Ray cluster (Ray Data)."""
    fresh: bool = False
    """Neither read features from the cache nor write them there."""
    patches: Patches = None


Flags = Annotated[Computing, tyro.conf.arg(name="")]


def clean(
    data: Data,
    flags: Flags,
    *,
    model: Annotated[str | None, optional("MODEL")] = None,
    out: Annotated[Path, tyro.conf.arg(metavar="FILE.html")] = Path("clean.html"),
    decisions: File = None,
    folds: int = 5,
    seed: int = 0,
    json: Json = False,
) -> None:
    """Find label errors, copies, leaks and outliers of a dataset, to decide on in a page.

    Example: vitrail clean photos/ --model timm:vit_small_patch16_224.augreg_in21k

    Example: vitrail clean photos/ --decisions newest

    The page saves your decisions (keep, relabel, drop) as a CSV file; --decisions adds it to those
    beside the data, which every command applies. No image is moved or changed.

    Args:
        model: Whose frozen features are used. Default: the first free one of the catalog that was
            downloaded already.
        out: The page to write.
        decisions: Decisions to add to those beside the data, or "newest" for the last ones that
            the page saved; nothing else is done.
        folds: Folds of the cross-validation that judges labels.
        seed: Seed of the folds.
    """
    from vitrail.report.clean_page import clean as clean_data

    found = clean_data(
        data, model=model, out=out, decisions=decisions, folds=folds, seed=seed, **asdict(flags)
    )
    print_result(found, json=json)


def choose(
    data: Data,
    flags: Flags,
    *,
    among: Annotated[tuple[str, ...], optional("MODEL …")] = (),
    test: Split = None,
    out: Annotated[Path | None, optional("FILE.html")] = None,
    json: Json = False,
) -> None:
    """Choose a backbone for a dataset: accuracy, speed and size on this machine.

    Example: vitrail choose photos/ --among runs/a timm:vit_small_patch16_224.augreg_in21k

    Free backbones of the catalog that were downloaded already are tried, and those of --among.

    Args:
        among: More backbones to try: run folders, model folders or weights.
        test: The split to evaluate on. Default: test, or val if there is none.
        out: Write a page with the table and the plot.
    """
    from vitrail.report.choice_page import choose as choose_backbone

    found = choose_backbone(data, among=among, test=test, out=out, **asdict(flags))
    print_result(found, json=json)


def fewshot(
    model: Model,
    data: Data,
    flags: Flags,
    *,
    shots: Annotated[tuple[int, ...] | None, optional("N …")] = None,
    seeds: int = 3,
    l2: tuple[float, ...] = (1024.0,),
    test: Split = None,
    out: Annotated[Path | None, optional("FOLDER")] = None,
    json: Json = False,
) -> None:
    """Evaluate few-shot accuracy as the paper does: least squares on frozen features.

    Example: vitrail fewshot timm:vit_small_patch16_224.augreg_in21k pets --shots 1 5 10

    Example: vitrail fewshot timm:vit_small_patch16_224.augreg_in21k photos/ --out models/photos

    Args:
        shots: Training images per class. Default: those of 1, 5, 10, 25 that the data allows.
        seeds: How often the shots are sampled.
        l2: Strength of the regularization. If several are given, the best is chosen on held-out
            images.
        test: The split to evaluate on. Default: test, or val if there is none.
        out: Write a model folder: the backbone, and as its head the classifier of the most shots.
    """
    from vitrail.evaluation.probes.fewshot import fewshot as evaluate_shots

    options = {"shots": shots, "seeds": seeds, "l2": l2, "test": test, "out": out}
    print_result(evaluate_shots(model, data, **options, **asdict(flags)), json=json)


def probe(
    model: Model,
    data: Data,
    flags: Flags,
    *,
    by: Literal["lbfgs", "sgd"] = "lbfgs",
    values: Annotated[tuple[float, ...] | None, optional("X …")] = None,
    epochs: Annotated[int | None, optional("N")] = None,
    test: Split = None,
    seed: int = 0,
    out: Annotated[Path | None, optional("FOLDER")] = None,
    json: Json = False,
) -> None:
    """Train a linear classifier on frozen features, and evaluate it.

    Example: vitrail probe dinov2:vits14 photos/ --by sgd

    Args:
        by: lbfgs minimizes the loss for several weight decays, sgd trains with several learning
            rates at once.
        values: The weight decays or learning rates to choose from. Default: a wide range.
        epochs: How long sgd trains. Default: 50.
        test: The split to evaluate on. Default: test, or val if there is none.
        seed: Seed of the 20 % validation split.
        out: Write a model folder: the backbone with the classifier as its head.
    """
    from vitrail.evaluation.probes.linear_probe import probe as evaluate_probe

    options = {"by": by, "values": values, "epochs": epochs, "test": test, "seed": seed}
    print_result(evaluate_probe(model, data, **options, out=out, **asdict(flags)), json=json)


def cross_validate(
    model: Model,
    data: Data,
    flags: Flags,
    *,
    folds: int = 5,
    group: Annotated[str | None, optional("PATTERN")] = None,
    split: Split = None,
    seed: int = 0,
    json: Json = False,
) -> None:
    r"""Cross-validate a linear classifier on frozen features, in folds that tear no group apart.

    Example: vitrail cross-validate dinov2:vits14 photos/ --folds 5

    Args:
        folds: Number of folds; each class is spread over them alike.
        group: A regular expression of the images' names: those with the same first group of it, or
            the same match, are of one patient, scene or burst and share their fold.
        split: The images that are divided. Default: all that the model was not trained on.
        seed: Seed of the folds, and of the validation split that chooses the weight decay.
    """
    from vitrail.evaluation.probes.cross_validation import cross_validate as run

    found = run(model, data, folds=folds, group=group, split=split, seed=seed, **asdict(flags))
    print_result(found, json=json)


def knn(
    model: Model,
    data: Data,
    flags: Flags,
    *,
    k: Annotated[tuple[int, ...] | None, optional("N …")] = None,
    temperature: Annotated[float, tyro.conf.arg(metavar="T")] = 0.07,
    uniform: bool = False,
    test: Split = None,
    seed: int = 0,
    json: Json = False,
) -> None:
    """Classify images by their nearest training images, and evaluate that.

    Example: vitrail knn dinov2:vits14 photos/ --k 10 20 100

    Args:
        k: How many neighbors vote. Default: those of 1, 5, 10, 20, 50, 100, 200 that the data
            allows.
        temperature: A vote counts exp(cosine / T).
        uniform: Let every vote count the same.
        test: The split to evaluate on. Default: test, or val if there is none.
        seed: Seed of the 20 % validation split that chooses k.
    """
    from vitrail.evaluation.probes.knn import knn as evaluate_knn

    options = {"k": k, "temperature": temperature, "uniform": uniform, "test": test, "seed": seed}
    print_result(evaluate_knn(model, data, **options, **asdict(flags)), json=json)


def embed(
    model: Model,
    data: Data,
    flags: Flags,
    *,
    out: Annotated[Path, tyro.conf.arg(metavar="FILE")],
    split: str = "all",
    json: Json = False,
) -> None:
    """Write a model's features of all images of a dataset to a file.

    Example: vitrail embed dinov2:vits14 photos/ --out features.parquet

    Run the same command again to resume; it writes the same bytes.

    Args:
        out: FILE.parquet, FILE.npy or FILE.safetensors.
        split: train, val, test or all.
    """
    from vitrail.evaluation.features.embed import embed as embed_images

    print_result(embed_images(model, data, out=out, split=split, **asdict(flags)), json=json)
