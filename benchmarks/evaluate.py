"""What few-shot and nearest neighbors cost: vitrail's way and its peers', by processor time.

    python benchmarks/evaluate.py                     # both, a few minutes on one core
    python benchmarks/evaluate.py --case knn --k 200 --rounds 5

Few-shot: 4 numbers of shots x 3 draws x 20 values of l2 on 1,000 classes of 768 features, each
measured on test images. scikit-learn's loop prepares each draw once, then fits and predicts with
Ridge for each l2; only `--fits` of the 20 are run and their mean is taken 20 times, because the
whole loop takes minutes. Both sides' accuracies are compared where both were run.

kNN: the nearest of 50,000 x 768 unit vectors by cosine. faiss's index (IndexFlatIP, exact) and
scikit-learn's (brute force) are built before the clock starts; ours prepares its references within.
All run on one thread, interleaved; ratios are taken within a round.
"""

from __future__ import annotations

import json as json_format
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import torch
import tyro

from vitrail.evaluation.features.neighbors import nearest
from vitrail.evaluation.probes.ridge import Ridge

CLASSES, WIDTH, SHOTS, SEEDS = 1000, 768, (1, 5, 10, 25), 3
L2 = tuple(2.0**power for power in range(-4, 16))
OURS = "vitrail"


@dataclass(frozen=True, kw_only=True)
class Timing:
    """One contestant's processor time in a case."""

    case: str
    contestant: str
    seconds: float
    """The median of the rounds."""
    ratio: float
    """The median of the rounds' ratios to ours: above 1, ours is faster."""


def main(
    *,
    case: Literal["fewshot", "knn", "both"] = "both",
    rounds: int = 3,
    test: int = 2000,
    fits: int = 2,
    queries: int = 2048,
    k: int = 20,
    json: bool = False,
) -> None:
    """Measure and print ratios.

    Args:
        case: What to measure.
        rounds: Turns of each contestant of kNN; few-shot has as many as there are draws.
        test: Images that few-shot is evaluated on.
        fits: Values of l2, of 20, for which scikit-learn's loop is run.
        queries: Images whose nearest are looked for.
        k: How many of them.
        json: Print JSON instead of lines.
    """
    if os.environ.get("OMP_NUM_THREADS") != "1":  # which NumPy's library reads when it is loaded
        os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        os.execv(sys.executable, [sys.executable, *sys.argv])
    torch.set_num_threads(1)
    timings = measure_fewshot(test, fits) if case != "knn" else []
    timings += measure_knn(rounds, queries, k) if case != "fewshot" else []
    if json:
        print(json_format.dumps([asdict(timing) for timing in timings]))
        return
    for each in timings:
        figures = f"{each.seconds:9.2f} s   {each.ratio:6.2f} x ours"
        print(f"{each.case:34} {each.contestant:14} {figures}")


def clock(call: Callable[[], Any]) -> tuple[float, Any]:
    """Run a call; give the processor time that it took, and its result."""
    start = time.process_time()
    result = call()
    return time.process_time() - start, result


def measure_fewshot(test: int, fits: int) -> list[Timing]:
    """Sweep shots, draws and l2; a draw is a round."""
    generator = np.random.default_rng(0)
    centers = 0.3 * generator.normal(size=(CLASSES, WIDTH))

    def draw(labels: np.ndarray) -> np.ndarray:
        noise = generator.normal(size=(len(labels), WIDTH))
        return (centers[labels] + noise).astype(np.float32)

    wanted = generator.integers(CLASSES, size=test)
    asked = draw(wanted)
    totals = {OURS: np.zeros(SEEDS), "scikit-learn": np.zeros(SEEDS)}
    clock(lambda: _sweep_ours(asked[:100], wanted[:100], asked[:100], wanted[:100]))  # warm-up
    for seed in range(SEEDS):
        for shots in SHOTS:
            labels = np.repeat(np.arange(CLASSES), shots)
            shown = (draw(labels), labels, asked, wanted)
            seconds, ours = clock(lambda shown=shown: _sweep_ours(*shown))
            totals[OURS][seed] += seconds
            seconds, theirs = _sweep_theirs(*shown, fits)
            totals["scikit-learn"][seed] += seconds
            for place, accuracy in theirs.items():
                assert ours[place] == accuracy, (shots, L2[place], ours[place], accuracy)
    case = f"few-shot sweep, {test:,} test images"
    return [
        Timing(
            case=case,
            contestant=name,
            seconds=float(times.sum()),
            ratio=float(np.median(times / totals[OURS])),
        )
        for name, times in totals.items()
    ]


def _sweep_ours(
    x: np.ndarray, labels: np.ndarray, asked: np.ndarray, wanted: np.ndarray
) -> np.ndarray:
    ridge = Ridge(torch.from_numpy(x), torch.from_numpy(labels), CLASSES)
    right = ridge.correct(torch.from_numpy(asked), torch.from_numpy(wanted), L2)
    return right.double().mean(1).numpy()


def _sweep_theirs(
    x: np.ndarray, labels: np.ndarray, asked: np.ndarray, wanted: np.ndarray, fits: int
) -> tuple[float, dict[int, float]]:
    """Run the loop for some l2; give the time of all of them, and the accuracies that were run."""
    from sklearn.linear_model import Ridge as Theirs

    def prepare() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        mean, std = x.mean(0, dtype=np.float64), x.std(0, dtype=np.float64) + 1e-5
        pad = {"pad_width": ((0, 0), (0, 1)), "constant_values": 100.0}
        targets = np.full((len(x), CLASSES), -1.0)
        targets[np.arange(len(x)), labels] = 1.0
        return np.pad((x - mean) / std, **pad), np.pad((asked - mean) / std, **pad), targets

    before, (shots, images, targets) = clock(prepare)
    each: list[float] = []
    found: dict[int, float] = {}
    for place in np.linspace(0, len(L2) - 1, fits + 2).astype(int).tolist()[1:-1]:

        def fit(l2: float = L2[place]) -> np.ndarray:
            ridge = Theirs(alpha=l2, fit_intercept=False).fit(shots, targets)
            return ridge.predict(images).argmax(1)

        seconds, classes = clock(fit)
        each.append(seconds)
        found[place] = float((classes == wanted).mean())
    return before + len(L2) * float(np.mean(each)), found


def measure_knn(rounds: int, queries: int, k: int) -> list[Timing]:
    """Search the same unit vectors by all contestants, in turns."""
    import faiss
    from sklearn.neighbors import NearestNeighbors

    faiss.omp_set_num_threads(1)
    generator = np.random.default_rng(0)
    x, q = (generator.normal(size=(n, WIDTH)).astype(np.float32) for n in (50_000, queries))
    x, q = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in (x, q))
    index: Any = faiss.IndexFlatIP(WIDTH)
    index.add(x)
    neighbors = NearestNeighbors(n_neighbors=k, metric="cosine", algorithm="brute").fit(x)
    contestants: dict[str, Callable[[], np.ndarray]] = {
        OURS: lambda: nearest(torch.from_numpy(x), torch.from_numpy(q), k)[1].numpy(),
        "faiss-cpu": lambda: index.search(q, k)[1],
        "scikit-learn": lambda: neighbors.kneighbors(q)[1],
    }
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(rounds):
        found = {}
        for name in sorted(contestants, reverse=turn % 2 == 1):
            seconds, found[name] = clock(contestants[name])
            times[name].append(seconds)
        for name, indices in found.items():
            same = (np.sort(indices, 1) == np.sort(found[OURS], 1)).mean()
            assert same > 0.999, (name, same)  # of nearly equal cosines either may be nearer
    case = f"{k} nearest of 50,000, {queries:,} queries"
    return [
        Timing(
            case=case,
            contestant=name,
            seconds=float(np.median(each)),
            ratio=float(np.median(np.divide(each, times[OURS]))),
        )
        for name, each in times.items()
    ]


if __name__ == "__main__":
    tyro.cli(main, config=(tyro.conf.FlagCreatePairsOff,))
