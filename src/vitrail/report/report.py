"""The report: one HTML page that needs nothing else, and its figures and numbers beside it.

DIR/report.html          opens offline, on a phone, light and dark
DIR/report.json          what the figures show, in numbers
DIR/figures/NAME.png, NAME.svg
"""

from __future__ import annotations

import html
import json
import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vitrail import __version__
from vitrail.config import InputError
from vitrail.files import write_whole
from vitrail.models import BiT
from vitrail.models.spec import Size
from vitrail.plotting.canvas import Plot
from vitrail.plotting.curves import read_curves
from vitrail.plotting.inspection_plots import draw_curves, draw_predictions
from vitrail.report import sections as parts
from vitrail.report.page import make_page
from vitrail.report.sections import ReportSection
from vitrail.report.view import ReportInputs, find_run, open_view, prepare
from vitrail.training.run_data import open_run_data
from vitrail.weights.load import load

log = logging.getLogger("vitrail")

PAGE, NUMBERS, FIGURES = "report.html", "report.json", "figures"


@dataclass(frozen=True)
class Report:
    """What was seen of a model, part by part."""

    title: str
    summary: str
    parts: Sequence[ReportSection]

    @property
    def plots(self) -> list[Plot]:
        """List all figures."""
        return [plot for part in self.parts for plot in part.plots]

    @property
    def data(self) -> dict[str, Any]:
        """Give what was seen as plain data."""
        said = [{"title": part.title, "note": part.note, **part.data} for part in self.parts]
        about = ("key", "title", "caption", "alt")
        figures = [{name: getattr(plot, name) for name in about} for plot in self.plots]
        return {"title": self.title, "summary": self.summary, "parts": said, "figures": figures}

    def html(self) -> str:
        """Write the page."""
        sections = [part.section() for part in self.parts]
        return make_page(self.title, self.summary, sections, f"Made by vitrail {__version__}.")

    def _repr_html_(self) -> str:
        page = html.escape(self.html())
        return f'<iframe srcdoc="{page}" style="width:100%;height:40rem;border:0"></iframe>'

    def write(self, folder: Path, *, figures: bool = True) -> list[Path]:
        """Write the page, and unless told otherwise figures and numbers beside it; list all.

        All is made before anything is written; each file is written whole or not at all, the page
        last. ProgressState of an earlier report that this one lacks are removed.
        """
        files: dict[Path, bytes] = {}
        if figures:
            for plot in self.plots:
                files[folder / FIGURES / f"{plot.key}.png"] = plot.png()
                files[folder / FIGURES / f"{plot.key}.svg"] = plot.svg().encode()
            files[folder / NUMBERS] = json.dumps(self.data, indent=1).encode() + b"\n"
        files[folder / PAGE] = self.html().encode()
        stale = [path for path in _earlier(folder) if path not in files] if figures else []
        for path, content in files.items():
            _make_folder(path.parent)
            write_whole(path, content)
        for path in stale:
            path.unlink(missing_ok=True)
        return list(files)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: cannot be written: {error.strerror}") from None


def _earlier(folder: Path) -> Iterator[Path]:
    """List the figures of an earlier report in a folder, and nothing else that may be there."""
    with suppress(OSError, ValueError, LookupError, TypeError):
        for figure in json.loads((folder / NUMBERS).read_text(encoding="utf-8"))["figures"]:
            if re.fullmatch(r"[a-z]+(-\d+)?", figure["key"]):
                yield folder / FIGURES / f"{figure['key']}.png"
                yield folder / FIGURES / f"{figure['key']}.svg"


def make_report(
    view: ReportInputs,
    *,
    other: ReportInputs | None = None,
    layers: Sequence[int] | None = None,
    detail: int = 4,
    run: Path | None = None,
) -> Report:
    """Look at a model: its answers and attention on images, its embeddings and features.

    `other` is a second model, on the same images; `layers` are those whose heads are drawn, of
    so many images as `detail` says; `run` is the folder of a run, for its curves.
    """
    made = [
        *([] if run is None else [_show_training(run)]),
        *parts.show_images(view, layers, detail),
        parts.show_attention(view, other),
        parts.show_embeddings(view),
        parts.show_features(view, other),
        parts.show_mistakes(view),
        parts.show_card(view),
    ]
    kept = [part for part in made if part.cards or part.note]
    return Report(view.name, _summarize(view, other), kept)


def _show_training(run: Path) -> ReportSection:
    """Show a run's curves, if it has measured anything, and what it predicts without labels."""
    part, curves = ReportSection("Training"), read_curves(run)
    if curves.values:
        last = {  # of those that are numbers: a gradient of float16 may be none
            name: float(values[-1])
            for name, (_, values) in curves.values.items()
            if np.isfinite(values[-1])
        }
        part.draw(draw_curves(curves), last=last)
    if (drawn := run / "reconstructions.png").exists():
        try:
            with Image.open(drawn, formats=("PNG",)) as image:
                sheet = np.asarray(image.convert("RGB"))
        except (OSError, ValueError, SyntaxError):
            raise InputError(f"{drawn} is damaged; remove it to have a report without") from None
        part.draw(draw_predictions(sheet))
    return part


def _summarize(view: ReportInputs, other: ReportInputs | None) -> str:
    provenance = view.loaded.provenance
    said = [f"A look inside{f' {provenance.source}' if provenance else ''}"]
    if other is not None:
        said.append(f"beside {other.name}")
    said.append(f"with {len(view.measured):,} images" if view.measured else "without images")
    text = f"{', '.join(said)}."
    if isinstance(view.model, BiT):
        text += " It is a ResNet: it has no tokens, and so no overlays, positions or token norms."
    if view.loaded.preprocess is None:
        text += " Its weights do not say how images are prepared: the paper's way was taken."
    return text


def inspect_model(
    model: str,
    images: Sequence[Path] = (),
    *,
    data: str | None = None,
    split: str | None = None,
    layers: Sequence[int] | None = None,
    against: str | None = None,
    image: Size | None = None,
    count: int = 128,
) -> Report:
    """Look at a model with images, a data set, or a run's own images."""
    given: dict[str, Any] = {"data": data, "split": split, "count": count}
    view = open_view(model, images, **given, image=image)
    if layers is not None:
        parts.check_layers(view, layers)
    other = None if against is None else open_view(against, images, **given)
    return make_report(view, other=other, layers=layers, run=find_run(model))


def report_run(folder: Path) -> Path:
    """Write a run's page into its folder, with some of its own images where they can be had."""
    source = None
    with suppress(InputError):  # such as a stream, or images that have moved
        source = open_run_data(folder)
    view = prepare(load(f"run:{folder}"), source=source, count=32)
    make_report(view, detail=1, run=folder).write(folder, figures=False)
    return folder / PAGE


def leave_report(folder: Path) -> Path | None:
    """Write a finished run's page unless it is there; no run fails for it, but a warning says why.

    Of several processes, the first one calls it.
    """
    page, result = folder / PAGE, folder / "result.json"
    try:
        if page.exists() and page.stat().st_mtime >= result.stat().st_mtime:
            return page
        return report_run(folder)
    except Exception as error:  # whatever it be, the run is finished and its model is there
        said = (str(error) or type(error).__name__).splitlines()[0]
        log.warning("%s has no report: %s", folder, said)
        return None
