"""The commands that evaluate classifiers: one model, or several against each other."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

import tyro

from vitrail.cli.data import Data
from vitrail.cli.options import Json
from vitrail.result import print_result

Model = Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="MODEL")]
Image = Annotated[str | None, tyro.conf.arg(metavar="HxW")]
Split = Annotated[str | None, tyro.conf.arg(metavar="S")]
File = Annotated[Path | None, tyro.conf.arg(metavar="FILE")]
Device = Annotated[str | None, tyro.conf.arg(metavar="NAME")]


def evaluate(
    model: Model,
    data: Data,
    *,
    split: Split = None,
    image: Image = None,
    subset: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None,
    map: File = None,
    real: File = None,
    csv: File = None,
    out: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None,
    batch: int = 64,
    device: Device = None,
    engine: Literal["local", "ray"] = "local",
    workers: Annotated[int | None, tyro.conf.arg(metavar="N")] = None,
    json: Json = False,
) -> None:
    """Evaluate a model on a dataset: accuracy, calibration, confusion.

    Example: vitrail evaluate runs/photos photos/ --out reports/photos

    Args:
        model: Run folder, model folder or source of weights: timm:…, hf:…, google:…, file:…
        data: A folder, or csv:FILE, cifar10:DIR, imagenet:DIR, hf:NAME, digits, shapes, …
        split: The split to evaluate on. Default: what the run held out of this data, otherwise val;
            with --subset all.
        image: Another resolution than the model was trained at, 384 or 384x512; position embeddings
            are resized.
        subset: The data is imagenet-a, imagenet-r, imagenet-v2, sketch or objectnet, and the model
            has ImageNet's classes.
        map: YAML or JSON file that maps the data's classes to the model's.
        real: The reassessed labels of ImageNet's validation images (real.json).
        csv: Write one row per class there.
        out: Write report.json, classes.csv, images.csv and plots there.
        batch: Images in a forward pass, over all processes.
        device: cpu, cuda:1, mps. Default: the best there is.
        engine: ray: run on a Ray cluster (Ray Data).
        workers: Threads that decode images, or Ray workers. Default: one per core.
    """
    from vitrail.evaluation.evaluate import evaluate as evaluate_model

    result = evaluate_model(
        model,
        data,
        split=split,
        image=image,
        subset=subset,
        map=map,
        real=real,
        csv=csv,
        out=out,
        batch=batch,
        device=device,
        engine=engine,
        workers=workers,
    )
    if int(os.environ.get("RANK", 0)) == 0:  # under torchrun all processes have the result
        print_result(result, json=json)


def compare(
    models: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="MODEL")],
    *,
    data: Annotated[str, tyro.conf.arg(metavar="DATA")],
    split: Split = None,
    image: Image = None,
    map: File = None,
    shots: Annotated[tuple[int, ...], tyro.conf.arg(metavar="N")] = (5,),
    seeds: int = 3,
    batch: int = 64,
    device: Device = None,
    json: Json = False,
) -> None:
    """Compare models: accuracy, few-shot, speed, size, significance.

    Example: vitrail compare runs/small runs/large --data photos/

    Args:
        models: Two or more run folders, model folders or sources of weights.
        data: A folder, or csv:FILE, cifar10:DIR, imagenet:DIR, hf:NAME, digits, shapes, …
        split: The split to evaluate on. Default: what the first run held out of this data,
            otherwise val. Few-shot learns from train.
        image: Another resolution than the models were trained at, 384 or 384x512.
        map: YAML or JSON file that maps the data's classes to the models'.
        shots: Images per class that few-shot learns from; a bare --shots leaves few-shot out.
        seeds: How often these images are sampled.
        batch: Images in a forward pass.
        device: cpu, cuda:1, mps. Default: the best there is.
    """
    from vitrail.evaluation.comparison import compare as compare_models

    result = compare_models(
        models,
        data,
        split=split,
        image=image,
        map=map,
        shots=shots,
        seeds=seeds,
        batch=batch,
        device=device,
    )
    print_result(result, json=json)
