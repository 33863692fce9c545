"""Commands that measure models: on a set, against each other, on VTAB's 19 tasks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from vitrail.cli.data import Data
from vitrail.cli.options import Json
from vitrail.config import InputError
from vitrail.console import new_table, print_json, print_line, print_renderable, show_progress

if TYPE_CHECKING:
    from vitrail.evaluation.evaluate import Exam
    from vitrail.evaluation.intervals import Estimate
    from vitrail.evaluation.result import Report
    from vitrail.evaluation.scored import Predictions

Model = Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="MODEL")]
Image = Annotated[str | None, tyro.conf.arg(metavar="HxW")]
Split = Annotated[str | None, tyro.conf.arg(metavar="S")]
Engine = Literal["local", "ray"]

_SHOWN = 40
"""Classes that the table lists; of more, the worst."""


def evaluate(
    model: Model,
    data: Data,
    *,
    split: Split = None,
    image: Image = None,
    subset: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None,
    map: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None,
    real: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None,
    csv: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None,
    out: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None,
    batch: int = 64,
    device: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None,
    engine: Engine = "local",
    workers: Annotated[int | None, tyro.conf.arg(metavar="N")] = None,
    json: Json = False,
) -> None:
    """Measure a model on every image of a set: accuracy, calibration, confusion.

    Example: vitrail evaluate run:runs/photos photos/ --split test --out reports/photos

    Args:
        model: A run's or model's folder, or a source of weights: timm:…, hf:…, google:…, file:…
        data: A folder, or csv:FILE, cifar10:DIR, imagenet:DIR, hf:NAME, digits, shapes, …
        split: The split to measure on; val unless given, with --subset all.
        image: Another resolution than the model was trained at, 384 or 384x512; positions are
            resized.
        subset: The set is imagenet-a, imagenet-r, imagenet-v2, sketch or objectnet, and the model
            one of ImageNet's classes.
        map: YAML or JSON that says which of the model's classes those of the data are.
        real: The reassessed labels of ImageNet's validation images (real.json).
        csv: Write a row a class there.
        out: Write report.json, classes.csv, images.csv and plots there.
        batch: Images that go through the model at a time, over all processes.
        device: cpu, cuda:1, mps; the best unless given.
        engine: ray asks many machines, by Ray Data.
        workers: Ray's workers (one a machine's core unless given), or threads that decode images.
    """
    from vitrail.distributed import process_group
    from vitrail.evaluation.class_matching import read_map
    from vitrail.evaluation.evaluate import prepare
    from vitrail.evaluation.result import class_rows, make_report, to_json
    from vitrail.evaluation.scored import join_answers
    from vitrail.models.names import parse_size

    if batch < 1:
        raise InputError(f"--batch is at least 1, not {batch}")
    with process_group(device) as processes:
        if engine == "ray" and processes.count > 1:
            raise InputError("--engine ray starts its own processes; leave torchrun out")
        exam = prepare(
            model,
            data,
            split=split,
            image=parse_size(image) if image else None,
            subset=subset,
            classes=read_map(map) if map else None,
            real=real,
        )
        facts = {"images": len(exam.source), "hash": exam.source.fingerprint()}
        processes.check_same(facts if processes.count > 1 else {})
        parts = _ask(exam, engine, processes, batch, workers)
        parts = [part for each in processes.gather(parts) for part in each]
        if not processes.is_main:
            return
        answers = join_answers(parts)
        report = make_report(answers, exam.source, real=exam.real)
    told = _head(model, data, exam) | to_json(report)
    if csv is not None:
        _write_csv(csv, class_rows(report))
    if out is not None:
        _write_folder(out, report, answers, exam, told)
    if json:
        print_json(told)
    else:
        _print_report(report, exam, out)


def _ask(
    exam: Exam, engine: Engine, processes: Any, batch: int, workers: int | None
) -> list[Predictions]:
    """Run the model over the set here, or on Ray's workers."""
    with show_progress("images", len(exam.source)) as report:
        if engine == "ray":
            from vitrail.evaluation.engine_ray import ask_ray

            return ask_ray(exam, batch=batch, workers=workers, report=report)
        from vitrail.data.loader import LoaderConfig
        from vitrail.evaluation.evaluate import ask

        return ask(
            exam,
            device=processes.device,
            batch=batch,
            shard=processes.shard,
            loader=LoaderConfig(workers=workers),
            report=lambda done: report(done * processes.count),
        )


def _head(model: str, data: str, exam: Exam) -> dict[str, Any]:
    image = "x".join(map(str, exam.preprocess.size))
    name = exam.source.name
    return {"model": model, "data": data, "set": name, "image": image, "notes": list(exam.notes)}


def _print_report(report: Report, exam: Exam, out: Path | None) -> None:
    """Print the classes, the worst of many, then what matters most."""
    from vitrail.text import printable

    several = report.mean_average_precision is not None
    rows = sorted(
        report.classes,
        key=lambda row: (row.average_precision or 0.0) if several else (row.top1 or (0.0,))[0],
    )
    if len(rows) <= _SHOWN:
        rows = list(report.classes)
    else:
        print_line(f"the {_SHOWN} worst of {len(report.classes):,} classes (--csv lists all)")
    columns = ("average precision",) if several else ("top-1", "95 %", "top-5", "precision")
    table = new_table("class", "images", *columns)
    for row in rows[:_SHOWN]:
        figures = [_percent(row.average_precision)]
        if row.top1 and row.top5:
            span = f"{row.top1.low:.1%} to {row.top1.high:.1%}"
            figures = [_percent(row.top1.value), span, _percent(row.top5.value)]
            figures.append(_percent(row.precision))
        table.add_row(printable(row.name), f"{row.images:,}", *figures)
    print_renderable(table)
    for note in exam.notes:
        print_line(note)
    if report.confusion is not None and (pairs := _confused(report)):
        print_line(f"most often confused: {pairs}")
    first = "labels right" if several else "top-1"
    print_line(f"{first:12} {_show(report.top1)} {report.on()}")
    if several:
        assert report.mean_average_precision
        print_line(f"{'mAP':12} {_show(report.mean_average_precision)}")
    else:
        print_line(f"{'top-5':12} {_show(report.top5)}")
    loss = report.loss
    print_line(f"{'loss':12} {loss.value:.4f} ({loss.low:.4f} to {loss.high:.4f})")
    if report.calibration is not None:
        bins = len(report.calibration.bins)
        print_line(f"{'calibration':12} {_show(report.calibration.ece)} error, in {bins} bins")
    if report.real is not None:
        print_line(f"{'ReaL':12} {_show(report.real)} on {report.real_images:,} images")
    if out is not None:
        print_line(f"{out}: report.json, classes.csv, images.csv and plots")


def _show(estimate: Estimate) -> str:
    return f"{estimate.value:.2%} ({estimate.low:.2%} to {estimate.high:.2%})"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def _confused(report: Report) -> str:
    """Name the pairs of classes that were taken for each other most."""
    from vitrail.evaluation.scores import list_confusion
    from vitrail.text import printable

    assert report.confusion is not None
    wrong = [each for each in list_confusion(report.confusion) if each.label != each.predicted]
    wrong.sort(key=lambda each: -each.images)
    names = [*map(printable, report.names), "a class that the set has not"]
    shown = (f"{names[e.label]} as {names[e.predicted]} ({e.images:,})" for e in wrong[:3])
    return ", ".join(shown)


def _write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write rows with their names above, whole or not at all."""
    import csv
    import io

    from vitrail.files import write_whole

    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_whole(path, text.getvalue())


def _write_folder(
    out: Path, report: Report, answers: Predictions, exam: Exam, told: dict[str, Any]
) -> None:
    """Write all that there is to know of an evaluation into a folder."""
    import json

    from vitrail.evaluation.result import class_rows, image_rows
    from vitrail.files import write_whole
    from vitrail.plotting.evaluation_plots import (
        draw_confusion,
        draw_reliability,
        make_title,
        save_plot,
    )

    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{out}: cannot be made: {error.strerror}") from None
    _write_csv(out / "classes.csv", class_rows(report))
    _write_csv(out / "images.csv", image_rows(answers, exam.source))
    if report.confusion is not None and report.calibration is not None:
        title = make_title(exam.source.name, f"top-1 {report.top1.value:.1%} {report.on()}")
        save_plot(draw_confusion(report.confusion, report.names, title), out, "confusion")
        found = report.calibration
        ece = (found.ece.value, found.ece.low, found.ece.high)
        bins = [(b.low, b.images, b.confidence, b.accuracy) for b in found.bins]
        save_plot(draw_reliability(bins, ece, title), out, "reliability")
    write_whole(out / "report.json", json.dumps(told, indent=1) + "\n")
