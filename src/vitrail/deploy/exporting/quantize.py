"""Static int8 quantization: the ranges of activations are measured on the user's images.

The input of a matrix product is divided per channel and its weights are multiplied by the same
factors, so that channels with large values don't cost the others their precision (SmoothQuant,
arXiv 2211.10438). The output is float32 again. Weights take 7 bits: CPUs without VNNI (only AVX2)
add pairs of products in 16 bits, which 8 bits overflow, and a file may run on any CPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from vitrail.config import InputError
from vitrail.deploy.backends.engines import open_session
from vitrail.deploy.exporting.graph import ExportModule
from vitrail.deploy.exporting.onnx_file import drop_unused, replace_all

_BATCH = 2  # images per calibration run, which returns all activations
_SMOOTH = 0.7
"""How much of the activations' range moves into the weights (SmoothQuant's alpha): for ViT-Ti/16,
0.5 changes 10 % of the predictions, 0.6 to 0.75 change 7 %, none at all 12 %."""
_PEAK = 40.0
"""A product stays in float32 if its input's peak is more than this many times its root mean
square: ViT-Ti/16 has one at 75, which made 62 % of the logits' error, and no other above 21."""
_WEIGHT = 63  # the largest weight in 7 bits


@dataclass
class _InputRange:
    """The range of a product's input, per channel."""

    low: np.ndarray
    high: np.ndarray
    squares: np.ndarray
    rows: int

    def add(self, rows: np.ndarray) -> None:
        np.minimum(self.low, rows.min(0), out=self.low)
        np.maximum(self.high, rows.max(0), out=self.high)
        self.squares += np.square(rows, dtype=np.float64).sum(0)
        self.rows += len(rows)


def quantize_products(model: Any, module: ExportModule, prepared: Tensor) -> None:
    """Make a model's linear layers compute in int8, calibrated on prepared images.

    The head stays as it is: it sees one token per image, so there is nothing to gain.
    """
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    products = [
        node
        for node in model.graph.node
        if node.op_type == "MatMul"
        and node.input[1] in weights
        and len(weights[node.input[1]].dims) == 2  # a pruned last block multiplies per head
    ]
    if not products:
        raise InputError("the model has no linear layers to quantize to int8; use int8-weights")
    seen = _calibrate(model, {node.input[0] for node in products}, module, prepared)
    numbers = {node.output[0]: number for number, node in enumerate(products)}
    nodes: list[Any] = []
    for node in model.graph.node:
        made: list[Any] = []
        if (number := numbers.get(node.output[0])) is not None:
            weight = weights[node.input[1]]
            made = _quantize(model, node, weight, seen[node.input[0]], f"int8.{number}")
        nodes += made or [node]
    replace_all(model.graph.node, nodes)
    drop_unused(model)


def _calibrate(
    model: Any, names: Iterable[str], module: ExportModule, prepared: Tensor
) -> dict[str, _InputRange]:
    """Run a model on images, and measure the inputs of its products."""
    import onnx

    listening = type(model).FromString(model.SerializeToString())
    order = sorted(names)
    for name in order:
        info = onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)
        listening.graph.output.append(info)
    session = open_session(listening.SerializeToString())
    seen: dict[str, _InputRange] = {}
    for batch in prepared.split(_BATCH):
        given = {module.input_name: module.to_input(batch).numpy()}
        for name, values in zip(order, session.run(order, given), strict=True):
            rows = values.reshape(-1, values.shape[-1])
            if name not in seen:
                low, high = rows.min(0), rows.max(0)
                seen[name] = _InputRange(low, high, np.zeros(len(low)), 0)
            seen[name].add(rows)
    return seen


def _quantize(model: Any, node: Any, tensor: Any, seen: _InputRange, name: str) -> list[Any]:
    """Write a product in int8; nothing if peaks of its input would take all levels."""
    from onnx import TensorProto, helper, numpy_helper

    weight = numpy_helper.to_array(tensor)
    largest = np.maximum(np.maximum(-seen.low, seen.high), 1e-5)
    heaviest = np.maximum(np.abs(weight).max(1), 1e-5)
    smooth = (largest**_SMOOTH / heaviest ** (1 - _SMOOTH)).astype(np.float32)
    peak = (largest / smooth).max()
    if peak > _PEAK * np.sqrt((seen.squares / seen.rows / smooth**2).mean()):
        return []
    low = min(float((seen.low / smooth).min()), 0.0)
    high = max(float((seen.high / smooth).max()), 0.0)
    step = np.float32((high - low) / 255)
    smoothed = weight * smooth[:, None]
    steps = np.maximum(np.abs(smoothed).max(0) / _WEIGHT, np.finfo(np.float32).tiny)
    constants = {
        "smooth": 1 / smooth,
        "step": step,
        "zero": np.uint8(np.rint(-low / step)),
        "weight": np.rint(smoothed / steps).astype(np.int8),
        "steps": (steps * step).astype(np.float32),
    }
    for key, value in constants.items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(value), f"{name}.{key}"))

    def chain() -> Iterator[Any]:
        given, result = node.input[0], node.output[0]
        yield helper.make_node("Mul", [given, f"{name}.smooth"], [f"{name}.smoothed"])
        levels = [f"{name}.smoothed", f"{name}.step", f"{name}.zero"]
        yield helper.make_node("QuantizeLinear", levels, [f"{name}.levels"])
        factors = [f"{name}.levels", f"{name}.weight", f"{name}.zero"]
        yield helper.make_node("MatMulInteger", factors, [f"{name}.sums"])
        yield helper.make_node("Cast", [f"{name}.sums"], [f"{name}.floats"], to=TensorProto.FLOAT)
        yield helper.make_node("Mul", [f"{name}.floats", f"{name}.steps"], [result])

    return list(chain())
