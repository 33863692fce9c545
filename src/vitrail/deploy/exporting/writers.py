"""The formats that a model is exported in: each a writer, which gives how the file is run."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.export import ExportedProgram

from vitrail.config import InputError
from vitrail.deploy.backends.engines import Run, need, open_onnx, open_openvino
from vitrail.deploy.backends.quantize import quantize_products
from vitrail.deploy.exporting.graph import ExportModule, Input, facts, quiet
from vitrail.deploy.exporting.onnx_file import make_onnx, save_onnx
from vitrail.deploy.exporting.packing import Packing, pack_weights
from vitrail.deploy.exporting.samples import Samples
from vitrail.deploy.exporting.web import write_page
from vitrail.predictor import Predictor

Quantize = Literal["int8"] | Packing
"""Products in int8, or only weights that are kept in fewer bits."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What an exported model takes, and how it is made."""

    form: Input = "float"
    any_size: bool = False
    """Whether images may have any height and width that the patch divides."""
    aot: bool = False
    """Whether a pt2 is compiled ahead of time, for this kind of processor."""
    quantize: Quantize | None = None
    """How an onnx gets smaller; a page's gets the smallest weights that answer as PyTorch does."""
    loss: float = 0.01
    """Part of the images that may get another answer from a quantized model."""
    images: int = 256
    """How many of them a quantized model is checked on."""
    runtime: Path | None = None
    """A folder with the files of onnxruntime-web; npm gets them where none is given."""

    def __post_init__(self) -> None:
        if not 0 <= self.loss < 1 or self.images < 1:
            raise InputError(
                f"loss {self.loss}, images {self.images}: expected 0 <= loss < 1, and one "
                "image or more"
            )


@dataclass(frozen=True)
class ExportContext:
    """All that a format's writer needs."""

    predictor: Predictor
    deployed: ExportModule
    program: ExportedProgram
    options: Options
    runtime: dict[str, bytes]
    """The files that run a page's model."""
    calibration: Samples | None

    @property
    def told(self) -> dict[str, str]:
        """What the file says of itself."""
        return facts(self.predictor, self.options.form)


def _write_onnx(job: ExportContext, part: Path) -> Run:
    model = make_onnx(job.deployed, job.program, job.told)
    quantize = job.options.quantize
    if quantize == "int8":
        assert job.calibration is not None
        quantize_products(model, job.deployed, job.calibration.prepare())
    elif quantize is not None:
        pack_weights(model, quantize)
    save_onnx(model, part)
    return open_onnx(part)


def _write_web(job: ExportContext, part: Path) -> Run:
    part.mkdir()
    run = _write_onnx(job, part / "model.onnx")
    write_page(job.predictor, part, job.runtime)
    return run


def _write_openvino(job: ExportContext, part: Path) -> Run:
    need("openvino", "'vitrail[openvino]'")
    import openvino

    part.mkdir()
    draft = part / "model.onnx"
    save_onnx(make_onnx(job.deployed, job.program, job.told), draft)
    model = openvino.convert_model(draft)
    draft.unlink()
    for key, value in job.told.items():
        model.set_rt_info(value, key.split("."))
    openvino.save_model(model, part / "model.xml", compress_to_fp16=False)
    return open_openvino(part / "model.xml")


def _write_pt2(job: ExportContext, part: Path) -> Run:
    told = {f"{key}.json" if key == "classes" else key: text for key, text in job.told.items()}
    with quiet():
        if not job.options.aot:
            # In memory first: torch's own writer aborts the process when a disk is full.
            torch.export.save(job.program, buffer := io.BytesIO(), extra_files=told)
            part.write_bytes(buffer.getbuffer())
            return torch.export.load(part).module()
        return _compile_pt2(job.program, part)


def _compile_pt2(program: ExportedProgram, part: Path) -> Run:
    """Compile a graph to machine code, packed into one file."""
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        raise InputError(f"--aot compiles C++ and finds no {compiler}; install it, or set CXX")
    inductor: Any = torch._inductor
    inductor.aoti_compile_and_package(program, package_path=str(part))
    loaded = inductor.aoti_load_package(str(part))

    def run(images: Tensor) -> Tensor:
        return loaded(images)

    return run


def _write_executorch(job: ExportContext, part: Path) -> Run:
    need("executorch", "executorch")
    from importlib import import_module

    exir: Any = import_module("executorch.exir")
    xnnpack: Any = import_module("executorch.backends.xnnpack.partition.xnnpack_partitioner")
    runtime: Any = import_module("executorch.runtime")
    lowered = exir.to_edge_transform_and_lower(
        job.program, partitioner=[xnnpack.XnnpackPartitioner()]
    )
    part.write_bytes(lowered.to_executorch().buffer)
    method = runtime.Runtime.get().load_program(part).load_method("forward")

    def run(images: Tensor) -> Tensor:
        return method.execute([images])[0]

    return run


WRITERS: dict[str, Callable[[ExportContext, Path], Run]] = {
    "onnx": _write_onnx,
    "openvino": _write_openvino,
    "pt2": _write_pt2,
    "executorch": _write_executorch,
    "web": _write_web,
}
"""The formats that a model can be exported in, by the word that `--to` takes."""
