"""The report on a model: one self-contained HTML page, with its figures and numbers beside it.

DIR/report.html          opens offline, on a phone, light and dark
DIR/report.json          what the figures show, in numbers
DIR/figures/NAME.png, NAME.svg
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vitrail import __version__
from vitrail.config import InputError
from vitrail.data.checks.output_place import check_output_place
from vitrail.data.datasets.open import Data
from vitrail.data.image_inputs import ImageLike, is_one
from vitrail.files import check_writable, make_folder, write_whole
from vitrail.models import BiT
from vitrail.models.names import as_size
from vitrail.models.spec import Size
from vitrail.plotting.canvas import Plot
from vitrail.report import sections
from vitrail.report.html_page import ReportSection, format_image_count, make_page
from vitrail.report.mistakes import show_mistakes
from vitrail.report.report_inputs import ReportInputs, open_inputs
from vitrail.report.run_sections import RunSummary, read_run, show_run
from vitrail.result import Result
from vitrail.training.checkpoints.run_folder import find_run
from vitrail.weights.loaded import AnyModel

PAGE, NUMBERS, FIGURES = "report.html", "report.json", "figures"


@dataclass(frozen=True, kw_only=True)
class InspectionReport(Result):
    """What a model was found to do, section by section, and the files that were written."""

    title: str
    description: str
    sections: Sequence[ReportSection] = field(repr=False)
    report: Path | None = None
    """The page, where it was written."""
    numbers: Path | None = None
    figures: tuple[Path, ...] = ()

    @property
    def plots(self) -> list[Plot]:
        """List all figures."""
        return [plot for section in self.sections for plot in section.plots]

    @property
    def data(self) -> dict[str, Any]:
        """What the figures show, as plain data."""
        about = ("key", "title", "caption", "alt")
        return {
            "title": self.title,
            "description": self.description,
            "sections": [
                {"title": each.title, "note": each.note, **each.data} for each in self.sections
            ],
            "figures": [{name: getattr(plot, name) for name in about} for plot in self.plots],
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the written files as plain data."""
        figures = [str(path) for path in self.figures]
        return {"report": _text(self.report), "numbers": _text(self.numbers), "figures": figures}

    def summary(self) -> Iterable[str]:
        """Say what was written, in one line."""
        count = len(self.plots)
        yield f"{self.report or self.title}: {count} figures, with PNG, SVG and numbers beside it"

    def html(self) -> str:
        """Write the page."""
        footer = f"Made by vitrail {__version__}."
        return make_page(self.title, self.description, self.sections, footer)

    def _repr_html_(self) -> str:
        page = html.escape(self.html())
        return f'<iframe srcdoc="{page}" style="width:100%;height:40rem;border:0"></iframe>'

    def write(self, folder: Path, *, figures: bool = True) -> InspectionReport:
        """Write the page, and unless told otherwise figures and numbers; return where they are.

        Everything is made before anything is written; each file is written whole or not at all,
        the page last. Figures of an earlier report that this one lacks are removed.
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
            make_folder(path.parent)
            write_whole(path, content)
        for path in stale:
            path.unlink(missing_ok=True)
        drawn = tuple(path for path in files if path.parent.name == FIGURES)
        numbers = folder / NUMBERS if figures else None
        return replace(self, report=folder / PAGE, numbers=numbers, figures=drawn)


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _earlier(folder: Path) -> Iterator[Path]:
    """List the figures of an earlier report in a folder, and nothing else that may be there."""
    with suppress(OSError, ValueError, LookupError, TypeError):
        for figure in json.loads((folder / NUMBERS).read_text(encoding="utf-8"))["figures"]:
            if re.fullmatch(r"[a-z]+(-\d+)?", figure["key"]):
                yield folder / FIGURES / f"{figure['key']}.png"
                yield folder / FIGURES / f"{figure['key']}.svg"


def inspect(
    model: AnyModel,
    images: ImageLike | Iterable[ImageLike] = (),
    *,
    data: Data | None = None,
    out: str | Path | None = None,
    split: str | None = None,
    layers: Sequence[int] | None = None,
    against: AnyModel | None = None,
    image: str | int | Size | None = None,
    count: int = 128,
    device: str | None = None,
) -> InspectionReport:
    """Look inside a model with images, a dataset, or a run's own validation images.

    `layers` are those whose heads are drawn; `against` is a second model, on the same images;
    `image` another input size. With `out`, page, numbers and figures are written there.
    """
    if out == "":
        raise InputError("--out must name a folder, got ''")
    if out is not None:
        check_writable(Path(out), folder=True)
        check_output_place(out, data)
    given = [images] if is_one(images) else list(images)
    size = as_size(image)
    chosen: dict[str, Any] = {"data": data, "split": split, "count": count, "device": device}
    inputs = open_inputs(model, given, **chosen, image=size, beside=against)
    if layers is not None:
        sections.check_layers(inputs, layers)
    other = None if against is None else open_inputs(against, given, **chosen, beside=model)
    report = make_report(inputs, against=other, layers=layers, run=find_run(model), predicted=count)
    return report if out is None else report.write(Path(out))


def make_report(
    inputs: ReportInputs,
    *,
    against: ReportInputs | None = None,
    layers: Sequence[int] | None = None,
    detail: int = 4,
    predicted: int = 128,
    run: Path | None = None,
) -> InspectionReport:
    """Make a report: a run's result first, then predictions, attention, embeddings, features.

    `detail` images are shown closely; up to `predicted` are searched for mistakes.
    """
    summary = None if run is None else read_run(run)
    mistakes = show_mistakes(inputs, predicted)
    made = [
        *(() if summary is None else show_run(summary, inputs, mistakes)),
        *sections.show_images(inputs, layers, detail),
        sections.show_attention(inputs, against),
        sections.show_embeddings(inputs),
        sections.show_features(inputs, against),
        *((mistakes,) if summary is None else ()),
        sections.show_card(inputs),
    ]
    return InspectionReport(
        title=inputs.name if summary is None else f"{summary.name}: {inputs.name}",
        description=_describe(inputs, against, summary),
        sections=[section for section in made if section.cards or section.note],
    )


def _describe(inputs: ReportInputs, against: ReportInputs | None, run: RunSummary | None) -> str:
    provenance = inputs.loaded.provenance
    if run is not None:
        text = run.describe()
    elif provenance is not None and provenance.source:
        text = f"Weights: {provenance.source}."
    else:
        text = ""
    measured = format_image_count(len(inputs.measured)) if inputs.measured else "no images"
    beside = "" if against is None else f", compared with {against.name}"
    chosen = "" if inputs.selected is None else f" from {inputs.selected}"
    text += f" Inspected with {measured}{chosen}{beside}."
    text += "".join(f" {note[0].upper()}{note[1:]}." for note in inputs.notes)
    if isinstance(inputs.model, BiT):
        text += " A BiT is a ResNet: it has no tokens, so no overlays, positions or token norms."
    if inputs.loaded.preprocess is None:
        text += " The weights have no preprocessing, so the paper's is used."
    return text.strip()
