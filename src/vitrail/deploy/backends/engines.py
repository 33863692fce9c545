"""ONNX Runtime and OpenVINO as engines of a predictor."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrail.config import InputError
from vitrail.predictor.predictor import Engine

# Both would send usage data and leave files in HOME. ONNX Runtime reads this switch when it starts;
# without the package openvino_telemetry, OpenVINO uses a stub in its place.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
sys.modules.setdefault("openvino_telemetry", None)  # pyright: ignore[reportArgumentType]


def require_package(package: str, extra: str, *others: str) -> None:
    """Refuse in one line if optional packages are not installed; all that lack are named."""
    from importlib.util import find_spec

    missing = [each for each in (package, *others) if find_spec(each) is None]
    if missing:
        raise InputError(f"this needs {', '.join(missing)}: pip install {extra}")


def open_onnx(path: Path, *, threads: int = 1) -> Engine:
    """Open an ONNX file in ONNX Runtime; external data is refused."""
    _check_alone(path)
    try:
        session = open_session(str(path), threads=threads)
    except InputError:
        raise
    except Exception as error:  # its error types are not public
        raise InputError(f"{path}: ONNX Runtime can't open it: {first_line(error)}") from None
    name = session.get_inputs()[0].name

    def run(images: Tensor) -> Tensor:
        return torch.from_numpy(session.run(None, {name: images.numpy()})[0])

    return run


def open_session(model: str | bytes, *, threads: int = 1) -> Any:
    """Open our own ONNX file, or its bytes, in ONNX Runtime."""
    require_package("onnxruntime", "'vitrail[onnx]'")
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # Threads that spin while waiting would take the cores of others.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3  # errors; it warns about each unused constant
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def _check_alone(path: Path) -> None:
    """Refuse files that are not ONNX or that would make the runtime read other files."""
    require_package("onnx", "'vitrail[onnx]'")
    import onnx

    try:
        model = onnx.load(str(path), load_external_data=False)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except Exception:  # the parser's error types
        raise InputError(f"{path} is not an ONNX file, or is damaged") from None
    for tensor in _tensors(model.graph):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            place = next((e.value for e in tensor.external_data if e.key == "location"), "?")
            raise InputError(
                f"{path} stores {tensor.name!r} in another file, {place!r}; "
                "only ONNX models in one file are opened"
            )


def _tensors(graph: Any) -> Iterator[Any]:
    """Give every tensor of a graph: its weights and the constants of its nodes."""
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield sparse.values
        yield sparse.indices
    for node in graph.node:
        for attribute in node.attribute:
            yield attribute.t
            yield from attribute.tensors
            for inner in (attribute.g, *attribute.graphs):
                if inner.node or inner.initializer:
                    yield from _tensors(inner)


def open_openvino(path: Path, *, threads: int = 1, precision: str = "float32") -> Engine:
    """Open an ONNX or OpenVINO file in OpenVINO; it runs one batch at a time."""
    require_package("openvino", "'vitrail[openvino]'")
    import openvino

    if path.suffix == ".onnx":
        _check_alone(path)
    settings = {
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": {"float32": "f32", "bfloat16": "bf16"}[precision],
        "NUM_STREAMS": 1,
        "ENABLE_CPU_PINNING": False,  # several processes would share the first core
    }
    try:
        compiled = openvino.Core().compile_model(str(path), "CPU", settings)
    except RuntimeError as error:
        raise InputError(f"{path}: OpenVINO can't open it: {first_line(error)}") from None

    def run(images: Tensor) -> Tensor:
        request = compiled.create_infer_request()  # one per call, for several threads
        results = request.infer([images.numpy()])
        return torch.from_numpy(results[0].copy())

    return run


def first_line(error: Exception) -> str:
    """Shorten an engine's message, which may go on for pages."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:200] if lines else type(error).__name__
