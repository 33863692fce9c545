"""A model process: it decodes images and runs models, without any access to the network.

It gets its work on standard input and ends when that is closed. A hostile image can only reach this
process: if it dies or hangs, the server starts another.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, BinaryIO

import numpy as np
import torch

from vitrail.config import InputError
from vitrail.console import log_line
from vitrail.data.decoding.decode import ImageError, Limits, read_header
from vitrail.deploy.backends.backends import REFERENCE
from vitrail.deploy.backends.selection import (
    PrecisionChoice,
    check_backend,
    check_calibration,
    select_backend,
    select_precision,
)
from vitrail.deploy.serving.attention_maps import attention_response
from vitrail.deploy.serving.frames import pack_frame, read_frame
from vitrail.deploy.serving.similarity_index import SimilarityIndex
from vitrail.inspection.hooks import attention_layers
from vitrail.machine import available_cores
from vitrail.models import BiT
from vitrail.predictor import Prediction, Predictor
from vitrail.predictor.batching_config import keep_threads
from vitrail.text import to_json

HEARTBEAT = 0.5
"""Seconds between heartbeats."""
_TEST_IMAGE = (48, 64)  # height and width
_COSTLY = ("WEBP", "AVIF")  # formats whose decoders take twice the memory per pixel


class ResponseWriter:
    """Writes frames to the server, from two threads."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self._lock = stream, threading.Lock()

    def write(self, head: dict[str, Any], blobs: list[bytes] | None = None) -> None:
        """Write one frame."""
        with self._lock:
            for piece in pack_frame(head, blobs or []):
                self._stream.write(piece)
            self._stream.flush()

    def send_heartbeats(self) -> None:
        """Write heartbeats until the server is gone."""
        while True:
            try:
                self.write({"heartbeat": True})
            except (OSError, ValueError):
                os._exit(0)
            time.sleep(HEARTBEAT)


@dataclass(frozen=True)
class ServedModel:
    """A model, and its index if it has one."""

    predictor: Predictor
    similar: SimilarityIndex | None


def load_model(
    source: str,
    name: str,
    index: str | None,
    device: str | None,
    backend: str = "pytorch",
    precision: PrecisionChoice = "float32",
    data: str | None = None,
    unsure: float | None = None,
) -> ServedModel:
    """Load a model and its index; torch's threads are those of this process."""
    check_backend(backend)
    check_calibration(precision, backend, data)
    predictor = Predictor.load(source, device=device, unsure=unsure)
    similar = None if index is None else SimilarityIndex(index, predictor)
    predictor.name = name  # clients need not know where it is
    batching = replace(predictor.batching, workers=1, threads=torch.get_num_threads())
    predictor = select_backend(
        predictor, backend, batching=batching, precision=precision, log=log_line
    )
    if backend == REFERENCE:
        predictor = select_precision(predictor, precision, data, log=log_line)
    return ServedModel(predictor, similar)


def describe_model(served: ServedModel) -> dict[str, Any]:
    """Describe a model to clients, once it has predicted a test image.

    Each engine is made now, not for the first client: for this process's threads, and for all.
    """
    predictor, similar = served.predictor, served.similar
    spec, own = predictor.model.spec, torch.get_num_threads()
    pixels = np.zeros((*_TEST_IMAGE, predictor.preprocess.channels), np.uint8)
    try:
        with keep_threads():
            for threads in (available_cores(), own):
                torch.set_num_threads(threads)
                features = predictor.embed(pixels)
                if spec.classes:
                    predictor.predict(pixels)
    except Exception as error:  # whatever its files lead to
        reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise InputError(f"{predictor.name} can't predict a test image: {reason}") from error
    layers = attention_layers(predictor.model)
    visible = layers and not isinstance(predictor.model, BiT)
    return {
        "model": spec.name,
        "classes": spec.classes,
        "targets": None if predictor.targets is None else list(predictor.targets),
        "features": len(features),
        "image": list(predictor.preprocess.size),
        "fit": predictor.preprocess.fit,
        "crop": predictor.preprocess.crop,
        "attention": {"layers": len(layers), "heads": layers[0].heads} if visible else None,
        "index": None if similar is None else len(similar),
    }


def run_batch(
    served: ServedModel, head: dict[str, Any], blobs: list[bytes], limits: Limits
) -> list[tuple[bool, Any]]:
    """Run one operation on images: for each, whether it succeeded, and plain data or bytes."""
    predictor, operation, options = served.predictor, head["operation"], head["options"]
    if operation == "thumbnail":
        assert served.similar is not None
        return [_attempt(partial(served.similar.thumbnail, **each)) for each in options]
    if operation == "attention":
        return [
            _check(blob, limits, predictor)
            or _attempt(partial(attention_response, predictor, blob, **each))
            for blob, each in zip(blobs, options, strict=True)
        ]
    results = {index: _check(blob, limits, predictor) for index, blob in enumerate(blobs)}
    left = [index for index, result in results.items() if result is None]
    tops = [options[index].get("top") for index in left]
    try:
        found = _compute(served, operation, [blobs[index] for index in left], tops)
    except InputError as error:  # a model without classes
        return [(False, {"error": str(error), "kind": "impossible"})] * len(blobs)
    results |= dict(zip(left, found, strict=True))
    return [result for result in results.values() if result is not None]


def _compute(
    served: ServedModel, operation: str, blobs: list[bytes], tops: list[Any]
) -> list[tuple[bool, Any]]:
    """Predict, embed or compare images whose headers are good."""
    predictor, similar = served.predictor, served.similar
    if operation == "predict":
        predictions = predictor.predictions(blobs, top=max(tops, default=1))
        return [_predicted(*pair) for pair in zip(predictions, tops, strict=True)]
    outputs = list(predictor.outputs(blobs, features=True))
    features = [output.values for output in outputs if output.values is not None]
    if operation == "embed":
        found = iter([{"embedding": row.tolist()} for row in features])
    else:
        assert similar is not None
        rows = similar.find(torch.stack(features), max(tops)) if features else []
        found = iter([{"similar": row} for row in rows])
    results: list[tuple[bool, Any]] = []
    for output, top in zip(outputs, tops, strict=True):
        if output.error is not None:
            results.append((False, _fault(output.error)))
        else:
            results.append((True, {key: values[:top] for key, values in next(found).items()}))
    return results


def _predicted(prediction: Prediction, top: int) -> tuple[bool, Any]:
    """Give one image's classes; a batch has requests for other numbers of them too."""
    if prediction.error is not None:
        return False, {"error": prediction.error, "kind": prediction.error_kind}
    kept = [s for index, s in enumerate(prediction.top) if index < top or s.predicted]
    data = replace(prediction, top=tuple(kept)).to_dict()
    del data["path"]
    return True, data


def _attempt(call: Callable[[], Any]) -> tuple[bool, Any]:
    """Run an operation on one image."""
    try:
        return True, call()
    except ImageError as error:
        return False, _fault(error)
    except InputError as error:
        return False, {"error": str(error), "kind": "impossible"}


def _check(blob: bytes, limits: Limits, predictor: Predictor) -> tuple[bool, Any] | None:
    """Refuse an image by its header."""
    try:
        header = read_header(blob, replace(limits, tifffile=False))
        if header.needs_tifffile(predictor.preprocess.channels):
            text = "multispectral TIFFs are not served; send the array as a .npy file"
            raise ImageError(text, "unsupported format")
        if header.format in _COSTLY:
            replace(limits, pixels=limits.pixels // 2).check_pixels(header.height, header.width)
    except ImageError as error:
        return False, _fault(error)
    return None


def _fault(error: ImageError) -> dict[str, str]:
    return {"error": str(error), "kind": error.kind}


def _encode(data: Any) -> bytes:
    return data if isinstance(data, bytes) else to_json(data).encode()


def _silence_decoders() -> None:
    """Keep what decoders print about clients' images out of the log, but not what Python prints."""
    sys.stderr = os.fdopen(os.dup(2), "w", encoding="utf-8", errors="replace", buffering=1)
    silence = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(silence, stream)


def main() -> None:
    """Run batches from standard input until it is closed."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the server decides when this process ends
        signal.signal(number, signal.SIG_IGN)
    stream = os.fdopen(os.dup(0), "rb")
    writer = ResponseWriter(os.fdopen(os.dup(1), "wb"))
    os.dup2(2, 1)  # a library that prints must not write to the server
    logging.getLogger("vitrail").setLevel(logging.ERROR)
    head, _ = read_frame(stream)
    limits = Limits(pixels=head["pixels"], bytes=head["bytes"])
    torch.set_num_threads(head["threads"])
    try:
        models = {
            name: load_model(
                source,
                name,
                head["indices"].get(name),
                head["device"],
                head["backend"],
                head["precision"],
                head["data"],
                head["unsure"],
            )
            for name, source in head["models"].items()
        }
        info = {name: describe_model(served) for name, served in models.items()}
    except InputError as error:
        writer.write({"failed": str(error)})
        return
    batch_size = {name: served.predictor.batching.batch_size for name, served in models.items()}
    _silence_decoders()
    writer.write({"ready": info, "batch_size": batch_size})
    threading.Thread(target=writer.send_heartbeats, daemon=True).start()
    while True:
        try:
            head, blobs = read_frame(stream)
        except EOFError:
            return
        if torch.get_num_threads() != head["threads"]:
            torch.set_num_threads(head["threads"])
        try:
            results = run_batch(models[head["model"]], head, blobs, limits)
            texts = [_encode(data) for _, data in results]
        except Exception:  # our fault: logged here, and clients only learn that it happened
            traceback.print_exc(file=sys.stderr)
            writer.write({"failed_batch": True})
            continue
        writer.write({"good": [good for good, _ in results]}, texts)


if __name__ == "__main__":
    main()
