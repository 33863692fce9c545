"""Clean a dataset: the page to look through and decide on, and the decisions that are obeyed."""

from __future__ import annotations

import base64
import io
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Unpack

import numpy as np
from PIL import Image

from vitrail.config import InputError, suggest
from vitrail.data.dataset import ImageDataset
from vitrail.data.datasets.decisions import (
    DECISIONS,
    Decision,
    parse_decisions,
    read_decisions,
    write_decisions,
)
from vitrail.data.datasets.open import Data, open_splits
from vitrail.data.decoding.decode import ImageError, decode
from vitrail.evaluation.cleaning.find_issues import (
    KINDS,
    CleaningResult,
    ImageIssue,
    find_issues,
)
from vitrail.evaluation.cleaning.label_errors import FOLDS
from vitrail.evaluation.features.compute import FeatureOptions
from vitrail.evaluation.inputs import name_data, name_model
from vitrail.files import check_writable, write_whole
from vitrail.plotting.tiles import to_colors
from vitrail.report.html_page import escape, page_style
from vitrail.report.report_images import shrink
from vitrail.result import Result
from vitrail.weights.load import as_loaded
from vitrail.weights.loaded import AnyModel
from vitrail.weights.published.at_hand import weights_at_hand

SHOWN, SIDE = 500, 160
"""Images of a kind that the page shows at most, and the longer side of each in pixels."""


@dataclass(frozen=True, kw_only=True)
class AppliedDecisions(Result):
    """Decisions that every command obeys from now on."""

    file: Path
    drop: int
    relabel: int
    keep: int

    def summary(self) -> Iterator[str]:
        """Say what was decided, and where."""
        yield (
            f"{self.file}: {self.drop:,} to drop, {self.relabel:,} to relabel, {self.keep:,} to "
            "keep; every command obeys it, and no image was moved or changed"
        )


def clean(
    data: Data,
    *,
    model: AnyModel | None = None,
    out: str | Path = "clean.html",
    decisions: str | Path | None = None,
    folds: int = FOLDS,
    seed: int = 0,
    **options: Unpack[FeatureOptions],
) -> CleaningResult | AppliedDecisions:
    """Find what is probably wrong with a dataset, and write a page to decide on it.

    Label errors are those of cross-validated probes on the frozen features of `model`, by default
    the first free one that is at hand. The page, `out`, saves decisions as a CSV file; given as
    `decisions`, they are put beside the data as `vitrail-decisions.csv`, which every command obeys.
    No image is moved or changed. `options` say how features are computed.
    """
    splits = open_splits(data)
    root = next(iter(splits.values())).root
    if decisions is not None:
        return _apply(Path(decisions), splits, root)
    if Path(out).suffix != ".html":
        raise InputError(f"--out {out}: expected the name of a page, such as clean.html")
    check_writable(Path(out))
    if model is None:
        found = weights_at_hand()
        if not found:
            raise InputError(
                "no backbone is at hand: give --model MODEL, or download one with vitrail weights "
                "show timm:vit_small_patch16_224.augreg_in21k"
            )
        model = found[0].source
    earlier = read_decisions(root / DECISIONS) if root else {}
    result = find_issues(
        as_loaded(model),
        splits,
        data=name_data(data),
        model=name_model(model),
        folds=folds,
        seed=seed,
        **options,
    )
    write_whole(Path(out), write_clean_page(result, splits, earlier))
    return replace(result, page=Path(out))


def _apply(path: Path, splits: Mapping[str, ImageDataset], root: Path | None) -> AppliedDecisions:
    """Check decisions, and put them beside the data."""
    dataset = next(iter(splits.values()))
    if root is None:
        raise InputError(f"{dataset.name} has no folder to keep decisions in")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise InputError(f"--decisions {path}: {reason}") from None
    found = parse_decisions(text, str(path))
    known = {each.where(i) for each in splits.values() for i in range(len(each))}
    for name, decision in found.items():
        if name not in known:
            raise InputError(f"{path}: {name} is not an image of {dataset.name}")
        if decision.what == "relabel" and decision.label not in dataset.classes:
            near = suggest(decision.label, dataset.classes)
            raise InputError(f"{path}: {decision.label!r} is not a class of {dataset.name}{near}")
    write_decisions(root / DECISIONS, found)
    counts = Counter(decision.what for decision in found.values())
    return AppliedDecisions(
        file=root / DECISIONS,
        drop=counts["drop"],
        relabel=counts["relabel"],
        keep=counts["keep"],
    )


def write_clean_page(
    result: CleaningResult,
    splits: Mapping[str, ImageDataset],
    earlier: Mapping[str, Decision],
) -> str:
    """Write the page: each image with its reason and three choices, earlier ones filled in."""
    room = files("vitrail.report")
    page = Template((room / "clean_page.html").read_text(encoding="utf-8"))
    places = {
        (split, dataset.where(index)): (dataset, index)
        for split, dataset in splits.items()
        for index in range(len(dataset))
    }
    sections, links = [], []
    for kind, title in KINDS.items():
        issues = [each for each in result.issues if each.kind == kind]
        if not issues:
            continue
        more = f" of {len(issues):,}" if len(issues) > SHOWN else ""
        cards = "\n".join(_card(each, places, earlier) for each in issues[:SHOWN])
        heading = f"{title} ({min(len(issues), SHOWN):,}{more})"
        links.append(f'<a href="#{kind}">{escape(heading)}</a>')
        sections.append(
            f'<section id="{kind}">\n<h2>{escape(heading)}</h2>\n<div class="grid">\n{cards}\n'
            "</div>\n</section>"
        )
    if result.pairs:
        rows = "\n".join(
            f"<tr><td>{escape(e.label)}</td><td>{escape(e.probable)}</td><td>{e.images}</td></tr>"
            for e in result.pairs[:50]
        )
        head = "<tr><th>label</th><th>probably</th><th>images</th></tr>"
        sections.append(
            f"<section>\n<h2>Classes that are mistaken for each other</h2>\n<table>\n{head}\n"
            f"{rows}\n</table>\n</section>"
        )
    counts = ", ".join(f"{n:,} {KINDS[kind]}" for kind, n in result.counts().items() if n)
    classes = next(iter(splits.values())).classes
    said = f"{result.images:,} images of {result.data}, by the features of {result.model}: "
    return page.substitute(
        style=page_style(),
        summary=escape(f"{said}{counts or 'nothing was found'}."),
        links=" ".join(links),
        body="\n".join(sections) or "<p>Nothing was found.</p>",
        classes="".join(f"<option>{escape(name)}</option>" for name in classes),
        command=escape(f"vitrail clean {result.data} --decisions {DECISIONS}"),
        earlier=json.dumps(
            [[name, each.what, each.label] for name, each in sorted(earlier.items())]
        ).replace("<", "\\u003c"),
    )


def _card(
    issue: ImageIssue,
    places: Mapping[tuple[str, str], tuple[ImageDataset, int]],
    earlier: Mapping[str, Decision],
) -> str:
    """Write an image with its reason, and the one it repeats beside it."""
    images = _thumbnail(places.get((issue.split, issue.path)), issue.path)
    if issue.like:
        split, _, path = issue.like.partition(": ")
        images += _thumbnail(places.get((split, path)), path)
    named = issue.path.startswith(f"{issue.split}/")
    where = issue.path if named else f"{issue.split}: {issue.path}"
    plain = issue.kind == "label" or not issue.label  # its reason names the label
    why = issue.reason if plain else f"{issue.label}: {issue.reason}"
    decided = earlier.get(issue.path)
    chosen = "" if decided is None else decided.what
    label = decided.label if decided and decided.label else issue.suggested or issue.label
    choices = "".join(
        f'<label><input type="radio" value="{word}"{" checked" if chosen == word else ""}>'
        f"{word}</label>"
        for word in ("keep", "relabel", "drop")
    )
    return (
        f'<form class="card" data-path="{escape(issue.path)}" data-label="{escape(label)}">\n'
        f'<div class="pair">{images}</div>\n<p class="path">{_breakable(where)}</p>\n'
        f"<p>{escape(why)}</p>\n"
        f'<div class="choices">{choices}</div>\n</form>'
    )


def _breakable(name: str) -> str:
    """Let a long name break where a person would break it."""
    return re.sub("([/_])", r"\1<wbr>", escape(name))


def _thumbnail(place: tuple[ImageDataset, int] | None, name: str) -> str:
    if place is None:
        return ""
    dataset, index = place
    try:
        content = dataset.read(index)
        pixels = decode(content) if isinstance(content, bytes) else content
    except (ImageError, OSError):
        return ""
    small = Image.fromarray(shrink(np.ascontiguousarray(to_colors(pixels)), SIDE))
    small.save(buffer := io.BytesIO(), "JPEG", quality=80)
    data = base64.b64encode(buffer.getvalue()).decode()
    return f'<img src="data:image/jpeg;base64,{data}" alt="{escape(name)}">'
