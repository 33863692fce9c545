"""The commands that make many runs by one plan, and show their table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import tyro

from vitrail.cli.options import Json, optional
from vitrail.result import print_result

MORE = """\
Every word of train and finetune is a flag too (--steps, --lr, --batch,
--recipe, --weights, --optim.momentum, …), with --data.take, --model.depth and
the budgets --flops and --processor-minutes. --lr 'best(1e-3,3e-3)' chooses on
held-out images; --then.data and others make a second run from the first one's
model. docs/sweeps.md says more."""
"""What the help ends with."""


def sweep(
    data: Annotated[
        tyro.conf.Positional[str | None],
        optional("DATA", "A folder, digits, cifar10:DIR, … Default: the data of --plan."),
    ] = None,
    *,
    out: Annotated[Path, tyro.conf.arg(metavar="DIR")],
    model: Annotated[str | None, optional("NAME")] = None,
    vary: Annotated[tyro.conf.UseAppendAction[tuple[str, ...]], optional("NAME=VALUE,…")] = (),
    seeds: Annotated[str | None, optional("N")] = None,
    measure: Annotated[tyro.conf.UseAppendAction[tuple[str, ...]], optional("MEASURE")] = (),
    plan: Annotated[Path | None, optional("FILE")] = None,
    parallel: Annotated[int | None, optional("N")] = None,
    engine: Literal["local", "ray"] = "local",
    cpus: Annotated[float, tyro.conf.arg(metavar="N")] = 1.0,
    gpus: Annotated[float, tyro.conf.arg(metavar="N")] = 0.0,
    dry_run: bool = False,
    json: Json = False,
    settings: tyro.conf.Suppress[Sequence[tuple[str, str]]] = (),
) -> None:
    """Make many runs by one plan, and gather what they reached in one table.

    Run the same command again to resume: finished runs are kept, others go on.

    Example: vitrail sweep digits --model ViT/4@8,depth=2,width=32,heads=2,mlp=64,channels=1
    --vary lr=1e-3,3e-3 --seeds 3 --steps 100 --out sweeps/lr

    Args:
        out: The sweep's folder: its runs, table.csv and report.html.
        model: The model's name, such as ViT-S/16.
        vary: A setting and its values, such as lr=1e-3,3e-3, model.depth=2,4 or data.take=100,10%.
            Give it again for another axis; a --plan can also vary groups of settings.
        seeds: How many seeds, from 0; or a list such as 3,4,5. Default: 1.
        measure: Measure each first run also by fewshot:DATA, or by a function of its folder
            (package.module:name). May be given again.
        plan: A plan as YAML, TOML or JSON: base, vary, seeds, best, measures. Flags overrule it.
        parallel: Runs at once, with the threads shared out. Default: one per core; with ray as many
            as the cluster holds.
        engine: local, or ray to run on a Ray cluster, that of RAY_ADDRESS if given.
        cpus: Cores that a run asks Ray for.
        gpus: GPUs that a run asks Ray for.
        dry_run: Only say what would be run: cells, FLOPs, and time by a few steps of each model.
    """
    from vitrail.studies.engine.plan_file import read_axes, read_plan, read_seeds, read_words
    from vitrail.studies.engine.sweep import estimate_sweep
    from vitrail.studies.engine.sweep import sweep as run

    given = read_plan(plan) if plan else {"base": {}}
    base = {**given["base"], **read_words(settings)}
    base |= {key: value for key, value in (("data", data), ("model", model)) if value is not None}
    words = {
        "vary": {**given.get("vary", {}), **read_axes(vary)},
        "seeds": given.get("seeds") if seeds is None else read_seeds(seeds),
        "best": given.get("best"),
        "measures": [*given.get("measures", []), *measure],
        "out": out,
        "parallel": parallel,
    }
    if dry_run:
        return print_result(estimate_sweep(base, **words), json=json)
    return print_result(run(base, **words, engine=engine, cpus=cpus, gpus=gpus), json=json)


def sweep_show(
    folders: Annotated[tyro.conf.Positional[tuple[str, ...]], optional("FOLDER …")],
    *,
    score: Annotated[str | None, optional("COLUMN")] = None,
    x: Annotated[str | None, optional("COLUMN")] = None,
    by: Annotated[str | None, optional("COLUMN")] = None,
    out: Annotated[Path | None, optional("DIR")] = None,
    json: Json = False,
) -> None:
    """Show the table of sweeps, or of any run folders, and plot it.

    Example: vitrail sweep show sweeps/lr --score top1 --x lr --out plots/lr

    Args:
        folders: Folders of sweeps, or folders that are or contain runs.
        score: The column to average over seeds, compare and draw. Default: the accuracy.
        x: The column to draw it over, such as flops. Default: the axis with the most numbers.
        by: The column that tells lines apart. Default: all other axes.
        out: Folder for table.csv, table.parquet, the plot as SVG and PNG, and report.html.
    """
    from vitrail.studies.engine.run_table import show_sweep

    print_result(show_sweep(folders, score=score, x=x, by=by, out=out), json=json)
