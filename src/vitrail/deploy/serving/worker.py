"""A model process: it decodes images and runs models, and has no way to the network.

It is told what to do on its standard input and ends when that does. What a hostile image can
reach is this process: if it dies or hangs, the server starts another.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, BinaryIO

import torch
from torch import Tensor

from vitrail.config import InputError
from vitrail.data.decoding.decode import ImageError, Limits, read_header
from vitrail.deploy.backends.selection import select_backend
from vitrail.deploy.serving.attention_maps import explain
from vitrail.deploy.serving.similar import Similar
from vitrail.deploy.serving.wire import pack, read_frame
from vitrail.inspection.hooks import attention_layers
from vitrail.models import BiT
from vitrail.predictor import Predictor
from vitrail.predictor.batching_config import cores

BEAT = 0.5
"""Seconds between signs of life."""


class ResponseWriter:
    """Writes frames to the server, from two threads."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self._lock = stream, threading.Lock()

    def say(self, head: dict[str, Any], blobs: list[bytes] | None = None) -> None:
        """Write one frame."""
        with self._lock:
            for piece in pack(head, blobs or []):
                self._stream.write(piece)
            self._stream.flush()

    def beat(self) -> None:
        """Give signs of life for ever."""
        while True:
            try:
                self.say({"beat": True})
            except (OSError, ValueError):  # the server has gone
                os._exit(0)
            time.sleep(BEAT)


@dataclass(frozen=True)
class Served:
    """A model, and its index if it has one."""

    predictor: Predictor
    similar: Similar | None


def load_served(
    source: str, name: str, index: str | None, device: str | None, way: str = "pytorch"
) -> Served:
    """Load a model, and what it is served with; torch's threads are those of this process."""
    predictor = Predictor.load(source, device=device)
    similar = None if index is None else Similar(index, predictor)
    predictor.name = name  # clients need not know where it lies
    pace = replace(predictor.pace, workers=1, threads=torch.get_num_threads())
    found = select_backend(predictor, way, pace=pace, say=_say)
    if found is not predictor:
        _warm(found)
    return Served(found, similar)


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def _warm(predictor: Predictor) -> None:
    """Run a blank image on this process's threads and on all: an engine is made for either."""
    (height, width), before = predictor.preprocess.size, torch.get_num_threads()
    blank = torch.zeros(1, height, width, predictor.preprocess.channels, dtype=torch.uint8)
    for threads in (cores(), before):
        torch.set_num_threads(threads)
        predictor.run(blank)


def describe(served: Served) -> dict[str, Any]:
    """Say what a client may know of a model; never where it lies.

    The model runs once, so that the first client does not wait for what a first run takes.
    """
    predictor, similar = served.predictor, served.similar
    spec, (height, width) = predictor.model.spec, predictor.preprocess.size
    blank = torch.zeros(1, height, width, predictor.preprocess.channels, dtype=torch.uint8)
    layers = attention_layers(predictor.model)
    visible = layers and not isinstance(predictor.model, BiT)
    return {
        "model": spec.name,
        "classes": spec.classes,
        "features": predictor.run_features(blank).shape[1],
        "image": [height, width],
        "attention": {"layers": len(layers), "heads": layers[0].heads} if visible else None,
        "index": None if similar is None else len(similar),
    }


def answer_batch(
    served: Served, head: dict[str, Any], blobs: list[bytes], limits: Limits
) -> list[tuple[bool, Any]]:
    """Answer images of which the same is asked: whether it went well, and plain data or bytes."""
    predictor, work, options = served.predictor, head["work"], head["options"]
    if work == "thumbnail":
        assert served.similar is not None
        return [attempt(partial(served.similar.thumbnail, **asked)) for asked in options]
    if work == "attention":
        return [
            attempt(partial(explain, predictor, blob, limits, **asked))
            for blob, asked in zip(blobs, options, strict=True)
        ]
    answers: list[tuple[bool, Any] | None] = [_check(blob, limits) for blob in blobs]
    left = [place for place, answer in enumerate(answers) if answer is None]
    try:
        found = list(predictor.answers([blobs[p] for p in left], features=work != "predict"))
    except InputError as error:  # a model without classes
        return [(False, {"error": str(error), "kind": "impossible"})] * len(blobs)
    good: dict[int, Tensor] = {}
    for place, answer in zip(left, found, strict=True):
        if answer.output is None:
            assert answer.error is not None
            answers[place] = (False, _fault(answer.error))
        else:
            good[place] = answer.output
    tops = [options[place].get("top") for place in good]
    for place, told in zip(good, _tell(served, work, list(good.values()), tops), strict=True):
        answers[place] = (True, told)
    return [answer for answer in answers if answer is not None]


def _tell(served: Served, work: str, outputs: list[Tensor], tops: list[Any]) -> Iterable[Any]:
    """Say of each image's logits or features what was asked for."""
    if work == "embed":
        return ({"embedding": output.tolist()} for output in outputs)
    if work == "predict":
        ranked = (
            served.predictor.rank(output[None], top=top)[0]
            for output, top in zip(outputs, tops, strict=True)
        )
        return map(asdict, ranked)
    assert served.similar is not None
    if not outputs:
        return ()
    found = served.similar.find(torch.stack(outputs), max(tops))
    return ({"similar": row[:top]} for row, top in zip(found, tops, strict=True))


def attempt(call: Callable[[], Any]) -> tuple[bool, Any]:
    """Answer one image alone."""
    try:
        return True, call()
    except ImageError as error:
        return False, _fault(error)
    except InputError as error:
        return False, {"error": str(error), "kind": "impossible"}


def _check(blob: bytes, limits: Limits) -> tuple[bool, Any] | None:
    try:
        read_header(blob, limits)
    except ImageError as error:
        return False, _fault(error)
    return None


def _fault(error: ImageError) -> dict[str, str]:
    return {"error": str(error), "kind": error.kind}


def _encode(data: Any) -> bytes:
    return data if isinstance(data, bytes) else json.dumps(data, allow_nan=False).encode()


def _hush() -> None:
    """Keep what decoders say of clients' images out of the log, but not what Python says."""
    sys.stderr = os.fdopen(os.dup(2), "w", encoding="utf-8", errors="replace", buffering=1)
    silence = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(silence, stream)


def main() -> None:
    """Serve batches from standard input until it ends."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the server decides when this process ends
        signal.signal(number, signal.SIG_IGN)
    orders = os.fdopen(os.dup(0), "rb")
    voice = ResponseWriter(os.fdopen(os.dup(1), "wb"))
    os.dup2(2, 1)  # a library that prints must not speak to the server
    logging.getLogger("vitrail").setLevel(logging.ERROR)
    head, _ = read_frame(orders)
    limits = Limits(pixels=head["pixels"], bytes=head["bytes"])
    torch.set_num_threads(head["threads"])
    try:
        models = {
            name: load_served(source, name, head["indices"].get(name), head["device"], head["way"])
            for name, source in head["models"].items()
        }
        facts = {name: describe(served) for name, served in models.items()}
    except InputError as error:
        voice.say({"failed": str(error)})
        return
    micro = {name: served.predictor.pace.micro for name, served in models.items()}
    _hush()
    voice.say({"ready": facts, "micro": micro})
    threading.Thread(target=voice.beat, daemon=True).start()
    while True:
        try:
            head, blobs = read_frame(orders)
        except EOFError:
            return
        if torch.get_num_threads() != head["threads"]:
            torch.set_num_threads(head["threads"])
        try:
            answers = answer_batch(models[head["model"]], head, blobs, limits)
            texts = [_encode(data) for _, data in answers]
        except Exception:  # a fault of ours: it is told here, and clients learn only that it was
            traceback.print_exc(file=sys.stderr)
            voice.say({"broken": True})
            continue
        voice.say({"good": [good for good, _ in answers]}, texts)


if __name__ == "__main__":
    main()
