"""Export formats: each is a writer that returns how its file is run."""

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
from vitrail.deploy.backends.engines import (
    first_line,
    open_onnx,
    open_openvino,
    require_package,
)
from vitrail.deploy.exporting.graph import ExportModule, Input, export_metadata, quiet
from vitrail.deploy.exporting.onnx_file import make_onnx, save_onnx
from vitrail.deploy.exporting.pack_weights import Packing, pack_weights
from vitrail.deploy.exporting.quantize import quantize_products
from vitrail.deploy.exporting.samples import Samples
from vitrail.deploy.exporting.web_export import write_page
from vitrail.predictor import Predictor
from vitrail.predictor.predictor import Engine

Quantize = Literal["int8"] | Packing
"""Matrix products in int8, or only weights stored in fewer bits."""


@dataclass(frozen=True, kw_only=True)
class ExportConfig:
    """What an exported model takes, and how it is made."""

    input: Input = "float"
    any_size: bool = False
    """Whether images may have any height and width that are multiples of the patch size."""
    aot: bool = False
    """Whether a pt2 is compiled ahead of time for this kind of CPU."""
    quantize: Quantize | None = None
    """How an ONNX file gets smaller; None chooses the smallest good one for a web page."""
    max_changed: float = 0.01
    """Largest fraction of images whose top-1 quantization may change."""
    images: int = 256
    """Number of images that a quantized model is checked on."""
    runtime: Path | None = None
    """A folder with the files of onnxruntime-web; npm downloads them if not given."""

    def __post_init__(self) -> None:
        if not 0 <= self.max_changed < 1:
            raise InputError(f"max_changed must be in [0, 1), got {self.max_changed}")
        if self.images < 1:
            raise InputError(f"images must be at least 1, got {self.images}")


@dataclass(frozen=True)
class ExportContext:
    """What a writer needs."""

    predictor: Predictor
    module: ExportModule
    program: ExportedProgram
    config: ExportConfig
    runtime: dict[str, bytes]
    """The files of onnxruntime-web, for a page."""
    calibration: Samples | None

    @property
    def metadata(self) -> dict[str, str]:
        """What the file says about itself."""
        return export_metadata(self.predictor, self.config.input)


def _write_onnx(context: ExportContext, part: Path) -> Engine:
    model = make_onnx(context.module, context.program, context.metadata)
    quantize = context.config.quantize
    if quantize == "int8":
        assert context.calibration is not None
        quantize_products(model, context.module, context.calibration.inputs())
    elif quantize is not None:
        pack_weights(model, quantize)
    save_onnx(model, part)
    return open_onnx(part)


def _write_web(context: ExportContext, part: Path) -> Engine:
    part.mkdir()
    run = _write_onnx(context, part / "model.onnx")
    write_page(context.predictor, part, context.runtime)
    return run


def _write_openvino(context: ExportContext, part: Path) -> Engine:
    import openvino

    part.mkdir()
    draft = part / "model.onnx"
    save_onnx(make_onnx(context.module, context.program, context.metadata), draft)
    model = openvino.convert_model(draft)
    draft.unlink()
    for key, value in context.metadata.items():
        model.set_rt_info(value, key.split("."))
    try:
        openvino.save_model(model, part / "model.xml", compress_to_fp16=False)
    except RuntimeError as error:  # e.g. for a full disk
        reason = first_line(error)
        raise InputError(
            f"{part.name}: cannot be written by OpenVINO ({reason}); is the disk full?"
        ) from None
    return open_openvino(part / "model.xml")


def _write_pt2(context: ExportContext, part: Path) -> Engine:
    metadata = {
        f"{key}.json" if key == "classes" else key: text for key, text in context.metadata.items()
    }
    with quiet():
        if not context.config.aot:
            # In memory first: torch's writer aborts the process when the disk is full.
            torch.export.save(context.program, buffer := io.BytesIO(), extra_files=metadata)
            part.write_bytes(buffer.getbuffer())
            with part.open("rb") as file:  # by its name it would have to end in .pt2
                return torch.export.load(file).module()
        return _compile_pt2(context.program, part)


def _compile_pt2(program: ExportedProgram, part: Path) -> Engine:
    """Compile a graph to machine code in one file."""
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        raise InputError(
            f"--aot needs a C++ compiler, but there is no {compiler}; install it, or set CXX"
        )
    inductor: Any = torch._inductor
    inductor.aoti_compile_and_package(program, package_path=str(part))
    loaded = inductor.aoti_load_package(str(part))

    def run(images: Tensor) -> Tensor:
        return loaded(images)

    return run


def _write_executorch(context: ExportContext, part: Path) -> Engine:
    from importlib import import_module

    exir: Any = import_module("executorch.exir")
    xnnpack: Any = import_module("executorch.backends.xnnpack.partition.xnnpack_partitioner")
    runtime: Any = import_module("executorch.runtime")
    lowered = exir.to_edge_transform_and_lower(
        context.program, partitioner=[xnnpack.XnnpackPartitioner()]
    )
    part.write_bytes(lowered.to_executorch().buffer)
    method = runtime.Runtime.get().load_program(part).load_method("forward")

    def run(images: Tensor) -> Tensor:
        return method.execute([images])[0]

    return run


WRITERS: dict[str, Callable[[ExportContext, Path], Engine]] = {
    "onnx": _write_onnx,
    "openvino": _write_openvino,
    "pt2": _write_pt2,
    "executorch": _write_executorch,
    "web": _write_web,
}
"""The export formats, by the names that `--to` takes."""

_ONNX = ("onnx", "'vitrail[onnx]'", "onnxscript", "onnxruntime")
_NEEDS = {
    "onnx": _ONNX,
    "openvino": ("onnx", "'vitrail[onnx,openvino]'", "onnxscript", "openvino"),
    "executorch": ("executorch", "executorch"),
    "web": _ONNX,
}
"""What a format needs, and what to install for it."""


def require_writer(to: str) -> None:
    """Refuse a format that packages are missing for, and name all of them."""
    if to in _NEEDS:
        require_package(*_NEEDS[to])
