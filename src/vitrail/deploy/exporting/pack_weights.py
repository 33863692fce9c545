"""Small files: weights are stored in 8 or 16 bits, and everything is computed in float32 as before.

Cast and Mul turn them into float32, which runtimes do once, when they open the file.
DequantizeLinear would be the obvious operator, but before a MatMul ONNX Runtime 1.31 rounds the
activations too: twice as many predictions of a ViT-Ti/16 changed.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from vitrail.deploy.exporting.onnx_file import drop_unused, replace_all

Packing = Literal["int8-weights", "float16-weights"]

_SMALL = 4096  # tensors with fewer values stay as they are
_BLOCK = 32
"""Weights per scale: fewer are more exact and take more room."""
_LEAST = np.float16(2**-24)  # the smallest scale in float16


def pack_weights(model: Any, packing: Packing) -> None:
    """Store large tensors in float16, and with `int8-weights` those of matrix products in int8."""
    from onnx import TensorProto

    inputs_last = {"Gemm", "Conv"}
    products = {
        node.input[1]: node.op_type in inputs_last
        for node in model.graph.node
        if node.op_type == "MatMul" or node.op_type in inputs_last
    }
    made: list[Any] = []
    for tensor in list(model.graph.initializer):
        if tensor.data_type != TensorProto.FLOAT or np.prod(tensor.dims) < _SMALL:
            continue
        if packing == "int8-weights" and tensor.name in products:
            made += _pack_blocks(model, tensor, inputs_last=products[tensor.name])
        else:
            made += _pack_halves(model, tensor)
    replace_all(model.graph.node, [*made, *model.graph.node])
    drop_unused(model)


def _pack_halves(model: Any, tensor: Any) -> list[Any]:
    from onnx import TensorProto, helper, numpy_helper

    values = numpy_helper.to_array(tensor)
    if np.abs(values).max() > np.finfo(np.float16).max:
        return []
    name, tensor.name = tensor.name, f"{tensor.name}.whole"
    _add(model, f"{name}.half", values.astype(np.float16))
    return [helper.make_node("Cast", [f"{name}.half"], [name], to=TensorProto.FLOAT)]


def _pack_blocks(model: Any, tensor: Any, *, inputs_last: bool) -> list[Any]:
    """Store a tensor as int8 levels with one scale per block of an output's inputs."""
    from onnx import TensorProto, helper, numpy_helper

    values = numpy_helper.to_array(tensor)
    outputs = values.shape[0] if inputs_last else values.shape[1]
    inputs = values.size // outputs
    block = _BLOCK if inputs % _BLOCK == 0 else inputs
    shape, axis = ((outputs, -1, block), 2) if inputs_last else ((-1, block, outputs), 1)
    blocks = values.reshape(shape)
    scales = (np.abs(blocks).max(axis, keepdims=True) / 127).astype(np.float16)
    scales = np.maximum(scales, _LEAST)
    levels = np.rint(blocks / scales.astype(np.float32)).clip(-127, 127).astype(np.int8)
    name, tensor.name = tensor.name, f"{tensor.name}.whole"
    _add(model, f"{name}.levels", levels)
    _add(model, f"{name}.scales", scales)
    _add(model, f"{name}.shape", np.array(values.shape, np.int64))
    to = TensorProto.FLOAT
    return [
        helper.make_node("Cast", [f"{name}.levels"], [f"{name}.floats"], to=to),
        helper.make_node("Cast", [f"{name}.scales"], [f"{name}.factors"], to=to),
        helper.make_node("Mul", [f"{name}.floats", f"{name}.factors"], [f"{name}.blocks"]),
        helper.make_node("Reshape", [f"{name}.blocks", f"{name}.shape"], [name]),
    ]


def _add(model: Any, name: str, values: np.ndarray) -> None:
    from onnx import numpy_helper

    model.graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(values), name))
