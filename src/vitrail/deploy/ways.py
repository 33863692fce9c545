"""Ways to compute a model's logits: each an engine for the predictor, made when asked for."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from vitrail.config import InputError
from vitrail.deploy.engines import need, open_onnx, open_openvino
from vitrail.deploy.graph import Deployed, facts, trace
from vitrail.deploy.merging import Merged
from vitrail.deploy.onnx_file import make_onnx, save_onnx
from vitrail.deploy.quantize import quantize_onnx
from vitrail.deploy.samples import take_samples
from vitrail.predictor import Predictor
from vitrail.predictor.fused import pack
from vitrail.predictor.predictor import Engine

MERGED = 0.08
"""Part of the patches that token merging takes away in each layer, unless another is asked for."""

_CALIBRATION = 64  # pictures


@dataclass
class Workshop:
    """What ways are made of; the files that several need are written once."""

    predictor: Predictor
    folder: Path
    """Where their files may lie, as long as they are used."""
    data: str | None
    """The set whose training split calibrates int8; drawn pictures where there is none."""
    merge: float = MERGED

    @cached_property
    def deployed(self) -> Deployed:
        """The model as a graph that takes normalised pictures."""
        return Deployed(self.predictor, "float").eval()

    @cached_property
    def onnx(self) -> Path:
        """The model as an ONNX file."""
        path = self.folder / "model.onnx"
        told = facts(self.predictor, "float")
        save_onnx(make_onnx(self.deployed, trace(self.deployed), told), path)
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
class Way:
    """How logits may be computed."""

    make: Callable[[Workshop, int], Engine | None]
    """Make the engine, for a number of threads; None is the model itself."""
    exact: bool
    """Whether the logits are the model's, but for rounding."""


def _compiled(shop: Workshop, threads: int) -> Engine:
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        raise InputError(f"compiling needs {compiler}")
    run = torch.compile(shop.predictor.model)

    def compute(x: Tensor) -> Tensor:
        return run(x)

    return compute


def _onnxruntime(shop: Workshop, threads: int) -> Engine:
    need("onnxruntime", "'vitrail[onnx]'")
    return open_onnx(shop.onnx, threads=threads)


def _openvino(shop: Workshop, threads: int) -> Engine:
    need("openvino", "'vitrail[openvino]'")
    return open_openvino(shop.onnx, threads=threads)


def _int8(shop: Workshop, threads: int) -> Engine:
    return open_onnx(shop.int8, threads=threads)


def _merged(shop: Workshop, threads: int) -> Engine:
    return Merged(pack(shop.predictor.model), shop.merge).eval()


WAYS: dict[str, Way] = {
    "pytorch": Way(lambda shop, threads: None, exact=True),
    "compiled": Way(_compiled, exact=True),
    "onnxruntime": Way(_onnxruntime, exact=True),
    "openvino": Way(_openvino, exact=True),
    "merged": Way(_merged, exact=False),
    "int8": Way(_int8, exact=False),
}
"""Every way by its name, the reference first."""
