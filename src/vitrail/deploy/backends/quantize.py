"""Int8 products by static calibration: ranges of activations are measured on the user's images.

What a product takes is divided channel by channel and its weights are multiplied by as much, so
that channels of large values don't cost the others their precision (SmoothQuant, arXiv
2211.10438). What comes out is float32 again. Weights take 7 bits: processors without VNNI (AVX2
alone) add pairs of products in 16 bits, which 8 bits overflow, and a file does not know where it
will run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from vitrail.config import InputError
from vitrail.deploy.backends.engines import need, open_session
from vitrail.deploy.exporting.graph import ExportModule
from vitrail.deploy.exporting.onnx_file import drop_unused, save_onnx

_TOGETHER = 2  # images that calibration runs at once, as all activations are looked at
_SMOOTH = 0.7
"""How much of the activations' unevenness goes over to the weights: of a ViT-Ti/16's answers 0.5
changes 10 %, 0.6 to 0.75 change 7 %, and without any 12 % are changed."""
_PEAK = 40.0
"""A product whose input's largest value is above so many times its root mean square stays in
float32: a ViT-Ti/16 has one at 75, which made 62 % of the logits' error, and none above 21 else."""
_WEIGHT = 63  # the largest weight, of 7 bits


@dataclass
class _Seen:
    """What went into a product, channel by channel."""

    low: np.ndarray
    high: np.ndarray
    squares: np.ndarray
    rows: int

    def add(self, rows: np.ndarray) -> None:
        np.minimum(self.low, rows.min(0), out=self.low)
        np.maximum(self.high, rows.max(0), out=self.high)
        self.squares += np.square(rows, dtype=np.float64).sum(0)
        self.rows += len(rows)


def quantize_onnx(source: Path, out: Path, deployed: ExportModule, prepared: Tensor) -> None:
    """Write an ONNX file with int8 products, calibrated on prepared images, as another."""
    need("onnx", "'vitrail[onnx]'")
    import onnx

    model = onnx.load(str(source))
    quantize_products(model, deployed, prepared)
    save_onnx(model, out)


def quantize_products(model: Any, deployed: ExportModule, prepared: Tensor) -> None:
    """Let a model's dense layers compute in int8, calibrated on prepared images.

    The head stays as it is: it sees one token of an image, so there is nothing to gain.
    """
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    products = [
        node for node in model.graph.node if node.op_type == "MatMul" and node.input[1] in weights
    ]
    if not products:
        raise InputError("the model has no dense layers that int8 makes faster; use int8-weights")
    seen = _calibrate(model, {node.input[0] for node in products}, deployed, prepared)
    numbers = {node.output[0]: number for number, node in enumerate(products)}
    nodes: list[Any] = []
    for node in model.graph.node:
        made: list[Any] = []
        if (number := numbers.get(node.output[0])) is not None:
            weight = weights[node.input[1]]
            made = _quantize(model, node, weight, seen[node.input[0]], f"int8.{number}")
        nodes += made or [node]
    copies = [type(node).FromString(node.SerializeToString()) for node in nodes]
    del model.graph.node[:]
    model.graph.node.extend(copies)
    drop_unused(model)


def _calibrate(
    model: Any, names: Iterable[str], deployed: ExportModule, prepared: Tensor
) -> dict[str, _Seen]:
    """Run a model on images, and look at what goes into its products."""
    import onnx

    listening = type(model).FromString(model.SerializeToString())
    order = sorted(names)
    for name in order:
        info = onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)
        listening.graph.output.append(info)
    session = open_session(listening.SerializeToString())
    seen: dict[str, _Seen] = {}
    for batch in prepared.split(_TOGETHER):
        given = {deployed.input: deployed.arrange(batch).numpy()}
        for name, values in zip(order, session.run(order, given), strict=True):
            rows = values.reshape(-1, values.shape[-1])
            if name not in seen:
                low, high = rows.min(0), rows.max(0)
                seen[name] = _Seen(low, high, np.zeros(len(low)), 0)
            seen[name].add(rows)
    return seen


def _quantize(model: Any, node: Any, tensor: Any, seen: _Seen, name: str) -> list[Any]:
    """Write a product in int8; nothing where its input has peaks that would take all levels."""
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
