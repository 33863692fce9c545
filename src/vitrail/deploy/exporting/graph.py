"""The graph that is exported: images in, logits out, with or without the normalizing inside."""

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
from vitrail.models.spec import Size
from vitrail.predictor import Predictor

Input = Literal["float", "uint8-nchw", "uint8-nhwc"]
"""What the graph takes: normalized images (batch, channels, height, width), or bytes from 0 to
255 of the same shape, or with the channels last."""

OUTPUT = "logits"


class ExportModule(nn.Module):
    """A model that takes images in one of the forms, of the model's size."""

    def __init__(self, predictor: Predictor, form: Input) -> None:
        super().__init__()
        self.model, self.form, self.preprocess = predictor.model, form, predictor.preprocess

    def forward(self, images: Tensor) -> Tensor:
        """Give the logits (batch, classes); without classes, the representation."""
        if self.form == "float":
            return self.model(images)
        last = images if self.form == "uint8-nhwc" else images.permute(0, 2, 3, 1)
        return self.model(normalize(last, self.preprocess))

    def arrange(self, prepared: Tensor) -> Tensor:
        """Bring prepared images, uint8 (n, height, width, channels), to the input's form."""
        if self.form == "uint8-nhwc":
            return prepared
        if self.form == "uint8-nchw":
            return prepared.permute(0, 3, 1, 2).contiguous()
        return normalize(prepared, self.preprocess)

    @property
    def input(self) -> str:
        """The input's name: what transformers calls it where it is normalized."""
        return "pixel_values" if self.form == "float" else "images"


def trace(deployed: ExportModule, *, any_size: bool = False) -> ExportedProgram:
    """Trace the graph for any number of images, and if asked for any size of them.

    Unless asked, it is the one they are prepared to, which may differ from that of the model's
    positions (DINOv2's).
    """
    height, width = deployed.preprocess.size
    batch = torch.export.Dim.DYNAMIC
    shape: dict[int, Any] = {0: batch}
    if any_size:
        # Traced at another size than its own, for which positions would not be resized at all.
        height, width = other_size(deployed)
        rows, columns = (1, 2) if deployed.form == "uint8-nhwc" else (2, 3)
        shape |= {rows: torch.export.Dim.DYNAMIC, columns: torch.export.Dim.DYNAMIC}
    channels = deployed.preprocess.channels
    example = deployed.arrange(torch.zeros(2, height, width, channels, dtype=torch.uint8))
    with quiet(), torch.no_grad():
        return torch.export.export(deployed.eval(), (example,), dynamic_shapes=(shape,))


def other_size(deployed: ExportModule) -> Size:
    """Give a size near the model's own that it takes as well, and that is no square."""
    spec = deployed.model.spec
    stride = getattr(spec, "stride", (32, 32))
    return spec.image[0] + stride[0], spec.image[1] + 2 * stride[1]


def facts(predictor: Predictor, form: Input) -> dict[str, str]:
    """Tell what a program needs to use an exported model, as text for a file's metadata."""
    classes = predictor.classes
    return {
        "vitrail.version": __version__,
        "vitrail.model": str(predictor.model.spec),
        "vitrail.input": form,
        "vitrail.preprocess": json.dumps(to_dict(predictor.preprocess)),
        "classes": json.dumps(None if classes is None else list(classes), ensure_ascii=False),
    }


@contextmanager
def quiet() -> Iterator[None]:
    """Keep the exporters' talk of deprecations and absent packages from the terminal."""
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
