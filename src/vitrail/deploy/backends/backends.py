"""The backends: each makes an engine that computes the predictor's logits."""

from __future__ import annotations

import os
import shutil
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from vitrail.config import InputError
from vitrail.data.datasets.open import Data
from vitrail.data.transforms.apply import normalize
from vitrail.deploy.backends.engines import open_onnx, open_openvino, require_package
from vitrail.deploy.backends.token_merging import MergedViT
from vitrail.deploy.exporting.graph import ExportModule, export_metadata, trace
from vitrail.deploy.exporting.onnx_file import make_onnx, save_onnx
from vitrail.deploy.exporting.samples import take_samples
from vitrail.files import replacing
from vitrail.machine import available_cores
from vitrail.predictor import BatchingConfig, Predictor
from vitrail.predictor.fused import InferencePrecision, fuse
from vitrail.predictor.int8 import measure_ranges
from vitrail.predictor.last_block import prune_last_block
from vitrail.predictor.predictor import Engine

MERGE_RATIO = 0.08
"""Default fraction of the patches that token merging removes in each layer."""

_CALIBRATION = 64  # images


@dataclass
class BackendContext:
    """What backends are made from; files that several of them need are written once."""

    predictor: Predictor
    folder: Path
    """Where their files are, as long as they are used."""
    data: Data | None
    """The dataset whose training split calibrates int8; generated shapes if None."""
    merge: float = MERGE_RATIO
    precision: InferencePrecision = "float32"
    """Of OpenVINO's products: float32 or bfloat16."""

    @cached_property
    def module(self) -> ExportModule:
        """The model as a graph that takes normalized images, with its last block pruned."""
        module = ExportModule(self.predictor, "float")
        module.model = prune_last_block(self.predictor.model)
        return module.eval()

    @cached_property
    def onnx(self) -> Path:
        """The model as an ONNX file, written unless it exists."""
        path = self.folder / "model.onnx"
        if not path.exists():
            metadata = export_metadata(self.predictor, "float")
            made = make_onnx(self.module, trace(self.module), metadata)
            with replacing(path) as part:
                save_onnx(made, part)
        return path


@dataclass(frozen=True)
class Backend:
    """A way to compute logits."""

    make: Callable[[BackendContext, BatchingConfig], Engine | None]
    """Makes the engine; None is the model itself."""
    exact: bool
    """Whether the logits equal the model's up to rounding."""
    quick: bool = False
    """Whether it starts within seconds."""


def _by_threads(batching: BatchingConfig, start: Callable[[int], Engine]) -> Engine:
    """Follow torch's number of threads, with one engine per batch that runs at the same time.

    Many images by several workers, and one image on all cores, use different engines. Each is
    made when it is first needed and computes one batch at a time: OpenVINO's streams, which would
    share their weights, deadlock when two batches differ in size.
    """
    idle: dict[int, deque[Engine]] = {batching.threads: deque([start(batching.threads)])}

    def compute(x: Tensor) -> Tensor:
        threads = (
            available_cores() if torch.get_num_threads() > batching.threads else batching.threads
        )
        free = idle.setdefault(threads, deque())
        try:
            engine = free.pop()
        except IndexError:
            engine = start(threads)
        try:
            return engine(x)
        finally:
            free.append(engine)

    return compute


def _compiled(context: BackendContext, batching: BatchingConfig) -> Engine:
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        raise InputError(f"torch.compile needs a C++ compiler, but there is no {compiler}")
    run = torch.compile(prune_last_block(context.predictor.model))

    def compute(x: Tensor) -> Tensor:
        return run(x)

    return compute


def _onnxruntime(context: BackendContext, batching: BatchingConfig) -> Engine:
    require_package("onnxruntime", "'vitrail[onnx]'", "onnx", "onnxscript")
    return _by_threads(batching, lambda threads: open_onnx(context.onnx, threads=threads))


def _openvino(context: BackendContext, batching: BatchingConfig) -> Engine:
    require_package("openvino", "'vitrail[onnx,openvino]'", "onnx", "onnxscript")
    return _by_threads(
        batching,
        lambda threads: open_openvino(context.onnx, threads=threads, precision=context.precision),
    )


def _bfloat16(context: BackendContext, batching: BatchingConfig) -> Engine:
    return fuse(context.predictor.model, precision="bfloat16")


def _int8(context: BackendContext, batching: BatchingConfig) -> Engine:
    predictor = context.predictor
    images = calibration_images(predictor, context.data)
    batches = (normalize(part, predictor.preprocess) for part in images.split(batching.batch_size))
    ranges = measure_ranges(predictor.model, batches)
    return fuse(predictor.model, precision="int8", ranges=ranges)


def calibration_images(predictor: Predictor, data: Data | None) -> Tensor:
    """Prepare training images that show the ranges of a model's activations."""
    samples = take_samples(data, predictor.preprocess, count=_CALIBRATION, split="train")
    return samples.inputs()


def _merged(context: BackendContext, batching: BatchingConfig) -> Engine:
    return MergedViT(fuse(context.predictor.model, prune=False), context.merge).eval()


REFERENCE = "pytorch"
BACKENDS: dict[str, Backend] = {
    REFERENCE: Backend(lambda context, batching: None, exact=True, quick=True),
    "compiled": Backend(_compiled, exact=True),
    "onnxruntime": Backend(_onnxruntime, exact=True, quick=True),
    "openvino": Backend(_openvino, exact=True, quick=True),
    "bfloat16": Backend(_bfloat16, exact=False),
    "int8": Backend(_int8, exact=False),
    "merged": Backend(_merged, exact=False),
}
"""All backends by name, the reference first."""
