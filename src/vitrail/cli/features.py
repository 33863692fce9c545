"""Commands on frozen features: few-shot, linear probe, nearest neighbors, or only a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from vitrail.cli.computing import Computing, Flags, compute, compute_pair, load_model
from vitrail.cli.data import Data
from vitrail.cli.options import Json
from vitrail.console import new_table, print_json, print_line, print_renderable, show_progress

if TYPE_CHECKING:
    from vitrail.evaluation.features.extract import Features

Model = Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="MODEL")]
Split = Annotated[str | None, tyro.conf.arg(metavar="S")]


def fewshot(
    model: Model,
    data: Data,
    flags: Flags,
    *,
    shots: tuple[int, ...] | None = None,
    seeds: int = 3,
    l2: tuple[float, ...] = (1024.0,),
    test: Split = None,
    json: Json = False,
) -> None:
    """Measure few-shot accuracy as the paper does: least squares on frozen features.

    Example: vitrail fewshot timm:vit_small_patch16_224.augreg_in21k pets --shots 1 5 10

    Args:
        model: A run's or model's folder, or a source of weights: timm:…, hf:…, google:…, file:…
        data: A folder, or csv:FILE, cifar10:DIR, hf:NAME, digits, shapes, …
        shots: Training images of each class; those of 1 5 10 25 that there are unless given.
        seeds: How many draws of the shots.
        l2: Strength of the regularization, or several: those images choose that were not drawn.
        test: The split to measure on; test unless given, or val where there is none.
    """
    from vitrail.evaluation.probes.fewshot import SHOTS, few_shot

    pair = compute_pair(model, data, test, flags)
    chosen = shots or _possible(pair[0], SHOTS)
    with show_progress("draws", len(chosen) * seeds) as report:
        found = few_shot(*pair, shots=chosen, seeds=seeds, l2=l2, report=report)
    rows: dict[str, Any] = {}
    for each in found:
        means, stds = each.accuracy.mean(1), each.accuracy.std(1)
        best = each.best
        rows[str(each.shots)] = {
            "mean": None if best is None else float(means[best]),
            "std": None if best is None else float(stds[best]),
            "l2": None if best is None else each.l2[best],
            "each": [
                {"l2": value, "mean": float(mean), "std": float(std), "seeds": seeds_of.tolist()}
                for value, mean, std, seeds_of in zip(
                    each.l2, means, stds, each.accuracy, strict=True
                )
            ],
        }
    if json:
        print_json({**_head(model, data, flags, *pair), "seeds": seeds, "shots": rows})
        return
    table = new_table("shots", "l2", "accuracy", "std", "")
    for count, row in rows.items():
        for line in row["each"]:
            mark = "chosen" if len(l2) > 1 and line["l2"] == row["l2"] else ""
            figures = f"{line['l2']:g}", f"{line['mean']:.2%}", f"{line['std']:.2%}", mark
            table.add_row(count, *figures)
    print_renderable(table)
    _print_sets(pair, f"{seeds} draws of the shots")
    if len(l2) > 1 and any(row["l2"] is None for row in rows.values()):
        print_line("no l2 chosen where all training images of a class were drawn")


def probe(
    model: Model,
    data: Data,
    flags: Flags,
    *,
    by: Literal["lbfgs", "sgd"] = "lbfgs",
    values: tuple[float, ...] | None = None,
    epochs: int = 50,
    test: Split = None,
    seed: int = 0,
    json: Json = False,
) -> None:
    """Train a linear classifier on frozen features, and measure it.

    Example: vitrail probe dinov2:vits14 photos/ --by sgd

    Args:
        model: A run's or model's folder, or a source of weights: timm:…, hf:…, google:…, file:…
        data: A folder, or csv:FILE, cifar10:DIR, hf:NAME, digits, shapes, …
        by: lbfgs minimizes the loss for several weight decays, sgd trains with several learning
            rates at once.
        values: The weight decays or learning rates to choose from.
        epochs: How long sgd trains.
        test: The split to measure on; test unless given, or val where there is none.
        seed: Draws the fifth of the training images that chooses.
    """
    from vitrail.evaluation.probes.linear_probe import DECAYS, RATES, probe_lbfgs, probe_sgd

    pair = compute_pair(model, data, test, flags)
    chosen = values or (DECAYS if by == "lbfgs" else RATES)
    total = len(chosen) if by == "lbfgs" else epochs
    with show_progress("decays" if by == "lbfgs" else "epochs", total) as report:
        if by == "lbfgs":
            found = probe_lbfgs(*pair, decays=chosen, seed=seed, report=report)
        else:
            found = probe_sgd(*pair, rates=chosen, epochs=epochs, seed=seed, report=report)
    name = "decay" if by == "lbfgs" else "rate"
    held_out = found.held_out.tolist()
    if json:
        said = {"top1": found.accuracy, name: found.settings[found.best], "by": by}
        tried = [
            {name: value, "held_out": accuracy}
            for value, accuracy in zip(found.settings, held_out, strict=True)
        ]
        print_json({**_head(model, data, flags, *pair), **said, "each": tried})
        return
    table = new_table(name, "held-out accuracy", "")
    for place, (value, accuracy) in enumerate(zip(found.settings, held_out, strict=True)):
        table.add_row(f"{value:g}", f"{accuracy:.2%}", "chosen" if place == found.best else "")
    print_renderable(table)
    print_line(f"top-1 {found.accuracy:.2%}, trained with {name} {found.settings[found.best]:g}")
    _print_sets(pair)


def knn(
    model: Model,
    data: Data,
    flags: Flags,
    *,
    k: tuple[int, ...] | None = None,
    temperature: Annotated[float, tyro.conf.arg(metavar="T")] = 0.07,
    uniform: bool = False,
    test: Split = None,
    seed: int = 0,
    json: Json = False,
) -> None:
    """Classify images by the nearest training images' classes, and measure that.

    Example: vitrail knn dinov2:vits14 photos/ --k 10 20 100

    Args:
        model: A run's or model's folder, or a source of weights: timm:…, hf:…, google:…, file:…
        data: A folder, or csv:FILE, cifar10:DIR, hf:NAME, digits, shapes, …
        k: How many neighbors vote; those of 1 5 10 20 50 100 200 that there are unless given.
        temperature: A vote counts exp(cosine / T).
        uniform: Let every vote count alike.
        test: The split to measure on; test unless given, or val where there is none.
        seed: Draws the fifth of the training images that chooses k.
    """
    from vitrail.evaluation.probes.holdout import hold_out
    from vitrail.evaluation.probes.knn import K, nearest_neighbors

    pair = compute_pair(model, data, test, flags)
    chosen = k or tuple(count for count in K if count <= len(hold_out(pair[0], seed)[0]))
    with show_progress("images", len(pair[1])) as report:
        weight = None if uniform else temperature
        found = nearest_neighbors(*pair, k=chosen, temperature=weight, seed=seed, report=report)
    rows = [
        {"k": count, "top1": float(accuracy), "held_out": float(held)}
        for count, accuracy, held in zip(found.k, found.accuracy, found.held_out, strict=True)
    ]
    best = rows[found.best]
    if json:
        said = {"top1": best["top1"], "k": best["k"], "each": rows}
        print_json({**_head(model, data, flags, *pair), **said})
        return
    table = new_table("k", "held-out accuracy", "test accuracy", "")
    for row in rows:
        mark = "chosen" if row is best else ""
        table.add_row(f"{row['k']}", f"{row['held_out']:.2%}", f"{row['top1']:.2%}", mark)
    print_renderable(table)
    print_line(f"top-1 {best['top1']:.2%} with {best['k']} neighbors")
    _print_sets(pair)


def embed(
    model: Model,
    data: Data,
    flags: Flags,
    *,
    out: Annotated[Path, tyro.conf.arg(metavar="FILE")],
    split: str = "all",
    json: Json = False,
) -> None:
    """Write a model's features of all images of a set to a file.

    Example: vitrail embed dinov2:vits14 photos/ --out features.parquet

    Stopped, the same command goes on where it was, and writes the same bytes.

    Args:
        model: A run's or model's folder, or a source of weights: timm:…, hf:…, google:…, file:…
        data: A folder, or csv:FILE, cifar10:DIR, hf:NAME, digits, shapes, …
        out: FILE.parquet, FILE.npy or FILE.safetensors.
        split: train, val, test or all.
    """
    from vitrail.data.datasets.open import open_dataset
    from vitrail.evaluation.features.extract import hash_weights
    from vitrail.evaluation.features.feature_files import check_out, write_features

    check_out(out)
    source = open_dataset(data, split=split)
    loaded = load_model(model, flags)
    found = compute(loaded, [source], flags)[0]
    facts = {"model": model, "data": data, "split": split, "features": flags.features}
    facts["weights"] = hash_weights(loaded.model)  # by which others know whose features these are
    files = write_features(found, out, facts)
    if json:
        print_json(
            {
                **facts,
                "files": [str(file) for file in files],
                "images": len(found),
                "width": found.values.shape[1],
                "skipped": len(found.bad),
            }
        )
        return
    for file in files:
        print_line(str(file))
    skipped = f", {len(found.bad):,} could not be read" if found.bad else ""
    print_line(f"{len(found):,} images, {found.values.shape[1]} features each{skipped}")


def _possible(train: Features, shots: tuple[int, ...]) -> tuple[int, ...]:
    """Take the shots that every class has images for; the first in any case, to be refused."""
    import numpy as np

    least = np.bincount(train.labels, minlength=len(train.classes)).min()
    return tuple(count for count in shots if count <= least) or shots[:1]


def _head(
    model: str, data: str, flags: Computing, train: Features, test: Features
) -> dict[str, Any]:
    return {
        "model": model,
        "data": data,
        "features": flags.features,
        "images": len(test),
        "skipped": len(train.bad) + len(test.bad),
    }


def _print_sets(pair: tuple[Features, Features], more: str = "") -> None:
    """Say what was learnt from and measured on, and what could not be read."""
    train, test = pair
    line = f"{len(test):,} images of {test.name}, {len(train):,} of {train.name} to learn from"
    print_line(f"{line}, {more}" if more else line)
    if skipped := len(train.bad) + len(test.bad):
        print_line(f"{skipped:,} images could not be read")
