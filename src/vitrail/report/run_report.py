"""The report that a run leaves in its folder."""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path

from vitrail.config import InputError
from vitrail.models.cost.total import cost_of
from vitrail.report.inspection_report import PAGE, make_report
from vitrail.report.report_inputs import prepare_inputs
from vitrail.training.checkpoints.run_folder import RESULT
from vitrail.training.run_data import open_run_data
from vitrail.weights.load import load

log = logging.getLogger("vitrail")

MEASURED = 32
"""Validation images that attention and features are measured on."""
MACS = 4e12
"""Work that the search for mistakes may take: about a minute on two cores."""


def write_run_report(folder: Path) -> Path:
    """Write a run's page into its folder, with some of its validation images where it has any."""
    dataset = None
    with suppress(InputError):  # the data may be a stream, or have moved
        dataset = open_run_data(folder)
    inputs = prepare_inputs(load(f"run:{folder}"), dataset=dataset, count=MEASURED)
    macs = cost_of(inputs.model.spec, image=inputs.preprocess.size).macs
    predicted = max(MEASURED, int(MACS / macs))
    make_report(inputs, detail=1, predicted=predicted, run=folder).write(folder, figures=False)
    return folder / PAGE


def leave_report(folder: Path) -> Path | None:
    """Write a finished run's page unless it is there; a failure is only a warning.

    With several processes, only the main one calls it.
    """
    page, result = folder / PAGE, folder / RESULT
    try:
        if page.exists() and page.stat().st_mtime >= result.stat().st_mtime:
            return page
        return write_run_report(folder)
    except Exception as error:  # whatever it is, the run is finished and its model is saved
        said = (str(error) or type(error).__name__).splitlines()[0]
        log.warning("no report for %s: %s", folder, said)
        return None
