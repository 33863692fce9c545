"""Export: a model for other programs, checked against PyTorch on pictures before it is there."""

from __future__ import annotations

import errno
import io
import math
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram

from vitrail.config import InputError, suggest
from vitrail.deploy.engines import Run, need, open_onnx, open_openvino
from vitrail.deploy.graph import Deployed, Input, facts, other_size, quiet, trace
from vitrail.deploy.onnx_file import make_onnx, save_onnx
from vitrail.deploy.samples import Samples, take_samples
from vitrail.predictor import Predictor
from vitrail.writing import replacing

TOLERANCE = 1e-4
"""Largest difference of the logits from PyTorch's; of logits above 1, as a part of the largest."""
BATCHES = (1, 3, 8)
"""How many pictures at once an exported model is checked with."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What an exported model takes, and how it is made."""

    form: Input = "float"
    any_size: bool = False
    """Whether pictures may have any height and width that the patch divides."""
    aot: bool = False
    """Whether a pt2 is compiled ahead of time, for this kind of processor."""


@dataclass(frozen=True)
class Exported:
    """What was written, and how far its logits are from PyTorch's."""

    format: str
    files: tuple[Path, ...]
    max_difference: float
    sizes: tuple[str, ...]
    """The pictures' sizes that it was checked at."""
    pictures: str
    """What it was checked on."""


@dataclass(frozen=True)
class _Job:
    """All that a format's writer needs."""

    predictor: Predictor
    deployed: Deployed
    program: ExportedProgram
    options: Options

    @property
    def told(self) -> dict[str, str]:
        return facts(self.predictor, self.options.form)


def export(
    predictor: Predictor,
    out: Path,
    to: str,
    options: Options | None = None,
    *,
    data: str | None = None,
) -> Exported:
    """Write a model in another program's format; what answers otherwise is not left behind.

    It is checked on pictures of `data`, or on drawn ones.
    """
    options = options or Options()
    write = _find_writer(to, options)
    if predictor.device.type != "cpu":
        raise InputError("a model is exported from the processor; load it with device='cpu'")
    samples = take_samples(data, predictor.preprocess, count=max(BATCHES))
    deployed = Deployed(predictor, options.form).eval()
    with replacing(out) as part:  # first, so that what can't be written is known at once
        job = _Job(predictor, deployed, trace(deployed, any_size=options.any_size), options)
        try:
            run = write(job, part)
        except RuntimeError as error:  # in which OpenVINO wraps that a disk is full
            if _room_for(part, deployed):
                raise
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
        sizes = [predictor.preprocess.size]
        sizes += [other_size(deployed)] if options.any_size else []
        difference = max(_compare(deployed, run, samples, size) for size in sizes)
        if not difference <= TOLERANCE:
            raise InputError(
                f"{out} as {to} answers otherwise than PyTorch: by {difference:.1e} on "
                f"{samples.name}, more than {TOLERANCE:.0e}; nothing was written"
            )
    files = sorted(out.rglob("*")) if out.is_dir() else [out]
    shown = tuple(f"{height}x{width}" for height, width in sizes)
    return Exported(to, tuple(files), difference, shown, samples.name)


def _room_for(part: Path, deployed: Deployed) -> bool:
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


def _find_writer(to: str, options: Options) -> Callable[[_Job, Path], Run]:
    if to not in WRITERS:
        raise InputError(f"no format {to!r}; there are: {', '.join(WRITERS)}{suggest(to, WRITERS)}")
    if options.any_size and to not in ("onnx", "openvino"):
        raise InputError(f"--any-size is for onnx and openvino; {to} takes one size")
    if options.aot and to != "pt2":
        raise InputError(f"--aot compiles a pt2; {to} has its own ways")
    return WRITERS[to]


@torch.inference_mode()
def _compare(deployed: Deployed, run: Run, samples: Samples, size: tuple[int, int]) -> float:
    """Give the largest difference of logits, over batches of several lengths."""
    prepared = samples.prepare(size)
    worst = 0.0
    for count in BATCHES:
        given = deployed.arrange(prepared[:count])
        expected = deployed(given)
        found = run(given)
        scale = max(1.0, float(expected.abs().max()))
        if found.shape != expected.shape:
            raise InputError(f"the exported model gives {tuple(found.shape)}, not logits")
        worst = max(worst, float((found - expected).abs().max()) / scale)
    return worst


def _write_onnx(job: _Job, part: Path) -> Run:
    save_onnx(make_onnx(job.deployed, job.program, job.told), part)
    return open_onnx(part)


def _write_openvino(job: _Job, part: Path) -> Run:
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


def _write_pt2(job: _Job, part: Path) -> Run:
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

    def run(pictures: Tensor) -> Tensor:
        return loaded(pictures)

    return run


def _write_executorch(job: _Job, part: Path) -> Run:
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

    def run(pictures: Tensor) -> Tensor:
        return method.execute([pictures])[0]

    return run


WRITERS: dict[str, Callable[[_Job, Path], Run]] = {
    "onnx": _write_onnx,
    "openvino": _write_openvino,
    "pt2": _write_pt2,
    "executorch": _write_executorch,
}
"""The formats that a model can be exported in, by the word that `--to` takes."""
