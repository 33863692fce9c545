"""Select a backend or a precision: one that the user names, or the fastest, measured once.

What takes seconds to make is cached by a hash of the weights: the exported graph and, for each kind
of machine, what was measured. The cache may be deleted. For a known number of images, `auto`
measures and changes only what they pay for.
"""

from __future__ import annotations

import hashlib
import json
import platform
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from vitrail import __version__
from vitrail.config import InputError, from_dict, suggest, to_dict
from vitrail.data.datasets.open import Data
from vitrail.deploy.backends.backends import (
    BACKENDS,
    REFERENCE,
    BackendContext,
    calibration_images,
)
from vitrail.deploy.backends.bench import MAX_CHANGED, measure_backends
from vitrail.deploy.exporting.samples import take_samples
from vitrail.download import cache_folder
from vitrail.files import lock_folder, write_whole
from vitrail.machine import available_cores, processor_name, processor_words
from vitrail.models import ViT
from vitrail.models.weight_hash import hash_weights
from vitrail.predictor import BatchingConfig, Predictor
from vitrail.predictor.fused import check_precision
from vitrail.training.optimization.precision import autocast_type

AUTO = "auto"
"""The fastest of the exact backends that start within seconds."""
_MAX_IMAGES = 32  # to measure on
_MEASURED = 1100  # images that PyTorch could predict while backends are measured on those
_EXPORT_SECONDS = 15  # that exporting and starting the backends takes besides
_LIKELY_GAIN = 0.25  # of PyTorch's time, by the best backend
_COMPARED = 128  # images on which `--precision auto` compares
_LEAST_COMPARED = 600  # images whose time in bfloat16 is shorter by what comparing takes

PrecisionChoice = Literal["auto", "float32", "bfloat16", "int8"]
"""The values of `--precision`."""


@dataclass(frozen=True, kw_only=True)
class BackendChoice:
    """What was measured to be fastest."""

    backend: str
    batch_size: int
    gain: float
    """Seconds that an image takes less than with PyTorch's default."""
    start: float = 0.0
    """Seconds that starting it takes, its graph being there."""


def backend_choices() -> tuple[str, ...]:
    """List the values of `--backend`, the default first: exact, and started within seconds."""
    return *(name for name, backend in BACKENDS.items() if backend.exact and backend.quick), AUTO


def check_backend(backend: str) -> None:
    """Refuse a value that `--backend` does not have."""
    known = backend_choices()
    if backend not in known:
        hint = "; only vitrail bench runs it" if backend in BACKENDS else suggest(backend, known)
        raise InputError(f"--backend {backend}: expected one of {', '.join(known)}{hint}")


def select_backend(
    predictor: Predictor,
    backend: str,
    *,
    batching: BatchingConfig | None = None,
    precision: PrecisionChoice = "float32",
    images: int | None = None,
    log: Callable[[str], None] = lambda text: None,
) -> Predictor:
    """Give a predictor that uses a backend; `log` gets a line about what takes long.

    `auto` is to predict so many `images`; without a number, as in a server, any effort pays.
    OpenVINO's `precision` may be bfloat16; `select_precision` is for PyTorch's. `batching` defaults
    to the predictor's; `auto` changes its batch size only.
    """
    check_backend(backend)
    batching = batching or predictor.batching
    on_cpu = predictor.device.type == "cpu"
    if backend == REFERENCE or (backend == AUTO and not on_cpu):
        return predictor
    if not on_cpu:
        raise InputError(f"--backend {backend} runs on the CPU, not on {predictor.device}")
    assert precision != "auto", "`check_calibration` refuses it"
    check_precision(predictor.model, precision)
    folder = cache_folder() / "backends" / _digest(predictor)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        text = f"{folder}: {error.strerror}; set VITRAIL_CACHE to another folder"
        raise InputError(text) from None
    with lock_folder(folder):  # another process may have written the files already
        measured = choice = None
        if backend == AUTO:
            choice = _read(folder / _machine())
            if choice is None and _pays(predictor, images):
                choice = measured = _measure(predictor, folder, log)
            if choice is None or (measured is None and _is_short(choice, images)):
                log(f"{predictor.name}: {REFERENCE}; another would not pay for {images:,} images")
                return predictor
            backend, batching = choice.backend, replace(batching, batch_size=choice.batch_size)
        make, started = BACKENDS[backend].make, time.perf_counter()
        try:
            engine = make(BackendContext(predictor, folder, None, precision=precision), batching)
        except InputError:
            (folder / "model.onnx").unlink(missing_ok=True)  # it may be damaged
            engine = make(BackendContext(predictor, folder, None, precision=precision), batching)
        if measured is not None:
            measured = replace(measured, start=time.perf_counter() - started)
            write_whole(folder / _machine(), json.dumps(to_dict(measured)) + "\n")
    return predictor.with_engine(engine, batching)


def _pays(predictor: Predictor, images: int | None) -> bool:
    """Tell whether predicting images is likely to gain more than measuring backends takes."""
    if images is None:
        return True
    if images * _LIKELY_GAIN <= _MEASURED:
        return False
    batch = [np.zeros((*predictor.preprocess.size, predictor.preprocess.channels), np.uint8)]
    batch *= predictor.batching.batch_size * predictor.batching.workers
    predictor.logits(batch)  # the first time takes longer
    started = time.perf_counter()
    predictor.logits(batch)
    seconds = (time.perf_counter() - started) / len(batch)
    return (images * _LIKELY_GAIN - _MEASURED) * seconds > _EXPORT_SECONDS


def _is_short(choice: BackendChoice, images: int | None) -> bool:
    """Tell whether images gain less than starting what was chosen takes."""
    return images is not None and images * choice.gain <= choice.start


def check_calibration(precision: str, backend: str, data: Data | None) -> None:
    """Refuse a precision that a backend doesn't have, or without images to calibrate it on."""
    if precision == "int8" and backend != REFERENCE:
        raise InputError("--precision int8 is computed by PyTorch; omit --backend")
    if precision == "auto" and backend != REFERENCE:
        raise InputError("--precision auto is computed by PyTorch; omit --backend")
    if precision == "bfloat16" and backend not in (REFERENCE, "openvino"):
        raise InputError("--precision bfloat16 is computed by PyTorch or --backend openvino")
    if precision == "int8" and data is None:
        raise InputError("--precision int8 requires --data, whose training images calibrate it")
    if precision not in ("int8", "auto") and data is not None:
        raise InputError("--data is for --precision int8, which it calibrates, and auto")


def select_precision(
    predictor: Predictor,
    precision: PrecisionChoice,
    data: Data | None,
    *,
    images: int | None = None,
    log: Callable[[str], None] = lambda text: None,
) -> Predictor:
    """Let PyTorch compute in a precision; training images of `data` calibrate int8.

    `auto` is bfloat16 where it is faster, by processor and size, unless it changes the predictions
    of more than 1 % of the images of `data`, or of generated shapes; `log` gets a line about it.
    Fewer `images` than comparing pays for stay in float32.
    """
    if precision == "auto":
        return _choose_precision(predictor, data, images, log)
    if precision == "float32":
        return predictor
    shown = calibration_images(predictor, data) if precision == "int8" else None
    return predictor.with_precision(precision, shown)


def _choose_precision(
    predictor: Predictor, data: Data | None, images: int | None, log: Callable[[str], None]
) -> Predictor:
    """Decide the same in every process of a server: nothing is timed."""
    model = predictor.model
    faster = autocast_type("auto", predictor.device, model.spec) == torch.bfloat16
    if not faster or (predictor.device.type == "cpu" and not isinstance(model, ViT)):
        log(f"{predictor.name}: float32; bfloat16 is not faster for it here")
        return predictor
    if not model.spec.classes:
        log(f"{predictor.name}: float32; it has no classes to compare")
        return predictor
    if images is not None and images < _LEAST_COMPARED:
        log(f"{predictor.name}: float32; comparing bfloat16 would not pay for {images:,} images")
        return predictor
    rounded = predictor.with_precision("bfloat16")
    split = "val" if data else "train"  # more of the generated shapes
    samples = take_samples(data, predictor.preprocess, count=_COMPARED, split=split)
    shown = list(samples.contents)
    same = predictor.same_predictions(predictor.logits(shown), rounded.logits(shown))
    good = float(same.double().mean()) >= 1 - MAX_CHANGED
    chosen = rounded if good else predictor
    log(
        f"{predictor.name}: {chosen.precision}; bfloat16 gives the same class for "
        f"{int(same.sum())} of {len(same)} images of {samples.name}"
    )
    return chosen


def _measure(predictor: Predictor, folder: Path, log: Callable[[str], None]) -> BackendChoice:
    log(f"{predictor.name}: measuring which backend is fastest on this machine, once")
    default = predictor.batching
    count = min(2 * default.batch_size * default.workers, _MAX_IMAGES)
    samples = take_samples(None, predictor.preprocess, count=count)
    names = [name for name in backend_choices() if name != AUTO]
    best = measure_backends(
        BackendContext(predictor, folder, None), samples, names, len(samples)
    ).best
    size = best.batching.batch_size
    log(f"{predictor.name}: {best.backend}, batches of {size}: {best.ratio:.2f}x PyTorch")
    gain = (best.ratio - 1) / best.images_per_second
    return BackendChoice(backend=best.backend, batch_size=size, gain=gain)


def _read(path: Path) -> BackendChoice | None:
    """Read what was measured; None if nothing was, or the file is damaged."""
    with suppress(OSError, ValueError, InputError):
        choice = from_dict(BackendChoice, json.loads(path.read_text(encoding="utf-8")))
        if choice.backend in backend_choices() and choice.backend != AUTO and choice.batch_size > 0:
            return choice
    return None


def _digest(predictor: Predictor) -> str:
    """Hash all that determines a model's graph."""
    parts = (
        __version__, version("torch"), predictor.model.spec, predictor.preprocess.size,
        hash_weights(predictor.model),
    )  # fmt: skip
    return hashlib.sha256(" ".join(map(str, parts)).encode()).hexdigest()[:32]


def _machine() -> str:
    """Name the file for machines and packages like these."""
    parts = [
        platform.machine(),
        processor_name(),
        str(available_cores()),
        *sorted(processor_words()),
    ]
    for package in ("torch", "onnxruntime", "openvino"):
        with suppress(PackageNotFoundError):
            parts.append(f"{package} {version(package)}")
    return f"{hashlib.sha256(' '.join(parts).encode()).hexdigest()[:16]}.json"
