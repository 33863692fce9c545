"""Export: a model for other programs, checked against PyTorch on images before it is there."""

from __future__ import annotations

import errno
import math
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from vitrail.config import InputError, suggest
from vitrail.deploy.backends.engines import Run
from vitrail.deploy.exporting.graph import ExportModule, other_size, trace
from vitrail.deploy.exporting.samples import Samples, take_samples
from vitrail.deploy.exporting.web import check_web, read_runtime
from vitrail.deploy.exporting.writers import WRITERS, ExportContext, Options, Quantize
from vitrail.files import replacing
from vitrail.models.spec import Size
from vitrail.predictor import Predictor

TOLERANCE = 1e-4
"""Largest difference of the logits from PyTorch's; of logits above 1, as a part of the largest."""
BATCHES = (1, 3, 8)
"""How many images at once an exported model is checked with."""
CALIBRATION = 64
"""Images of the training split that int8 is calibrated on."""


@dataclass(frozen=True)
class ExportResult:
    """What was written, and how far its logits are from PyTorch's."""

    format: str
    files: tuple[Path, ...]
    max_difference: float
    sizes: tuple[str, ...]
    """The images' sizes that it was checked at."""
    images: str
    """What it was checked on."""
    checked: int
    """How many images that was."""
    agreement: float
    """The part of them whose most likely class is PyTorch's."""
    quantize: Quantize | None
    bytes: int
    """What all files take."""


@dataclass(frozen=True)
class _Compared:
    """How a model's answers differ from PyTorch's."""

    difference: float
    agreement: float


def export(
    predictor: Predictor,
    out: Path,
    to: str,
    options: Options | None = None,
    *,
    data: str | None = None,
) -> ExportResult:
    """Write a model in another program's format; what answers otherwise is not left behind.

    It is checked on images of `data`, or on drawn ones.
    """
    options = options or Options()
    write = _find_writer(to, options)
    if predictor.device.type != "cpu":
        raise InputError("a model is exported from the processor; load it with device='cpu'")
    choices = _choose(predictor, to, options, data)
    if to == "web":
        check_web(predictor)
        options = replace(options, form="uint8-nhwc")
    exact = choices == [None]
    preprocess = predictor.preprocess
    samples = take_samples(data, preprocess, count=max(BATCHES) if exact else options.images)
    calibration = None
    if "int8" in choices:
        calibration = take_samples(data, preprocess, count=CALIBRATION, split="train")
    deployed = ExportModule(predictor, options.form).eval()
    sizes = [preprocess.size, *([other_size(deployed)] if options.any_size else [])]
    with replacing(out) as part:  # first, so that what can't be written is known at once
        runtime = read_runtime(options.runtime) if to == "web" else {}
        program = trace(deployed, any_size=options.any_size)
        jobs = [
            ExportContext(
                predictor,
                deployed,
                program,
                replace(options, quantize=quantize),
                runtime,
                calibration,
            )
            for quantize in choices
        ]
        quantize, found = _write_first(write, jobs, part, samples, sizes)
    files = sorted(out.rglob("*")) if out.is_dir() else [out]
    return ExportResult(
        format=to,
        files=tuple(files),
        max_difference=found.difference,
        sizes=tuple(f"{height}x{width}" for height, width in sizes),
        images=samples.name,
        checked=len(samples),
        agreement=found.agreement,
        quantize=quantize,
        bytes=sum(file.stat().st_size for file in files),
    )


def _choose(
    predictor: Predictor, to: str, options: Options, data: str | None
) -> list[Quantize | None]:
    """List how a model may be made smaller, what is tried first in front."""
    if options.quantize is None and to != "web":
        return [None]
    if not predictor.model.spec.classes:
        raise InputError("a quantized model is checked by its answers, and this one has no classes")
    if options.quantize is None:
        return ["int8-weights", "float16-weights"]
    if options.quantize == "int8" and data is None:
        raise InputError("int8 is calibrated on images such as it will see; name some by --data")
    return [options.quantize]


def _write_first(
    write: Callable[[ExportContext, Path], Run],
    jobs: Sequence[ExportContext],
    part: Path,
    samples: Samples,
    sizes: Sequence[Size],
) -> tuple[Quantize | None, _Compared]:
    """Write the first of several that answers as PyTorch does."""
    refused = ""
    for job in jobs:
        run = _write(write, job, part)
        each = [_compare(job.deployed, run, samples, size) for size in sizes]
        found = _Compared(max(one.difference for one in each), min(one.agreement for one in each))
        refused = _refuse(part.name, job.options, samples, found)
        if not refused:
            return job.options.quantize, found
        shutil.rmtree(part) if part.is_dir() else part.unlink()
    raise InputError(refused)


def _refuse(name: str, options: Options, samples: Samples, found: _Compared) -> str:
    """Say why a model is not written; nothing where it may be."""
    if options.quantize is None:
        if found.difference <= TOLERANCE:
            return ""
        return (
            f"{name} answers otherwise than PyTorch: by {found.difference:.1e} on "
            f"{samples.name}, more than {TOLERANCE:.0e}; nothing was written"
        )
    if 1 - found.agreement <= options.loss:
        return ""
    gentler = {"int8": "int8-weights", "int8-weights": "float16-weights"}.get(options.quantize)
    advice = f"; --quantize {gentler} loses less" if gentler else ""
    return (
        f"{name} as {options.quantize} gives another answer than PyTorch for "
        f"{1 - found.agreement:.1%} of {len(samples)} images of {samples.name}, more than --loss "
        f"{options.loss:g}; nothing was written{advice}"
    )


def _write(write: Callable[[ExportContext, Path], Run], job: ExportContext, part: Path) -> Run:
    try:
        return write(job, part)
    except RuntimeError as error:  # in which OpenVINO wraps that a disk is full
        if _room_for(part, job.deployed):
            raise
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error


def _room_for(part: Path, deployed: ExportModule) -> bool:
    """Tell whether the disk, and the process's limit of a file, leave room for the weights."""
    size = sum(p.numel() * p.element_size() for p in deployed.parameters())
    return shutil.disk_usage(part.parent).free > size and _file_limit() > size


def _file_limit() -> float:
    try:
        import resource
    except ImportError:  # where there is no such limit
        return math.inf
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    return math.inf if limit == resource.RLIM_INFINITY else limit


def _find_writer(to: str, options: Options) -> Callable[[ExportContext, Path], Run]:
    if to not in WRITERS:
        raise InputError(f"no format {to!r}; there are: {', '.join(WRITERS)}{suggest(to, WRITERS)}")
    if options.any_size and to not in ("onnx", "openvino"):
        raise InputError(f"--any-size is for onnx and openvino; {to} takes one size")
    if options.aot and to != "pt2":
        raise InputError(f"--aot compiles a pt2; {to} has its own ways")
    if options.quantize and to not in ("onnx", "web"):
        raise InputError(f"--quantize is for onnx and web; {to} keeps its weights")
    if options.runtime and to != "web":
        raise InputError(f"--runtime is for web; {to} has no page")
    if options.form != "float" and to == "web":
        raise InputError("--input is for other programs than a page, which takes bytes always")
    return WRITERS[to]


@torch.inference_mode()
def _compare(
    deployed: ExportModule, run: Run, samples: Samples, size: tuple[int, int]
) -> _Compared:
    """Compare logits and answers, over batches of several lengths."""
    prepared = samples.prepare(size)
    worst = 0.0
    same = torch.ones(len(prepared), dtype=torch.bool)
    for batch in _batches(len(prepared)):
        given = deployed.arrange(prepared[batch])
        expected = deployed(given)
        found = run(given)
        scale = max(1.0, float(expected.abs().max()))
        if found.shape != expected.shape:
            raise InputError(f"the exported model gives {tuple(found.shape)}, not logits")
        apart = (found - expected).abs().nan_to_num(nan=math.inf)  # which max() would overlook
        worst = max(worst, float(apart.max()) / scale)
        same[batch] &= found.argmax(1) == expected.argmax(1)
    return _Compared(worst, float(same.double().mean()))


def _batches(count: int) -> Iterator[slice]:
    """Give the first images in batches of every length, and then the others."""
    for length in BATCHES:
        yield slice(0, length)
    for start in range(BATCHES[-1], count, BATCHES[-1]):
        yield slice(start, start + BATCHES[-1])
