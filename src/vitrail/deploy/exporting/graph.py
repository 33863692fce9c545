"""The graph that is exported: images in, logits out, with or without normalization inside."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from vitrail import __version__
from vitrail.config import to_dict
from vitrail.data.transforms.apply import normalize
from vitrail.evaluation.uncertainty.calibrate import features_and_logits
from vitrail.models.spec import Size
from vitrail.predictor import Predictor
from vitrail.text import to_json

Input = Literal["float", "uint8-nchw", "uint8-nhwc"]
"""What the graph takes: normalized images (batch, channels, height, width), or uint8 from 0 to 255
in the same layout, or with channels last."""

OUTPUT = "logits"


class ExportModule(nn.Module):
    """A model that takes images in one of the input formats."""

    def __init__(
        self, predictor: Predictor, input_format: Input, *, distance: bool = False
    ) -> None:
        """With `distance`, a calibrated model's logits are followed by that of the features."""
        super().__init__()
        self.doubts = predictor.doubts
        self.measured = distance and self.doubts.means is not None
        self.model, self.preprocess = predictor.model, predictor.preprocess
        self.input_format: Input = input_format

    def forward(self, images: Tensor) -> Tensor:
        """Compute the logits (batch, classes), or the features of a model without classes."""
        if self.input_format != "float":
            last = images if self.input_format == "uint8-nhwc" else images.permute(0, 2, 3, 1)
            images = normalize(last, self.preprocess)
        if not self.measured:
            return self.model(images)
        features, logits = features_and_logits(self.model, images)
        return torch.cat([logits, self.doubts.distance(features)[:, None]], 1)

    def to_input(self, prepared: Tensor) -> Tensor:
        """Convert prepared images, uint8 (n, height, width, channels), to the input format."""
        if self.input_format == "uint8-nhwc":
            return prepared
        if self.input_format == "uint8-nchw":
            return prepared.permute(0, 3, 1, 2).contiguous()
        return normalize(prepared, self.preprocess)

    @property
    def input_name(self) -> str:
        """The input's name; normalized, it is that of transformers."""
        return "pixel_values" if self.input_format == "float" else "images"


def trace(module: ExportModule, *, any_size: bool = False) -> ExportedProgram:
    """Trace the graph for any batch size, and optionally for any image size.

    Otherwise the size is that of preprocessing, which may differ from that of the position
    embedding (DINOv2).
    """
    height, width = module.preprocess.size
    batch = torch.export.Dim.DYNAMIC
    shape: dict[int, Any] = {0: batch}
    if any_size:
        # At its own size the position embedding would not be resized at all.
        height, width = other_size(module)
        rows, columns = (1, 2) if module.input_format == "uint8-nhwc" else (2, 3)
        shape |= {rows: torch.export.Dim.DYNAMIC, columns: torch.export.Dim.DYNAMIC}
    channels = module.preprocess.channels
    example = module.to_input(torch.zeros(2, height, width, channels, dtype=torch.uint8))
    with quiet(), torch.no_grad():
        return torch.export.export(module.eval(), (example,), dynamic_shapes=(shape,))


def other_size(module: ExportModule) -> Size:
    """Give a size near the model's own that it accepts too and that is not square."""
    spec = module.model.spec
    stride = getattr(spec, "stride", (32, 32))
    return spec.image[0] + stride[0], spec.image[1] + 2 * stride[1]


def export_metadata(predictor: Predictor, input_format: Input) -> dict[str, str]:
    """Describe an exported model to the programs that use it, as text."""
    classes, reading = predictor.classes, predictor.preprocess.reading
    return {
        "vitrail.version": __version__,
        "vitrail.model": str(predictor.model.spec),
        "vitrail.input": input_format,
        "vitrail.preprocess": json.dumps(to_dict(predictor.preprocess)),
        **({"vitrail.reading": reading.explain()} if reading else {}),
        "vitrail.activation": predictor.activation,
        "vitrail.temperature": json.dumps(predictor.temperature),
        "vitrail.thresholds": json.dumps(predictor.thresholds),
        "classes": to_json(None if classes is None else list(classes)),
    }


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the exporters' warnings about deprecations and missing packages."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "root")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
