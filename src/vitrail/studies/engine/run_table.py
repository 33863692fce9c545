"""The table of any run folders: a sweep's, several sweeps', or runs that were made one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vitrail.config import InputError, flatten, read_file
from vitrail.files import make_folder, write_whole
from vitrail.plotting.canvas import save_plot
from vitrail.studies.engine.jobs import Records
from vitrail.studies.engine.sweep import PAGE, PLAN, TABLE, read_cells
from vitrail.studies.engine.sweep_page import draw_sweep, sweep_page
from vitrail.studies.engine.sweep_result import (
    FACTS,
    METRICS,
    SweepResult,
    choose_score,
    make_result,
)
from vitrail.training.checkpoints.run_folder import CONFIG, RESULT, RUN, read_result
from vitrail.training.train_config import FREE

_SWEEP, _RUN = "sweep", "run"
_PLOT = "plot"


def show_sweep(
    folders: str | Path | Sequence[str | Path],
    *,
    score: str | None = None,
    x: str | None = None,
    by: str | None = None,
    out: str | Path | None = None,
) -> SweepResult:
    """Gather the table of sweeps or of any run folders; `out` gets table, plot and page.

    Runs that no sweep made are told apart by the settings in which they differ. The plot is of
    `score` over `x`, a line for each `by`, all of which are columns of the table.
    """
    paths = [Path(each) for each in ([folders] if isinstance(folders, str | Path) else folders)]
    if not paths:
        raise InputError("no folder; give those of sweeps or runs")
    result = _gather(paths)
    result = replace(result, score=result.check_score(score))
    if out is None:
        for name in (x, by):
            if name is not None:
                raise InputError("x and by say what is drawn; give --out, the folder for it")
        return result
    out = Path(out)
    plot = draw_sweep(result, x=x, by=by)
    make_folder(out)
    result.write_table(out / TABLE)
    result.write_table(out / Path(TABLE).with_suffix(".parquet"))
    save_plot(plot, out, _PLOT)
    write_whole(out / PAGE, sweep_page(result, x=x, by=by))
    return result


def _gather(paths: Sequence[Path]) -> SweepResult:
    sweeps = [path for path in paths if (path / PLAN).exists()]
    if len(sweeps) == len(paths) == 1:
        return make_result(paths[0], read_cells(paths[0]), Records(paths[0]))
    if len(sweeps) == len(paths):
        return _join(paths)
    if sweeps:
        raise InputError(f"{sweeps[0]} is a sweep and others are not; give sweeps, or give runs")
    runs = list(dict.fromkeys(run for path in paths for run in _find_runs(path)))
    return _tabulate(paths[0] if len(paths) == 1 else Path(), runs)


def _join(paths: Sequence[Path]) -> SweepResult:
    """Put the rows of several sweeps under each other."""
    found = [make_result(path, read_cells(path), Records(path)) for path in paths]
    axes = dict.fromkeys(axis for each in found for axis in each.axes)
    names = _name_folders(paths)
    rows = [
        {_SWEEP: name, **dict.fromkeys(axes), **row}
        for name, each in zip(names, found, strict=True)
        for row in each.rows
    ]
    return SweepResult(
        folder=Path(), axes=(_SWEEP, *axes), score=choose_score(rows), rows=tuple(rows)
    )


def _name_folders(paths: Sequence[Path]) -> list[str]:
    """Name folders by their own names where these differ, else by their paths."""
    names = [path.resolve().name for path in paths]
    return names if len(set(names)) == len(names) else [path.as_posix() for path in paths]


def _find_runs(path: Path) -> list[Path]:
    """Find the run folders at or below a folder."""
    if not path.is_dir():
        raise InputError(f"{path} is not a folder; expected a sweep or a run")
    found = sorted(each.parent for each in path.rglob(RUN) if (each.parent / CONFIG).exists())
    if not found:
        raise InputError(f"{path} has no run in it; expected the folder of a sweep or of runs")
    return found


def _tabulate(folder: Path, runs: Sequence[Path]) -> SweepResult:
    """Make a row of each run, by the settings that are not the same in all."""
    configs = [flatten(read_file(run / CONFIG)) for run in runs]
    results = [read_result(run / RESULT) if (run / RESULT).exists() else None for run in runs]
    free = {*FREE, "seed"}
    names = dict.fromkeys(name for config in configs for name in config)
    axes = [
        name
        for name in names
        if not {name, name.partition(".")[0]} & free
        and len({str(config.get(name)) for config in configs}) > 1
    ]
    rows = []
    for name, config, result in zip(_name_folders(runs), configs, results, strict=True):
        row: dict[str, Any] = {axis: _plain(config.get(axis)) for axis in axes}
        row |= {"seed": config.get("seed", 0), _RUN: name}
        reached = result or {}
        for each in (*FACTS, *METRICS):
            if each not in row and reached.get(each) is not None:
                row[each] = reached[each]
        rows.append({**row, "state": "done" if result else "unfinished", "error": None})
    return SweepResult(folder=folder, axes=tuple(axes), score=choose_score(rows), rows=tuple(rows))


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool | None) else str(value)
