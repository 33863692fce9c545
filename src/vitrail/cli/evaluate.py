"""The commands that evaluate classifiers: one model, or several against each other."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

import tyro

from vitrail.cli.options import (
    Data,
    Device,
    File,
    Image,
    Json,
    Model,
    Patches,
    Split,
    Templates,
    Workers,
    optional,
)
from vitrail.result import print_result


def calibrate(
    model: Model,
    data: Data,
    *,
    split: Split = None,
    out: Annotated[Path | None, optional("FOLDER")] = None,
    batch: int = 64,
    device: Device = None,
    workers: Workers = None,
    json: Json = False,
) -> None:
    """Calibrate a model on held-out images, so that it knows what it doesn't know.

    Example: vitrail calibrate runs/photos photos/

    Fits a temperature to the probabilities, notes how often the model was right at which
    confidence (for --unsure), and which images are like its training images. Training does this at
    its end by itself.

    Args:
        split: Images that the model was not trained on. Default: val; of data without splits, all
            such images.
        out: Write a new model folder there. Default: the model's own folder keeps it.
        batch: Images in a forward pass.
        workers: Threads that decode images. Default: one per core.
    """
    from vitrail.evaluation.uncertainty.calibrate import calibrate as run

    result = run(model, data, split=split, out=out, batch=batch, device=device, workers=workers)
    print_result(result, json=json)


def evaluate(
    model: Model,
    data: Data,
    *,
    split: Split = None,
    image: Image = None,
    patches: Patches = None,
    subset: Annotated[str | None, optional("NAME")] = None,
    map: File = None,
    real: File = None,
    csv: File = None,
    out: Annotated[Path | None, optional("DIR")] = None,
    batch: int = 64,
    device: Device = None,
    engine: Literal["local", "ray"] = "local",
    workers: Workers = None,
    json: Json = False,
) -> None:
    """Evaluate a model on a dataset: accuracy, calibration, confusion.

    Example: vitrail evaluate runs/photos photos/ --out reports/photos

    Args:
        split: The split to evaluate on. Default: val; of data without splits, all images that the
            model was not trained on; with --subset all.
        image: Another resolution than the model was trained at, 384 or 384x512; position embeddings
            are resized.
        subset: The data is imagenet-a, imagenet-r, imagenet-v2, sketch or objectnet, and the model
            has ImageNet's classes.
        map: YAML or JSON file that maps the data's classes to the model's.
        real: The reassessed labels of ImageNet's validation images (real.json).
        csv: Write one row per class there.
        out: Write report.json, classes.csv, images.csv and plots there.
        batch: Images in a forward pass, over all processes.
        engine: ray: run on a Ray cluster (Ray Data).
        workers: Threads that decode images, or Ray workers. Default: one per core.
    """
    from vitrail.evaluation.evaluate import evaluate as evaluate_model

    result = evaluate_model(
        model,
        data,
        split=split,
        image=image,
        patches=patches,
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


def zeroshot(
    model: Model,
    data: Data,
    *,
    templates: Templates = None,
    classes: Annotated[str | None, optional("NAMES")] = None,
    split: Split = None,
    csv: File = None,
    out: Annotated[Path | None, optional("DIR")] = None,
    save: Annotated[Path | None, optional("FOLDER")] = None,
    patches: Patches = None,
    batch: int = 64,
    device: Device = None,
    json: Json = False,
) -> None:
    """Evaluate a CLIP or SigLIP on a dataset without training, by its class names.

    Example: vitrail zeroshot hf:google/siglip2-base-patch16-224 photos/ --templates clip-7

    Args:
        classes: The data's classes in words, in their order: cat,dog, or a file with one per line.
            Default: their names, with spaces for underscores.
        split: The split to evaluate on. Default: val.
        csv: Write one row per class there.
        out: Write report.json, classes.csv, images.csv and plots there.
        save: Write the classifier there, a model folder that all commands take.
        batch: Images in a forward pass, over all processes.
    """
    from vitrail.evaluation.zeroshot import zeroshot as evaluate_zeroshot

    result = evaluate_zeroshot(
        model, data, templates=templates, classes=classes, split=split, csv=csv, out=out,
        save=save, patches=patches, batch=batch, device=device,
    )  # fmt: skip
    if int(os.environ.get("RANK", 0)) == 0:
        print_result(result, json=json)


def compare(
    models: Annotated[tyro.conf.Positional[tuple[str, ...]], optional("MODEL …")],
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
        data: What to compare them on: a folder, or csv:FILE, cifar10:DIR, hf:NAME, digits, …
        split: The split to evaluate on. Default: val; of data without splits, all images that none
            of the models was trained on. Few-shot learns from the others.
        image: Another resolution than the models were trained at, 384 or 384x512.
        map: YAML or JSON file that maps the data's classes to the models'.
        shots: Images per class that few-shot learns from; a bare --shots leaves few-shot out.
        seeds: How often these images are sampled.
        batch: Images in a forward pass.
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
