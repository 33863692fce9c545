"""Export: a model for other runtimes, compared with PyTorch before the file appears."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from vitrail.config import InputError, suggest
from vitrail.data.datasets.open import Data
from vitrail.deploy.exporting.graph import ExportModule, Input, other_size, trace
from vitrail.deploy.exporting.hub_export import CARD, check_repository, push_folder, write_hub
from vitrail.deploy.exporting.samples import Samples, take_samples
from vitrail.deploy.exporting.usage import use_command
from vitrail.deploy.exporting.web_export import check_web, read_runtime
from vitrail.deploy.exporting.writers import (
    WRITERS,
    ExportConfig,
    ExportContext,
    Quantize,
    require_writer,
)
from vitrail.files import replacing
from vitrail.models.spec import Size
from vitrail.predictor import ModelLike, Predictor
from vitrail.predictor.predictor import Engine
from vitrail.result import Result, ResultTable

TOLERANCE = 1e-4
"""Largest difference of the logits from PyTorch's, relative to the largest logit if above 1."""
BATCHES = (1, 3, 8)
"""Batch sizes that an exported model is checked with."""
CALIBRATION = 64
"""Images of the training split for calibrating int8."""


@dataclass(frozen=True)
class ExportResult(Result):
    """What was written, and how its logits differ from PyTorch's."""

    format: str
    files: tuple[Path, ...]
    max_difference: float
    sizes: tuple[str, ...]
    """The image sizes that it was checked at."""
    images: str
    """The dataset that it was checked on."""
    checked: int
    """Number of images that it was checked on."""
    agreement: float
    """Fraction of them with the same top-1, or the same labels, as PyTorch."""
    quantize: Quantize | None
    bytes: int
    """Size of all files."""
    address: str | None = None
    """Where it was pushed to, if it was."""
    compared: str = "top-1"
    """What the agreement is of."""
    use: str | None = None
    """A command that opens what was written; a folder for the hub has a card that says how."""
    reading: str | None = None
    """How images of more than 8 bits, and stacks, have to be read before, where that matters."""

    def summary(self) -> Iterable[ResultTable | str]:
        """Give the files, and how they compare with PyTorch."""
        yield from map(str, self.files)
        kind = f"{self.format}, {self.quantize}" if self.quantize else self.format
        yield f"{kind}: {self.bytes / 1e6:.1f} MB"
        if self.format == "hub":
            folder = os.path.commonpath([file.parent for file in self.files])
            yield f"logits differ by {self.max_difference:.1e}; compared with {self.images}"
            yield f"to use it: {Path(folder) / CARD} says how"
            if self.reading:
                yield f"before that: {self.reading}"
            yield self.address or f"to publish it: hf upload ORG/{Path(folder).name} {folder}"
            return
        yield (
            f"same {self.compared} as PyTorch for {self.agreement:.1%} of {self.checked} images of "
            f"{self.images} at {' and '.join(self.sizes)}; largest difference of the logits: "
            f"{self.max_difference:.1e}"
        )
        yield f"to use it: {self.use}"
        if self.reading:
            yield f"before that: {self.reading}"


@dataclass(frozen=True)
class _Compared:
    """How a model's logits differ from PyTorch's."""

    difference: float
    agreement: float


def export(
    model: ModelLike,
    out: str | Path,
    *,
    to: str,
    input: Input = "float",
    any_size: bool = False,
    aot: bool = False,
    quantize: Quantize | None = None,
    max_changed: float = 0.01,
    images: int = 256,
    data: Data | None = None,
    unsure: float | str | None = None,
    runtime: str | Path | None = None,
    push: str | None = None,
) -> ExportResult:
    """Write a model in another format; nothing is left behind if it computes something else.

    It is checked on images of `data`, or on generated shapes. `ExportConfig` has the options.
    `unsure` is the error rate of the answers that a web page gives. With `push`, a folder for the
    hub is uploaded to that repository, ORG/NAME.
    """
    if push is not None and to != "hub":
        raise InputError(f"--push requires --to hub, not {to}")
    config = ExportConfig(
        input=input, any_size=any_size, aot=aot, quantize=quantize, max_changed=max_changed,
        images=images, runtime=None if runtime is None else Path(runtime),
    )  # fmt: skip
    write = _find_writer(to, config)  # before the model is loaded
    if config.quantize == "int8" and data is None:
        raise InputError("int8 needs images like those it will see, for calibration: --data")
    if unsure is not None and to != "web":
        raise InputError(f"--unsure requires --to web, not {to}")
    if write is None:
        return _export_hub(model, Path(out), push)
    predictor, out = Predictor.load(model, device="cpu", unsure=unsure), Path(out)
    if predictor.device.type != "cpu":
        raise InputError(f"export needs a model on the CPU, not on {predictor.device}")
    if any_size and getattr(predictor.model.spec, "position", "") == "relative-2d":
        raise InputError(
            f"{predictor.model.spec.name}: a table of offsets is resized for one size beforehand; "
            "export without --any-size"
        )
    choices: list[Quantize | None] = [config.quantize]
    if to == "web":
        check_web(predictor)
        config = replace(config, input="uint8-nhwc")
        if config.quantize is None:
            choices = ["int8-weights", "float16-weights"]
    exact = choices == [None]
    if not exact and not predictor.model.spec.classes:
        raise InputError("quantization is checked by top-1, but this model has no classes")
    preprocess = predictor.preprocess
    samples = take_samples(data, preprocess, count=max(BATCHES) if exact else config.images)
    calibration = None
    if "int8" in choices:
        calibration = take_samples(data, preprocess, count=CALIBRATION, split="train")
    module = ExportModule(predictor, config.input, distance=to == "web").eval()
    sizes = [preprocess.size, *([other_size(module)] if config.any_size else [])]
    with replacing(out) as part:  # first, so that an unwritable place is known at once
        files = read_runtime(config.runtime) if to == "web" else {}
        program = trace(module, any_size=config.any_size)
        contexts = [
            ExportContext(
                predictor, module, program, replace(config, quantize=choice), files, calibration
            )
            for choice in choices
        ]
        chosen, found = _write_first(write, contexts, part, samples, sizes)
    written = sorted(out.rglob("*")) if out.is_dir() else [out]
    return ExportResult(
        format=to,
        files=tuple(written),
        max_difference=found.difference,
        sizes=tuple(f"{height}x{width}" for height, width in sizes),
        images=samples.name,
        checked=len(samples),
        agreement=found.agreement,
        compared="top-1" if predictor.targets is None else "numbers, within 2 %,",
        quantize=chosen,
        bytes=sum(file.stat().st_size for file in written),
        use=use_command("pt2-aot" if config.aot else to, written),
        reading=preprocess.reading.explain() if preprocess.reading and to != "web" else None,
    )


def _export_hub(model: ModelLike, out: Path, push: str | None) -> ExportResult:
    """Write a folder for the Hugging Face hub, and push it if asked to."""
    if isinstance(model, Predictor):
        raise InputError("--to hub needs a model, not a predictor")
    if push is not None:
        check_repository(push)
    written, reading = write_hub(model, out, push)
    return ExportResult(
        format="hub",
        files=written.files,
        max_difference=written.max_difference,
        sizes=(),
        images=written.compared_with,
        checked=0,
        agreement=1.0,
        quantize=None,
        bytes=sum(file.stat().st_size for file in written.files),
        address=None if push is None else push_folder(out, push),
        reading=reading,
    )


def _write_first(
    write: Callable[[ExportContext, Path], Engine],
    contexts: Sequence[ExportContext],
    part: Path,
    samples: Samples,
    sizes: Sequence[Size],
) -> tuple[Quantize | None, _Compared]:
    """Write the first of several that computes what PyTorch does."""
    refused = ""
    for context in contexts:
        run = write(context, part)
        each = [_compare(context, run, samples, size) for size in sizes]
        found = _Compared(max(one.difference for one in each), min(one.agreement for one in each))
        refused = _refuse(part.name, context.config, samples, found)
        if not refused:
            return context.config.quantize, found
        shutil.rmtree(part) if part.is_dir() else part.unlink()
    raise InputError(refused)


def _refuse(name: str, config: ExportConfig, samples: Samples, found: _Compared) -> str:
    """Say why a model is not written; an empty text if it may be."""
    if config.quantize is None:
        if found.difference <= TOLERANCE:
            return ""
        return (
            f"{name} differs from PyTorch by {found.difference:.1e} on {samples.name}, more than "
            f"{TOLERANCE:.0e}; nothing was written"
        )
    if 1 - found.agreement <= config.max_changed:
        return ""
    gentler = {"int8": "int8-weights", "int8-weights": "float16-weights"}.get(config.quantize)
    advice = f"; try --quantize {gentler}" if gentler else ""
    return (
        f"{name} as {config.quantize} changes the top-1 of {1 - found.agreement:.1%} of "
        f"{len(samples)} images of {samples.name}, more than --max-changed {config.max_changed:g}; "
        f"nothing was written{advice}"
    )


def _find_writer(to: str, config: ExportConfig) -> Callable[[ExportContext, Path], Engine] | None:
    """Find what writes a format; None for the hub's, which holds the weights themselves."""
    if to not in (*WRITERS, "hub"):
        known = ", ".join((*WRITERS, "hub"))
        raise InputError(f"--to {to}: expected one of {known}{suggest(to, (*WRITERS, 'hub'))}")
    if config.any_size and to not in ("onnx", "openvino"):
        raise InputError(f"--any-size requires --to onnx or openvino, not {to}")
    if config.aot and to != "pt2":
        raise InputError(f"--aot requires --to pt2, not {to}")
    if config.quantize and to not in ("onnx", "web"):
        raise InputError(f"--quantize requires --to onnx or web, not {to}")
    if config.runtime and to != "web":
        raise InputError(f"--runtime requires --to web, not {to}")
    if config.input != "float" and to == "web":
        raise InputError("--input can't be used with --to web, whose input is always uint8-nhwc")
    require_writer(to)
    return WRITERS.get(to)


@torch.inference_mode()
def _compare(context: ExportContext, run: Engine, samples: Samples, size: Size) -> _Compared:
    """Compare logits and predictions in batches of several sizes."""
    module, prepared = context.module, samples.inputs(size)
    worst = 0.0
    same = torch.ones(len(prepared), dtype=torch.bool)
    for batch in _batches(len(prepared)):
        given = module.to_input(prepared[batch])
        expected = module(given)
        found = run(given)
        scale = max(1.0, float(expected.abs().max()))
        if found.shape != expected.shape:
            raise InputError(
                f"the exported model returns {tuple(found.shape)}, expected logits of "
                f"{tuple(expected.shape)}"
            )
        apart = (found - expected).abs().nan_to_num(nan=math.inf)  # max() ignores NaN
        worst = max(worst, float(apart.max()) / scale)
        classes = module.model.spec.classes or None  # a distance may follow the logits
        same[batch] &= context.predictor.same_predictions(found[:, :classes], expected[:, :classes])
    return _Compared(worst, float(same.double().mean()))


def _batches(count: int) -> Iterator[slice]:
    """Give the first images in batches of each size, and then the others."""
    for length in BATCHES:
        yield slice(0, length)
    for start in range(BATCHES[-1], count, BATCHES[-1]):
        yield slice(start, start + BATCHES[-1])
