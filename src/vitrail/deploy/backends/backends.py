"""Ways to compute a model's logits: each an engine for the predictor, made when asked for."""

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
from vitrail.deploy.backends.engines import need, open_onnx, open_openvino
from vitrail.deploy.backends.quantize import quantize_onnx
from vitrail.deploy.backends.token_merging import Merged
from vitrail.deploy.exporting.graph import ExportModule, facts, trace
from vitrail.deploy.exporting.onnx_file import make_onnx, save_onnx
from vitrail.deploy.exporting.samples import take_samples
from vitrail.files import replacing
from vitrail.predictor import BatchingConfig, Predictor
from vitrail.predictor.batching_config import cores
from vitrail.predictor.fused import pack
from vitrail.predictor.last_block import shorten
from vitrail.predictor.predictor import Engine

MERGED = 0.08
"""Part of the patches that token merging takes away in each layer, unless another is asked for."""

_CALIBRATION = 64  # images


@dataclass
class BackendContext:
    """What ways are made of; the files that several need are written once."""

    predictor: Predictor
    folder: Path
    """Where their files may lie, as long as they are used."""
    data: str | None
    """The set whose training split calibrates int8; drawn images where there is none."""
    merge: float = MERGED

    @cached_property
    def deployed(self) -> ExportModule:
        """The model as a graph that takes normalized images, as short as PyTorch's own."""
        deployed = ExportModule(self.predictor, "float")
        deployed.model = shorten(self.predictor.model)
        return deployed.eval()

    @cached_property
    def onnx(self) -> Path:
        """The model as an ONNX file; one that is there already is taken."""
        path = self.folder / "model.onnx"
        if not path.exists():
            told = facts(self.predictor, "float")
            made = make_onnx(self.deployed, trace(self.deployed), told)
            with replacing(path) as part:
                save_onnx(made, part)
        return path

    @cached_property
    def int8(self) -> Path:
        """The same with int8 products."""
        path = self.folder / "int8.onnx"
        preprocess = self.predictor.preprocess
        samples = take_samples(self.data, preprocess, count=_CALIBRATION, split="train")
        quantize_onnx(self.onnx, path, self.deployed, samples.prepare())
        return path


@dataclass(frozen=True)
class Backend:
    """How logits may be computed."""

    make: Callable[[BackendContext, BatchingConfig], Engine | None]
    """Make the engine, for a pace; None is the model itself."""
    exact: bool
    """Whether the logits are the model's, but for rounding."""
    quick: bool = False
    """Whether it is made in seconds, and starts as fast the next time."""


def _by_threads(pace: BatchingConfig, start: Callable[[int], Engine]) -> Engine:
    """Follow torch's number of threads: an engine for each batch that runs at a time.

    What is meant for many images and what is meant for one on all cores are engines apart. Each
    is made when it is first needed, and computes one batch at a time: OpenVINO's streams, which
    would share their weights, wait for each other for ever where two batches differ in size.
    """
    idle: dict[int, deque[Engine]] = {pace.threads: deque([start(pace.threads)])}

    def compute(x: Tensor) -> Tensor:
        threads = cores() if torch.get_num_threads() > pace.threads else pace.threads
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


def _compiled(shop: BackendContext, pace: BatchingConfig) -> Engine:
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        raise InputError(f"compiling needs {compiler}")
    run = torch.compile(shorten(shop.predictor.model))

    def compute(x: Tensor) -> Tensor:
        return run(x)

    return compute


def _onnxruntime(shop: BackendContext, pace: BatchingConfig) -> Engine:
    need("onnxruntime", "'vitrail[onnx]'")
    return _by_threads(pace, lambda threads: open_onnx(shop.onnx, threads=threads))


def _openvino(shop: BackendContext, pace: BatchingConfig) -> Engine:
    need("openvino", "'vitrail[openvino]'")
    return _by_threads(pace, lambda threads: open_openvino(shop.onnx, threads=threads))


def _int8(shop: BackendContext, pace: BatchingConfig) -> Engine:
    return _by_threads(pace, lambda threads: open_onnx(shop.int8, threads=threads))


def _merged(shop: BackendContext, pace: BatchingConfig) -> Engine:
    return Merged(pack(shop.predictor.model), shop.merge).eval()


REFERENCE = "pytorch"
BACKENDS: dict[str, Backend] = {
    REFERENCE: Backend(lambda shop, pace: None, exact=True, quick=True),
    "compiled": Backend(_compiled, exact=True),
    "onnxruntime": Backend(_onnxruntime, exact=True, quick=True),
    "openvino": Backend(_openvino, exact=True, quick=True),
    "merged": Backend(_merged, exact=False),
    "int8": Backend(_int8, exact=False),
}
"""Every way by its name, the reference first."""
