"""The notebooks run, cut short, and are committed with what they show."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.cases import slow_but
from tests.material import ROOT

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
QUICK = [path for path in NOTEBOOKS if path.stem == "first-steps"]
SHORT = [(r"steps=\d+", "steps=2"), (r'"steps": \d+', '"steps": 2'), (r"count=\d{4,}", "count=200")]


def test_there_are_five() -> None:
    assert len(NOTEBOOKS) == 5


def read_cells(notebook: Any) -> tuple[list[Any], list[list[str]]]:
    """Give the cells of code, which ran one after the other without an error, and their outputs."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    kinds = [[output.output_type for output in cell.outputs] for cell in cells]
    assert not any("error" in kind for kind in kinds)
    return cells, kinds


def test_notebooks_are_committed_with_what_they_show() -> None:
    for path in NOTEBOOKS:
        cells, kinds = read_cells(nbformat.read(path, 4))
        assert sum(map(len, kinds)) > len(cells) / 4, path


@pytest.mark.parametrize("path", slow_but(QUICK, NOTEBOOKS), ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_what_it_is_committed_with(path: Path, tmp_path: Path) -> None:
    notebook = nbformat.read(path, 4)
    cells, kinds = read_cells(notebook)
    for cell in cells:
        for pattern, short in SHORT:
            cell.source = re.sub(pattern, short, cell.source)
    place = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=240, kernel_name="python3", resources=place).execute()
    for cell, before in zip(cells, kinds, strict=True):
        now = {output.output_type for output in cell.outputs} - {"stream"}
        assert now == set(before) - {"stream"}, cell.source
