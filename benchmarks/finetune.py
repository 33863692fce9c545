"""Time to an accuracy in fine-tuning, from the shell: ours with defaults and --minutes, and timm.

    python benchmarks/finetune.py DATA WEIGHTS --seeds 0 1 2 --out finetune.json
    python benchmarks/finetune.py DATA WEIGHTS --sides timm --seeds 0 --out finetune.json

DATA has train/ and test/ (pets-mini of ../shared), WEIGHTS a timm model's folder. Each run is one
process, from its start: the time until it prints an accuracy of at least --goal on the test images,
and until it ends, with all that it does by default (ours: calibration and report too). The time of
timm, which evaluates after each epoch, is without its evaluations; ours is with its one. Runs of
other calls in --out are kept and shown with them. Nothing was chosen on the test images.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean

HERE = Path(__file__).parent
SIDES = ("vitrail", "vitrail --minutes 1", "timm", "timm --amp")
_ACCURACY = re.compile(r"top-1 ([\d.]+)%(?:, ([\d.]+) s evaluated)?")


@dataclass(frozen=True, kw_only=True)
class Timed:
    """A run's accuracies in %, each with the seconds since its start."""

    side: str
    seed: int
    points: tuple[tuple[float, float], ...]
    seconds: float

    def to(self, goal: float) -> float | None:
        """Give the seconds until an accuracy was reached; None if it never was."""
        return next((when for when, found in self.points if found >= goal), None)


def command_of(side: str, data: str, weights: str, seed: int) -> list[str]:
    """Give the command of a side, in a folder of its own."""
    name, *given = side.split()
    told = [data, "--weights", weights, "--seed", f"{seed}", *given]
    if name == "timm":
        return [sys.executable, f"{HERE / 'timm_finetune.py'}", *told]
    return [sys.executable, "-m", "vitrail", "finetune", *told, "--out", "run"]


def time_run(side: str, data: str, weights: str, seed: int) -> Timed:
    """Run a side's command, and note when it says which accuracy."""
    points: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        with subprocess.Popen(
            command_of(side, data, weights, seed),
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                print(line, end="", flush=True)
                if found := _ACCURACY.search(line):
                    spent = time.monotonic() - began - float(found[2] or 0.0)
                    points.append((spent, float(found[1])))
        seconds = time.monotonic() - began
    if process.returncode:
        raise SystemExit(f"{side} failed with {process.returncode}")
    return Timed(side=side, seed=seed, points=tuple(points), seconds=seconds)


def make_table(runs: Sequence[Timed], goal: float) -> str:
    """Show each side's runs, and its mean time relative to timm's."""
    lines = [
        f"| side | seed | seconds to {goal:g} % | seconds to the end | accuracy at the end |",
        "|---|--:|--:|--:|--:|",
    ]
    means: dict[str, float] = {}
    for side in SIDES:
        found = [run for run in runs if run.side == side]
        for run in sorted(found, key=lambda run: run.seed):
            reached = run.to(goal)
            said = "never" if reached is None else f"{reached:.0f}"
            last = run.points[-1][1]
            lines.append(f"| {side} | {run.seed} | {said} | {run.seconds:.0f} | {last:.1f} % |")
        if found and all(run.to(goal) is not None for run in found):
            means[side] = mean(run.to(goal) or 0.0 for run in found)
    for side, seconds in means.items():
        parts = [
            f", {seconds / means[peer]:.2f} of {peer}'s" for peer in SIDES[2:] if peer in means
        ]
        lines.append(f"\n{side}: {seconds:.0f} s to {goal:g} % in the mean{''.join(parts)}")
    return "\n".join(lines)


def main() -> None:
    """Measure, keep and show."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data")
    parser.add_argument("weights")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=SIDES)
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--goal", type=float, default=88.0)
    parser.add_argument("--out", type=Path, default=Path("finetune.json"))
    args = parser.parse_args()
    kept = json.loads(args.out.read_text()) if args.out.exists() else []
    runs = {(run["side"], run["seed"]): Timed(**run) for run in kept}
    for seed in args.seeds:
        for side in args.sides:
            data, weights = (str(Path(each).resolve()) for each in (args.data, args.weights))
            runs[side, seed] = time_run(side, data, weights, seed)
            args.out.write_text(json.dumps([asdict(run) for run in runs.values()], indent=1))
    print(make_table(list(runs.values()), args.goal))


if __name__ == "__main__":
    main()
