"""`vitrail data check` beside decoding the files twice: once to find bad ones, once for the mean.

Wall-clock of one worker, in turns; the images are those of benchmarks/data.py.
"""

from __future__ import annotations

import hashlib
import io
import tempfile
import time
from pathlib import Path

import numpy as np
from data import make_files
from PIL import Image

from vitrail.data.checks.dataset_check import check
from vitrail.data.datasets.open import open_splits

COPIES = 16  # of each of 32 images
ROUNDS = 5


def read_twice(files: list[Path]) -> None:
    """Decode each file with Pillow for errors and duplicates, then again for mean and std."""
    for path in files:
        content = path.read_bytes()
        hashlib.sha256(content).digest()
        Image.open(io.BytesIO(content)).load()
    sums = np.zeros((2, 3))
    for path in files:
        with Image.open(path) as image:
            pixels = np.asarray(image.convert("RGB"), np.float32) / 255
        sums += np.stack([pixels.mean((0, 1)), (pixels**2).mean((0, 1))])


def main() -> None:
    """Print both times and their ratio."""
    with tempfile.TemporaryDirectory() as folder:
        for number, content in enumerate(make_files(375, 500)):
            for copy in range(COPIES):
                place = Path(folder, "ab"[number % 2], f"{number}-{copy}.jpg")
                place.parent.mkdir(exist_ok=True)
                place.write_bytes(content)
        files = sorted(Path(folder).rglob("*.jpg"))
        splits = open_splits(folder)
        ratios = []
        for _ in range(ROUNDS):
            start = time.perf_counter()
            found = check(splits, workers=1)
            middle = time.perf_counter()
            read_twice(files)
            end = time.perf_counter()
            assert found.images == len(files)
            ratios.append((end - middle) / (middle - start))
            print(f"check {middle - start:.2f} s, decoding twice {end - middle:.2f} s")
    print(f"decoding twice takes {np.median(ratios):.2f} times as long ({len(files)} images)")


if __name__ == "__main__":
    main()
