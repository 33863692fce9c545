"""Int8 by static calibration: ranges of activations are measured on the user's pictures.

Processors without VNNI (AVX2 alone) add pairs of products in 16 bits, which overflow when weights
take 8 bits: there they take 7 (`reduce_range`).
"""

from __future__ import annotations

import io
import platform
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from vitrail.deploy.engines import need
from vitrail.deploy.graph import Deployed, quiet

_TOGETHER = 8  # pictures that calibration runs at once


def quantize_onnx(source: Path, out: Path, deployed: Deployed, prepared: Tensor) -> None:
    """Write an ONNX file with int8 products, calibrated on prepared pictures, as another."""
    need("onnxruntime", "'vitrail[onnx]'")
    import onnx
    from onnxruntime import quantization

    model = onnx.load(str(source))
    weights = {tensor.name for tensor in model.graph.initializer}
    products = [node for node in model.graph.node if node.op_type in ("MatMul", "Gemm")]
    with quiet(), redirect_stdout(io.StringIO()):
        quantization.quantize_static(
            model,
            str(out),
            _reader(quantization.CalibrationDataReader, deployed, prepared),
            # Not QDQ: ONNX Runtime 1.31 fuses that to wrong products on AVX2 with unsigned inputs.
            quant_format=quantization.QuantFormat.QOperator,
            nodes_to_quantize=[node.name for node in products if node.input[1] in weights],
            per_channel=True,
            reduce_range=needs_reduced_range(),
            activation_type=quantization.QuantType.QUInt8,
            weight_type=quantization.QuantType.QInt8,
            calibrate_method=quantization.CalibrationMethod.Percentile,
            extra_options={"CalibPercentile": 99.99},
        )


def _reader(base: type, deployed: Deployed, prepared: Tensor) -> Any:
    """Make what hands calibration its batches, one after the other."""

    def batches() -> Iterator[dict[str, np.ndarray]]:
        for part in prepared.split(_TOGETHER):
            yield {deployed.input: deployed.arrange(part).numpy()}

    ready = batches()

    class Reader(base):
        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(ready, None)

    return Reader()


def needs_reduced_range() -> bool:
    """Tell whether int8 products overflow here: on x86 without VNNI, or where that isn't known."""
    if platform.machine().lower() not in ("x86_64", "amd64", "i686"):
        return False
    info = Path("/proc/cpuinfo")
    return not info.exists() or "vnni" not in info.read_text()
