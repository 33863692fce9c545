"""The peers that benchmarks/serve.py compares with: a timm model behind LitServe and FastAPI.

    python benchmarks/servers.py litserve WEIGHTS PORT

Each is what its documentation shows for a classifier, at its best on this machine: LitServe with
batches of 8 and a worker a core of one thread each, which is faster here than its default.
"""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import litserve
import torch
import uvicorn
from fastapi import FastAPI, UploadFile
from peers import mend_torchvision
from torch import Tensor

TOP = 5


class Classifier:
    """A timm model with its own preprocessing."""

    def __init__(self, weights: Path) -> None:
        mend_torchvision()
        import timm
        import timm.data

        architecture = json.loads((weights / "config.json").read_text())["architecture"]
        create: Any = timm.create_model
        path = str(weights / "model.safetensors")
        self.model: Any = create(architecture, checkpoint_path=path).eval()
        data: Any = timm.data
        self.transform: Any = data.create_transform(
            input_size=(3, 224, 224), interpolation="bicubic", crop_pct=0.9,
            mean=(0.5,) * 3, std=(0.5,) * 3,
        )  # fmt: skip

    def prepare(self, data: bytes) -> Tensor:
        """Decode and transform a file."""
        from PIL import Image

        return self.transform(Image.open(io.BytesIO(data)).convert("RGB"))

    def rank(self, images: Tensor) -> list[list[dict[str, float]]]:
        """Name the most likely classes of a batch."""
        with torch.inference_mode():
            found = self.model(images).softmax(-1).topk(TOP)
        rows = zip(found.indices.tolist(), found.values.tolist(), strict=True)
        return [
            [{"index": index, "probability": value} for index, value in zip(*row, strict=True)]
            for row in rows
        ]


def run_fastapi(weights: Path, port: int) -> None:
    """Serve the plain way: one process, a function that takes an upload, no batches."""
    classifier, app = Classifier(weights), FastAPI()

    @app.post("/predict")
    def predict(file: UploadFile) -> dict[str, Any]:
        image = classifier.prepare(file.file.read())
        return {"images": [{"top": classifier.rank(image[None])[0]}]}

    uvicorn.run(app, port=port, log_level="warning", access_log=False)


class Api(litserve.LitAPI):
    """A classifier as LitServe wants it; its worker processes get a copy each."""

    weights: Path

    def setup(self, device: Any) -> None:
        """Load the model."""
        torch.set_num_threads(1)
        self.classifier = Classifier(self.weights)

    def decode_request(self, request, **_: Any) -> Tensor:  # noqa: ANN001 (LitServe reads it)
        """Take the image out of a form."""
        return self.classifier.prepare(request["file"].file.read())

    def batch(self, inputs: list[Tensor]) -> Tensor:
        """Put images together."""
        return torch.stack(inputs)

    def predict(self, x: Tensor, **_: Any) -> Any:
        """Run the model."""
        return self.classifier.rank(x)

    def unbatch(self, output: Any) -> Any:
        """Take answers apart."""
        return output

    def encode_response(self, output: Any, **_: Any) -> dict[str, Any]:
        """Write an answer as ours is."""
        return {"images": [{"top": output}]}


def run_litserve(weights: Path, port: int) -> None:
    """Serve with LitServe's batching."""
    api = Api(max_batch_size=8, batch_timeout=0.005)
    api.weights = weights
    workers = len(os.sched_getaffinity(0))
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=workers)
    server.run(port=port, generate_client_file=False, log_level="warning")


if __name__ == "__main__":
    contestants = {"litserve": run_litserve, "fastapi": run_fastapi}
    contestants[sys.argv[1]](Path(sys.argv[2]), int(sys.argv[3]))
