"""How runs look before they are made, and protocols after."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from vitrail.console import new_table, print_json, print_line, print_renderable

if TYPE_CHECKING:
    from vitrail.estimate import ProtocolEstimate, RunEstimate
    from vitrail.protocol import Outcome


def print_outcome(done: Outcome, *, json: bool) -> None:
    """Print what a protocol found: the grid, each run, mean and std."""
    if json:
        said = asdict(done)
        runs = [{"run": str(run.pop("folder")), **run} for run in said.pop("runs")]
        print_json({"run": str(said.pop("folder")), **said, "runs": runs})
        return
    from vitrail.run import describe

    grid = new_table("learning rate", "held out", "steps", "ending")
    for trial in done.trials:
        seen = trial.seen[-1] if trial.seen else None
        shown = ("", "") if seen is None else (f"{seen.top1:.2%}", f"{seen.step:,}")
        grid.add_row(f"{trial.lr:g}", *shown, str(trial.ending))
    if done.trials:
        print_renderable(grid)
    for run in done.runs:
        print_line(f"{run.folder}: {describe(run)}")
    spread = "" if done.std is None else f" ± {100 * done.std:.2f}"
    runs = f"{len(done.runs)} runs" if len(done.runs) > 1 else "1 run"
    print_line(f"{done.folder}: lr {done.lr:g}, top-1 {100 * done.top1:.2f}{spread} % of {runs}")


def print_protocol_plan(plan: ProtocolEstimate) -> None:
    """Print a protocol's plan: its runs, then one of them in full."""
    if plan.trial is not None:
        rates = ", ".join(f"{rate:g}" for rate in plan.rates)
        rungs = " and ".join(f"{rung:,}" for rung in plan.rungs)
        early = f"; hopeless ones end at step {rungs}" if rungs else ""
        print_line(f"grid     {len(plan.rates)} runs at {rates}{early}")
        print_line(f"         each on {plan.trial.images:,} images, compared on {plan.held_out:,}")
    seeds = ", ".join(map(str, plan.seeds))
    print_line(f"then     {len(plan.seeds)} runs at the best, seeds {seeds}")
    print_line(f"         each on {plan.final.images:,} images, measured on {plan.measured:,}")
    print_line(f"all      about {_show_time(plan.seconds)}, if none ends early")
    print_line("")
    print_line(f"Each is such a run, at its own rate ({', '.join(plan.folders)}):")
    print_plan(plan.final)


def print_plan(plan: RunEstimate) -> None:
    """Print a plan, a line a question."""
    turns = f"{plan.accumulation} x {plan.micro}" if plan.accumulation > 1 else str(plan.micro)
    many = f" in each of {plan.processes} processes" if plan.processes > 1 else ""
    state, kept = map(_show_bytes, (plan.state_bytes, plan.activation_bytes))
    print_line(f"model    {plan.model}, {plan.trained:,} of {plan.parameters:,} parameters trained")
    images = "unknown" if plan.images is None else f"{plan.images:,}"
    epochs = "" if plan.epochs is None else f", {plan.epochs:.4g} epochs"
    print_line(f"data     {images} images of {plan.classes:,} classes")
    print_line(f"length   {plan.steps:,} steps{epochs}")
    print_line(f"rate     {plan.lr:g} after a warm-up of {plan.warmup:,} steps")
    print_line(f"batch    {plan.batch:,} images, {turns} at a time{many}")
    print_line(f"memory   {state} of weights and optimizer, {kept} of activations")
    print_line(f"work     {_show_flops(plan.flops)}")
    print_line(f"time     about {_show_time(plan.seconds)}, by a few steps just taken")


def _show_bytes(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"


def _show_flops(flops: float) -> str:
    for size, unit in ((1e18, "exa"), (1e15, "peta"), (1e12, "tera")):
        if flops >= size:
            return f"{flops / size:,.3g} {unit}FLOPs"
    return f"{flops / 1e9:.3g} gigaFLOPs"


def _show_time(seconds: float) -> str:
    for size, unit in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"
