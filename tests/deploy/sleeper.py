"""`vitrail serve` with model processes that sleep for every batch, however fast the machine is.

python tests/deploy/sleeper.py serve MODEL … is called as `python -m vitrail serve …` is.
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

BATCH, SECONDS = 8, 0.25
FACTS = {"model": "sleeper", "classes": 1, "features": 1, "image": [1, 1]}
NAP = "VITRAIL_TEST_NAP"


def sleep_for_batches() -> None:
    """Do as a model process does, but sleep instead of computing."""
    config, writer, lock = sys.stdin.buffer, sys.stdout.buffer, threading.Lock()
    nap = float(os.environ.get(NAP, SECONDS))

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
        time.sleep(nap)
        write({"good": [True] * len(images)}, [json.dumps({"top": []}).encode()] * len(images))


if __name__ == "__main__":
    if sys.argv[1:]:
        from vitrail.cli import main

        process.COMMAND = (sys.executable, __file__)
        main(sys.argv[1:])
    else:
        sleep_for_batches()
