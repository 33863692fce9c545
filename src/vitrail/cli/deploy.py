"""Commands that put a model to use: predicting, exporting, measuring what is fastest."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import tyro

from vitrail.cli.options import Json
from vitrail.config import InputError
from vitrail.console import new_table, print_json, print_line, print_renderable, show_progress

Model = Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="MODEL")]


def predict(
    model: Model,
    images: Annotated[
        tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="IMAGES or FOLDER")
    ],
    *,
    top: int = 5,
    csv: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None,
    parquet: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None,
    way: str = "pytorch",
    device: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None,
    json: Annotated[bool, tyro.conf.arg(help="Print JSON, a line an image.")] = False,
) -> None:
    """Name what images show, the most likely classes first.

    Example: vitrail predict runs/photos holiday/ --top 3 --csv holiday.csv

    Images that can't be read are listed with the reason; only where none can, the exit code is 2.

    Args:
        model: A run's or a model's folder, or weights: timm:…, hf:…, google:…, file:…, or a path.
        images: Files, or folders, of which all files are taken that are not hidden.
        top: How many classes of each image.
        csv: Write a CSV there, a row a class of an image.
        parquet: Write a Parquet file there, a row an image.
        way: What computes: pytorch, onnxruntime or openvino; auto measures, once for a model and
            a machine, which is fastest. The answers are the same.
        device: cpu, cuda:1, mps; the best there is unless given.
    """
    from vitrail.deploy.backends.selection import check_way, select_backend
    from vitrail.predictor import Predictor
    from vitrail.predictor.images import find_images
    from vitrail.predictor.prediction_files import csv_table, parquet_table
    from vitrail.text import printable

    if not images:
        raise InputError("no images given; name files or a folder")
    files = find_images(images)
    if top < 1:
        raise InputError(f"--top {top}: expected a number from 1 on")
    if csv is not None and csv == parquet:
        raise InputError(f"--csv and --parquet are both {csv}; give two names")
    check_way(way)
    predictor = select_backend(Predictor.load(model, device=device), way, say=_say)
    table = new_table("image", "class", "probability", justify="left")
    unread: list[tuple[str, str]] = []
    with ExitStack() as stack:
        report = stack.enter_context(show_progress("predicting", len(files)))
        rows = [stack.enter_context(csv_table(csv))] if csv else []
        rows += [stack.enter_context(parquet_table(parquet))] if parquet else []
        for done, answer in enumerate(predictor.answers(files), 1):
            found, error = None, None
            if answer.output is not None:
                found = predictor.rank(answer.output[None], top=top)[0]
            else:
                error = str(answer.error)
                unread.append((answer.where, error))
            for add in rows:
                add(answer.where, found, error)
            if json:
                result = {"error": error} if found is None else asdict(found)
                print_json({"path": answer.where, **result})
            elif found is not None and not rows:
                for rank, guess in enumerate(found.top):
                    shown = ("" if rank else printable(answer.where), printable(guess.label))
                    table.add_row(*shown, f"{guess.probability:.1%}")
            report(done)
        if len(unread) == len(files):
            where, error = unread[0]
            more = f", and {len(files) - 1:,} more" if len(files) > 1 else ""
            raise InputError(f"none could be read: {printable(where)}: {error}{more}")
    if json:
        return
    if not rows:
        print_renderable(table)
    for path in (csv, parquet):
        if path:
            print_line(f"{path}: {len(files) - len(unread):,} of {len(files):,} images")
    for where, error in unread:
        print_line(f"not read: {printable(where)}: {error}")


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def export(
    model: Model,
    out: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="OUT")],
    *,
    to: str,
    input: Literal["float", "uint8-nchw", "uint8-nhwc"] = "float",
    any_size: bool = False,
    aot: bool = False,
    quantize: Literal["int8", "int8-weights", "float16-weights"] | None = None,
    loss: float = 0.01,
    images: int = 256,
    data: Annotated[str | None, tyro.conf.arg(metavar="DATA")] = None,
    runtime: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER")] = None,
    json: Json = False,
) -> None:
    """Write a model for other programs, checked against PyTorch first.

    Example: vitrail export runs/photos photos.onnx --to onnx --data photos/

    Example: vitrail export runs/photos page --to web --data photos/

    Args:
        model: A run's or a model's folder, or weights: timm:…, hf:…, google:…, file:…, or a path.
        out: The file (onnx, pt2, executorch) or folder (openvino, web) to write.
        to: onnx, openvino, pt2, executorch, or web, a page that runs the model in the browser.
        input: Normalized images, or bytes of 0 to 255 that are normalized inside, with the
            channels first or last; of the model's size always.
        any_size: Take images of any height and width that the patch divides.
        aot: Compile a pt2 ahead of time, for this kind of processor.
        quantize: Make an onnx smaller: int8 computes in it, calibrated on the data; int8-weights
            and float16-weights keep weights so and compute in float32. A page has int8-weights, or
            float16-weights where those lose too much.
        loss: Part of the images that may get another answer from a quantized model.
        images: How many a quantized model is checked on.
        data: The images to check on, such as a folder; drawn ones unless given.
        runtime: Where onnxruntime-web's files are, for a page; npm gets them unless given.
    """
    from vitrail.deploy.exporting.export import export as write
    from vitrail.deploy.exporting.writers import Options
    from vitrail.predictor import Predictor

    options = Options(
        form=input, any_size=any_size, aot=aot, quantize=quantize, loss=loss, images=images,
        runtime=runtime,
    )  # fmt: skip
    written = write(Predictor.load(model, device="cpu"), out, to, options, data=data)
    if json:
        print_json({**asdict(written), "files": [str(file) for file in written.files]})
        return
    for file in written.files:
        print_line(str(file))
    kind = f"{written.format}, {written.quantize}" if written.quantize else written.format
    print_line(f"{kind}: {written.bytes / 1e6:.1f} MB")
    print_line(
        f"{written.agreement:.1%} of {written.checked} images of {written.images} get "
        f"PyTorch's answer, at {' and '.join(written.sizes)}; logits differ by "
        f"{written.max_difference:.1e} at most"
    )


def bench(
    model: Model,
    *,
    data: Annotated[str | None, tyro.conf.arg(metavar="DATA")] = None,
    split: str = "val",
    ways: Annotated[tuple[str, ...], tyro.conf.arg(metavar="WAY")] = (),
    images: int = 64,
    rounds: int = 3,
    loss: float = 0.01,
    merge: float = 0.08,
    json: Json = False,
) -> None:
    """Measure which way to run a model is fastest here, and what it costs.

    Example: vitrail bench runs/photos --data photos/

    Args:
        model: A run's or a model's folder, or weights: timm:…, hf:…, google:…, file:…, or a path.
        data: The images to measure on, and to calibrate int8; drawn ones unless given.
        split: Which of them are measured on; the training split calibrates.
        ways: Some of pytorch, compiled, onnxruntime, openvino, merged and int8; all unless given.
        images: How many are measured on.
        rounds: Turns that each way has.
        loss: Part of the images that may get another answer, or one wrong more.
        merge: Part of the patches that token merging takes away in each layer.
    """
    from vitrail.deploy.backends.backends import BACKENDS
    from vitrail.deploy.backends.bench import Settings
    from vitrail.deploy.backends.bench import bench as measure
    from vitrail.predictor import Predictor

    settings = Settings(
        ways=ways or tuple(BACKENDS),
        images=images,
        rounds=rounds,
        loss=loss,
        merge=merge,
        split=split,
    )
    predictor = Predictor.load(model, device="cpu")
    with show_progress("measuring", rounds) as report:
        found = measure(predictor, data, settings, report=report)
    if json:
        print_json(asdict(found))
        return
    columns = ("images / s", "ratio", "p50 ms", "p90", "p99", "MiB", "top-1", "as pytorch")
    table = new_table("way", "pace", *columns)
    for row in found.rows:
        latency = (f"{each:.1f}" for each in row.latency)
        memory = "" if row.memory is None else f"{row.memory:.0f}"
        accuracy = "" if row.accuracy is None else f"{row.accuracy:.1%}"
        speed = (f"{row.speed:.1f}", f"{row.ratio:.2f}")
        table.add_row(
            row.way, str(row.pace), *speed, *latency, memory, accuracy, f"{row.agreement:.1%}"
        )
    print_renderable(table)
    for row in found.rows:
        print_line(f"{row.way} {row.pace}: {row.verdict}")
    print_line("A pace is the images at once x workers x threads of each.")
    print_line(f"Measured on {found.images}.")
    for way, reason in found.absent.items():
        print_line(f"not measured: {way}: {reason}")
