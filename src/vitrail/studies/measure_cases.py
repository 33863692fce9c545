"""Measure the cases of a study that trains nothing; what is measured is kept, case by case."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitrail.config import InputError, path_of
from vitrail.console import log_line
from vitrail.files import make_folder, write_whole
from vitrail.studies.study import Measurements
from vitrail.training.checkpoints.run_lock import run_lock

PLAN, RECORDS = "cases.json", "records"


def measure_cases(plan: Measurements, out: Path) -> list[dict[str, Any]]:
    """Give one row for each case and seed, from where an earlier call stopped.

    A case that can't be measured is a row with its reason.
    """
    said = {"function": path_of(plan.function), "cases": plan.cases, "seeds": list(plan.seeds)}
    text = json.dumps(said, indent=1) + "\n"
    path = out / PLAN
    if path.exists() and path.read_text(encoding="utf-8") != text:
        raise InputError(f"{out} has measurements of other cases; choose another --out")
    make_folder(out / RECORDS)
    with run_lock(out):
        write_whole(path, text)
        return [
            _measure_case(plan, out, name, words, seed)
            for name, words in plan.cases.items()
            for seed in plan.seeds
        ]


def _measure_case(
    plan: Measurements, out: Path, name: str, words: Mapping[str, Any], seed: int
) -> dict[str, Any]:
    safe = "".join(letter if letter.isalnum() else "-" for letter in name)
    record = out / RECORDS / f"{safe}_seed={seed}.json"
    if not record.exists():
        log_line(f"{name}, seed {seed}")
        start = time.process_time()
        row: dict[str, Any] = {"case": name, "seed": seed}
        try:
            row |= {"state": "done", "error": None, **plan.function(**words, seed=seed)}
        except InputError as error:
            row |= {"state": "failed", "error": str(error)}
        row["processor_seconds"] = time.process_time() - start
        write_whole(record, json.dumps(row) + "\n")
    return json.loads(record.read_text(encoding="utf-8"))
