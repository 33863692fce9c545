"""Memory of evaluations on frozen features that are larger than memory should be.

    python benchmarks/feature_memory.py --images 1280000 --width 768 --classes 1000

Features are made, not computed. Each evaluation is a process of its own, whose private memory
(RssAnon) is sampled; the mapped file is not among it, since the system takes that back when memory
is short. L-BFGS takes one step: its memory does not depend on how many it takes.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import tyro

EVALUATIONS = ("knn", "fewshot", "probe-sgd", "probe-lbfgs", "clean-labels", "embed")


def main(
    *,
    images: int = 1_280_000,
    width: int = 768,
    classes: int = 1000,
    only: tuple[str, ...] = EVALUATIONS,
    run: Path | None = None,
) -> None:
    """Measure the peak of private memory of each evaluation.

    Args:
        images: Training images; a thousand others are evaluated on.
        width: Features of each.
        classes: Classes.
        only: Which evaluations.
        run: The features, for the processes that this one starts.
    """
    if run is not None:
        measure(only[0], run, images, width, classes)
        return
    shape = [f"--{name}={value}" for name, value in
             (("images", images), ("width", width), ("classes", classes))]  # fmt: skip
    print(f"features {images * width * 4 / 1e9:.2f} GB")
    with TemporaryDirectory() as folder:
        file = Path(folder) / "features.f32"
        made = np.memmap(file, np.float32, "w+", shape=(images, width))
        generator = np.random.default_rng(0)
        for start in range(0, images, 16_384):
            rows = made[start : start + 16_384]
            rows[:] = generator.standard_normal(rows.shape, dtype=np.float32)
            rows[:, 0] += (np.arange(start, start + len(rows)) % classes) / classes
        made.flush()
        del made
        for each in only:
            subprocess.run(
                [sys.executable, __file__, *shape, f"--only={each}", f"--run={file}"], check=True
            )


def measure(name: str, file: Path, images: int, width: int, classes: int) -> None:
    """Run one evaluation and print its peak."""
    from vitrail.evaluation.features.image_features import Features
    from vitrail.evaluation.probes import linear_fits

    linear_fits._STEPS = 1
    values = np.asarray(np.memmap(file, np.float32, "r+", shape=(images, width)))
    labels = np.arange(images) % classes
    names = np.char.add("image-", np.arange(images).astype(np.str_))
    known = tuple(f"class {n}" for n in range(classes))
    before, peak, done = rss(), [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.02):
            peak[0] = max(peak[0], rss())

    watcher = threading.Thread(target=watch)
    watcher.start()
    start = time.perf_counter()
    train = Features(name="made", classes=known, values=values, labels=labels, names=names)
    few = slice(0, 1000)
    test = Features(
        name="few", classes=known, values=values[few], labels=labels[few], names=names[few]
    )
    evaluation(name, train, test, file.parent)()
    seconds = time.perf_counter() - start
    done.set()
    watcher.join()
    above, base = (peak[0] - before) / 1e6, before / 1e6
    print(f"{name:14} {above:8,.0f} MB above {base:,.0f} MB, {seconds:.0f} s", flush=True)


def evaluation(name: str, train: object, test: object, folder: Path) -> Callable[[], object]:
    """Give what is measured."""
    from vitrail.evaluation.cleaning.label_errors import (
        cross_validate_probabilities,
        find_label_errors,
    )
    from vitrail.evaluation.features.feature_files import write_features
    from vitrail.evaluation.features.image_features import Features
    from vitrail.evaluation.probes.fewshot import fit_shots
    from vitrail.evaluation.probes.knn import classify_by_neighbors
    from vitrail.evaluation.probes.linear_probe import probe_lbfgs, probe_sgd

    assert isinstance(train, Features)
    assert isinstance(test, Features)
    classes = len(train.classes)

    def clean() -> object:
        blocks = cross_validate_probabilities(train.values, train.labels, classes, folds=2)
        return find_label_errors(blocks, train.labels, classes)

    return {
        "knn": lambda: classify_by_neighbors(train, test, k=(20,)),
        "fewshot": lambda: fit_shots(train, test, shots=(10,), seeds=1),
        "probe-sgd": lambda: probe_sgd(train, test, rates=(0.01,), epochs=1),
        "probe-lbfgs": lambda: probe_lbfgs(train, test, decays=(1.0,)),
        "clean-labels": clean,
        "embed": lambda: write_features(train, folder / "out.safetensors", {"model": "made"}),
    }[name]


def rss() -> int:
    """Read the private memory of this process, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


if __name__ == "__main__":
    tyro.cli(main)
