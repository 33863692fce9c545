"""`vitrail serve` with model processes that finish no batch until a file appears.

python tests/deploy/gated_worker.py serve MODEL … is called as `python -m vitrail serve …` is.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from vitrail.deploy.serving import process
from vitrail.deploy.serving.frames import pack_frame, read_frame

BATCH = 8
FACTS = {
    "model": "gated",
    "classes": 1,
    "features": 1,
    "image": [1, 1],
    "fit": "stretch",
    "crop": 1.0,
}
GATE = "VITRAIL_TEST_GATE"


def wait_for_the_gate() -> None:
    """Do as a model process does, but wait instead of computing."""
    config, writer, lock = sys.stdin.buffer, sys.stdout.buffer, threading.Lock()

    def write(head: dict[str, Any], blobs: Sequence[bytes] = ()) -> None:
        with lock:
            writer.writelines(pack_frame(head, blobs))
            writer.flush()

    def heartbeat() -> None:
        while True:
            try:
                write({"heartbeat": True})
            except (OSError, ValueError):
                os._exit(0)
            time.sleep(0.5)

    models = read_frame(config)[0]["models"]
    info = {name: {**FACTS, "attention": None, "index": None} for name in models}
    write({"ready": info, "batch_size": dict.fromkeys(models, BATCH)})
    threading.Thread(target=heartbeat, daemon=True).start()
    while True:
        try:
            _, images = read_frame(config)
        except EOFError:
            return
        while not os.path.exists(os.environ[GATE]):
            time.sleep(0.01)
        write({"good": [True] * len(images)}, [json.dumps({"top": []}).encode()] * len(images))


if __name__ == "__main__":
    if sys.argv[1:]:
        from vitrail.cli import main

        process.COMMAND = (sys.executable, __file__)
        main(sys.argv[1:])
    else:
        wait_for_the_gate()
