"""Clean a dataset: the page to look through and decide on, and the decisions that are applied."""

from __future__ import annotations

import base64
import io
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Unpack

import numpy as np
from PIL import Image

from vitrail.config import InputError, suggest
from vitrail.data.dataset import ImageDataset
from vitrail.data.datasets.decisions import (
    BACKUP,
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
from vitrail.evaluation.inputs import name_data, name_model, note_trained
from vitrail.files import check_writable, write_whole
from vitrail.plotting.tiles import to_colors
from vitrail.report.html_page import escape, page_style
from vitrail.report.report_images import shrink
from vitrail.result import Result
from vitrail.weights.load import as_loaded
from vitrail.weights.loaded import AnyModel
from vitrail.weights.published.at_hand import weights_at_hand

SHOWN, SIDE, EXAMPLE_SIDE = 500, 160, 96
"""Images of a kind that the page shows at most, and the longer side of each in pixels."""


NEWEST = "newest"
"""As `--decisions`: the newest file of decisions in this folder and that of downloads."""


@dataclass(frozen=True, kw_only=True)
class AppliedDecisions(Result):
    """Decisions that every command applies from now on."""

    file: Path
    drop: int
    relabel: int
    keep: int
    source: Path
    """The file of decisions that was given."""
    new: int
    """Images in it that had no decision before."""
    replaced: int
    """Images in it that had another decision before."""
    earlier: int
    """Earlier decisions that stay as they were."""
    backup: Path | None = None
    """The earlier decisions, where something changed."""

    def summary(self) -> Iterator[str]:
        """Say what was decided, what it changed, and where."""
        yield (
            f"{self.source}: {self.new:,} new decisions, {self.replaced:,} in place of earlier "
            f"ones; {self.earlier:,} earlier ones stay"
        )
        if self.backup is not None:
            yield f"{self.backup}: the decisions before this"
        yield (
            f"{self.file}: {self.drop:,} to drop, {self.relabel:,} to relabel, {self.keep:,} to "
            "keep; every command applies it, and no image was moved or changed"
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
    `decisions`, they are added to `vitrail-decisions.csv` beside the data, which every command
    applies; "newest" is the last one saved. No image is moved or changed. `options` say how
    features are computed.
    """
    splits = open_splits(data)
    root = next(iter(splits.values())).root
    if decisions is not None:
        return _apply(_find_file(Path(decisions)), splits, root)
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
    trained = (note_trained(dataset, data, model) for dataset in splits.values())
    warned = (f"{note}: it may have learned their wrong labels" for note in trained if note)
    result = replace(result, notes=(*result.notes, *warned))
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
    earlier = read_decisions(root / DECISIONS)
    known = {each.where(i) for each in splits.values() for i in range(len(each))}
    known |= earlier.keys()  # those that are dropped already
    for name, decision in found.items():
        if name not in known:
            raise InputError(f"{path}: {name} is not an image of {dataset.name}")
        if decision.what == "relabel" and decision.label not in dataset.classes:
            near = suggest(decision.label, dataset.classes)
            raise InputError(f"{path}: {decision.label!r} is not a class of {dataset.name}{near}")
    merged = earlier | found
    changed = merged != earlier
    if changed and earlier:
        write_decisions(root / BACKUP, earlier)
    if changed:
        write_decisions(root / DECISIONS, merged)
    counts = Counter(decision.what for decision in merged.values())
    replaced = sum(earlier[name] != found[name] for name in earlier.keys() & found.keys())
    return AppliedDecisions(
        file=root / DECISIONS,
        drop=counts["drop"],
        relabel=counts["relabel"],
        keep=counts["keep"],
        source=path,
        new=len(found.keys() - earlier.keys()),
        replaced=replaced,
        earlier=len(earlier) - replaced,
        backup=root / BACKUP if changed and earlier else None,
    )


def _find_file(path: Path) -> Path:
    """Find the newest saved decisions, if that is what was asked for."""
    if str(path) != NEWEST or path.exists():
        return path
    places = Path(), _download_folder()
    saved = [file for each in places for file in each.glob(f"{Path(DECISIONS).stem}*.csv")]
    if not saved:
        raise InputError(
            f"--decisions {NEWEST}: no {Path(DECISIONS).stem}*.csv in this folder or {places[1]}; "
            "save the decisions on the page first, or name the file"
        )
    return max(saved, key=lambda file: file.stat().st_mtime)


def _download_folder() -> Path:
    """Return the folder that browsers save to: ~/Downloads, or as the desktop has it."""
    home = Path.home()
    with suppress(OSError, UnicodeDecodeError):
        settings = (home / ".config" / "user-dirs.dirs").read_text(encoding="utf-8")
        if found := re.search(r'^XDG_DOWNLOAD_DIR="(.+)"$', settings, re.MULTILINE):
            return Path(found[1].replace("$HOME", str(home)))
    return home / "Downloads"


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
    sections, links, shown = [], [], set[str]()
    for kind, title in KINDS.items():
        issues = [each for each in result.issues if each.kind == kind]
        if not issues:
            continue
        more = f" of {len(issues):,}" if len(issues) > SHOWN else ""
        cards = "\n".join(_card(each, places, earlier) for each in issues[:SHOWN])
        shown.update(name for each in issues[:SHOWN] for name in each.compared)
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
        summary=escape(
            ". ".join([f"{said}{counts or 'nothing was found'}", *result.notes, ""]).strip()
        ),
        links=" ".join(links),
        body="\n".join(sections) or "<p>Nothing was found.</p>",
        classes="".join(f"<option>{escape(name)}</option>" for name in classes),
        command=escape(f"vitrail clean {result.data} --decisions {NEWEST}"),
        earlier=_script_data(
            [[name, each.what, each.label] for name, each in sorted(earlier.items())]
        ),
        examples=_script_data(
            {
                name: _thumbnail_data(places.get(place), EXAMPLE_SIDE)
                for name, place in sorted(result.examples.items())
                if name in shown
            }
        ),
        key=_script_data(_identify(splits)),
    )


def _identify(splits: Mapping[str, ImageDataset]) -> str:
    """Name the data as it is now, so that decisions on other images are not taken for its own."""
    return sha256("".join(each.fingerprint() for each in splits.values()).encode()).hexdigest()


def _script_data(value: object) -> str:
    """Write a value for a script; no text in it ends the script."""
    return json.dumps(value).replace("<", "\\u003c")


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
    if issue.kind == "label" and not issue.suggested and not (decided and decided.label):
        label = ""  # no class is probable: the person chooses one
    choices = "".join(
        f'<label><input type="radio" name="decision" value="{word}"'
        f"{' checked' if chosen == word else ''}>{word}</label>"
        for word in ("keep", "relabel", "drop")
    )
    compared = "".join(
        f'<figure><img data-example="{escape(name)}" alt=""><figcaption>'
        f"{_breakable(name)}</figcaption></figure>"
        for name in issue.compared
    )
    return (
        f'<form class="card" tabindex="0" aria-label="{escape(where)}" '
        f'data-path="{escape(issue.path)}" data-label="{escape(label)}">\n'
        f'<div class="pair">{images}</div>\n<p class="path">{_breakable(where)}</p>\n'
        f"<p>{escape(why)}</p>\n"
        f'{f"""<div class="pair examples">{compared}</div>{chr(10)}""" if compared else ""}'
        f'<fieldset class="choices"><legend>decision</legend>{choices}</fieldset>\n</form>'
    )


def _breakable(name: str) -> str:
    """Let a long name break where a person would break it."""
    return re.sub("([/_])", r"\1<wbr>", escape(name))


def _thumbnail(place: tuple[ImageDataset, int] | None, name: str) -> str:
    data = _thumbnail_data(place, SIDE)
    return f'<img src="{data}" alt="{escape(name)}">' if data else ""


def _thumbnail_data(place: tuple[ImageDataset, int] | None, side: int) -> str:
    """Return a small image as a data URL; empty where there is none."""
    if place is None:
        return ""
    dataset, index = place
    try:
        content = dataset.read(index)
        pixels = decode(content, reading=dataset.reading) if isinstance(content, bytes) else content
    except (ImageError, OSError):
        return ""
    small = Image.fromarray(shrink(np.ascontiguousarray(to_colors(pixels)), side))
    small.save(buffer := io.BytesIO(), "JPEG", quality=80)
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}"
