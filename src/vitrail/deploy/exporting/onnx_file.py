"""ONNX: one file, for any batch size, with its metadata inside."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from vitrail.config import InputError
from vitrail.deploy.backends.engines import require_package
from vitrail.deploy.exporting.graph import OUTPUT, ExportModule, quiet

_LARGEST = 2**31 - 2**24
"""Bytes of weights that fit into one file, with room for the graph."""


def make_onnx(module: ExportModule, program: ExportedProgram, metadata: dict[str, str]) -> Any:
    """Convert a traced graph to an ONNX model, without external data."""
    require_package("onnx", "'vitrail[onnx]'")
    require_package("onnxscript", "'vitrail[onnx]'")
    size = sum(p.numel() * p.element_size() for p in module.parameters())
    if size > _LARGEST:
        raise InputError(
            f"{module.model.spec.name} has {size / 2**30:.1f} GiB of weights, but an ONNX file "
            "holds at most 2; use --to openvino or pt2"
        )
    with quiet(), torch.no_grad():  # as it was traced: with gradients, other kernels are chosen
        made = torch.onnx.export(
            program, (), input_names=[module.input_name], output_names=[OUTPUT], verbose=False
        )
    assert made is not None
    model = made.model_proto
    del model.graph.value_info[:]  # shapes that are wrong once something is quantized
    _drop_traces(model.graph)
    names = ("batch", "height", "width", "channels")
    order = (0, 1, 2, 3) if module.input_format == "uint8-nhwc" else (0, 3, 1, 2)
    for index, dimension in enumerate(model.graph.input[0].type.tensor_type.shape.dim):
        if dimension.dim_param:
            dimension.dim_param = names[order[index]]
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    for key, value in metadata.items():
        entry = model.metadata_props.add()
        entry.key, entry.value = key, value
    return model


def _drop_traces(graph: Any) -> None:
    """Remove where each node came from: a hundred lines each, with paths of this machine."""
    for part in (graph, *graph.node, *graph.input, *graph.output, *graph.initializer):
        del part.metadata_props[:]


def drop_unused(model: Any) -> None:
    """Remove the tensors that no node reads any more."""
    read = {name for node in model.graph.node for name in node.input}
    kept = [tensor for tensor in model.graph.initializer if tensor.name in read]
    replace_all(model.graph.initializer, kept)


def replace_all(field: Any, items: Iterable[Any]) -> None:
    """Replace a graph's nodes or tensors; some of the new ones may be the old ones."""
    copies = [type(item).FromString(item.SerializeToString()) for item in items]
    del field[:]
    field.extend(copies)


def save_onnx(model: Any, path: Path) -> None:
    """Write an ONNX model to one file."""
    path.write_bytes(model.SerializeToString())
