"""Other programs that run an exported model: ONNX Runtime and OpenVINO, as a predictor's engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrail.config import InputError

Run = Callable[[Tensor], Tensor]


def need(package: str, extra: str) -> None:
    """Refuse in one line where a package that is no part of the core is not installed."""
    from importlib.util import find_spec

    if find_spec(package) is None:
        raise InputError(f"this needs {package}: pip install {extra}")


def open_onnx(path: Path, *, threads: int = 1) -> Run:
    """Open an ONNX file in ONNX Runtime; one that takes its weights from other files is refused."""
    need("onnxruntime", "'vitrail[onnx]'")
    import onnxruntime

    _check_alone(path)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # others compute too
    options.log_severity_level = 3  # errors; it warns of each unused constant
    try:
        session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:  # of its own types, none of them public
        raise InputError(f"{path}: ONNX Runtime can't open it: {_first_line(error)}") from None
    name = session.get_inputs()[0].name

    def run(images: Tensor) -> Tensor:
        return torch.from_numpy(session.run(None, {name: images.numpy()})[0])

    return run


def open_session(model: str | bytes, *, threads: int = 1) -> Any:
    """Open an ONNX file of our own, or its bytes, in ONNX Runtime."""
    need("onnxruntime", "'vitrail[onnx]'")
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3  # errors; it warns of each unused constant
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def _check_alone(path: Path) -> None:
    """Refuse what is no ONNX file, and one that would have the runtime read other files."""
    need("onnx", "'vitrail[onnx]'")
    import onnx

    try:
        model = onnx.load(str(path), load_external_data=False)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except Exception:  # the parser's own types
        raise InputError(f"{path} is no ONNX file, or a damaged one") from None
    for tensor in _tensors(model.graph):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            place = next((e.value for e in tensor.external_data if e.key == "location"), "?")
            raise InputError(
                f"{path} keeps {tensor.name!r} in another file, {place!r}; "
                "only ONNX in one file is opened"
            )


def _tensors(graph: Any) -> Iterator[Any]:
    """Give every tensor that a graph holds: its weights, and the constants of its nodes."""
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


def open_openvino(path: Path, *, threads: int = 1) -> Run:
    """Open an ONNX file or OpenVINO's own in OpenVINO, in float32; it runs a batch at a time."""
    need("openvino", "'vitrail[openvino]'")
    import openvino

    if path.suffix == ".onnx":
        _check_alone(path)
    settings = {
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": "f32",
        "NUM_STREAMS": 1,
        "ENABLE_CPU_PINNING": False,  # several processes would share the first core
    }
    try:
        compiled = openvino.Core().compile_model(str(path), "CPU", settings)
    except RuntimeError as error:
        raise InputError(f"{path}: OpenVINO can't open it: {_first_line(error)}") from None

    def run(images: Tensor) -> Tensor:
        request = compiled.create_infer_request()  # its own, as several threads may call
        results = request.infer([images.numpy()])
        return torch.from_numpy(results[0].copy())

    return run


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:200] if lines else type(error).__name__
