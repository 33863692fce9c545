"""Assemble the pages of the site in build/pages: the repository's Markdown and what the code says.

`make docs` runs it, and Zensical after it. Commands come from their own help, Python's names and
the settings from their docstrings, the zoo from the catalog and docs/zoo-speed.csv.
"""

from __future__ import annotations

import csv
import io
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import redirect_stdout, suppress
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import get_type_hints
from unittest.mock import patch

from make_diagram import draw_flowcharts

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "build" / "pages"
OF_THE_ROOT = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
"""Pages that lie beside docs/, and their names on the site."""


def main(pages: Path = PAGES) -> None:
    """Write all pages anew."""
    shutil.rmtree(pages, ignore_errors=True)
    shutil.copytree(ROOT / "docs", pages, ignore=shutil.ignore_patterns("*.py", "*.ipynb", "__*"))
    for name, page in OF_THE_ROOT.items():
        text = adapt_links((ROOT / name).read_text(encoding="utf-8"))
        (pages / page).write_text(draw_flowcharts(text), encoding="utf-8")
    (pages / "reference").mkdir()
    written = {
        "reference/commands.md": command_page(),
        "reference/python.md": python_page(),
        "reference/configuration.md": settings_page(),
        "zoo.md": zoo_page(),
        "zoo.csv": zoo_table(),
    }
    for name, text in written.items():
        (pages / name).write_text(text, encoding="utf-8")
    for notebook in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        write_notebook(notebook, pages / "notebooks")
    (pages / "llms.txt").write_text(llms_page(pages), encoding="utf-8")


def adapt_links(text: str) -> str:
    """Let links of the repository's front pages lead to pages of the site; code has no page."""

    def adapt(match: re.Match[str]) -> str:
        words, target = match.groups()
        if target in OF_THE_ROOT:
            return f"[{words}]({OF_THE_ROOT[target]})"
        if target.startswith("docs/"):
            return f"[{words}]({target.removeprefix('docs/')})"
        if "://" in target or target.startswith("#"):
            return match[0]
        return words

    text = re.sub(r"\[([^\]]*)\]\(([^)\s]+)\)", adapt, text)
    return re.sub(r'(src|srcset)="docs/', r'\1="', text)


def command_page() -> str:
    """Show the help of every command."""
    from vitrail.cli.main import COMMANDS
    from vitrail.cli.main import main as run

    lines = ["# Commands", "", "What `vitrail COMMAND --help` prints.", ""]
    for name in COMMANDS:
        output = io.StringIO()
        width = patch.dict(os.environ, {"COLUMNS": "100", "NO_COLOR": "1"})
        with width, redirect_stdout(output), suppress(SystemExit):
            run([*name.split(), "--help"])
        lines += [f"## vitrail {name}", "", "```text", output.getvalue().strip(), "```", ""]
    return "\n".join(lines)


def python_page() -> str:
    """Ask for the docstring of every public name of the package."""
    import vitrail

    lines = ["# Python", "", "Import these names from `vitrail`: `from vitrail import train`.", ""]
    for name, module in sorted(vitrail._LAZY.items(), key=lambda item: item[0].lower()):
        lines += [f"::: {module}.{name}", "    options:", "        heading_level: 2", ""]
    return "\n".join(lines)


def settings_page() -> str:
    """Ask for the docstrings of the settings of a run, section by section."""
    from vitrail.training.train_config import TrainConfig

    lines = ["# Settings", "", "In a file, as flags of `train` and `finetune`, or in Python:"]
    lines += ["a field `lr` of section `optim` is `--optim.lr`.", "", "## TrainConfig", ""]
    lines += [f"::: {TrainConfig.__module__}.TrainConfig", ""]
    hints = get_type_hints(TrainConfig)
    for field in fields(TrainConfig):
        kind = hints[field.name]
        if is_dataclass(kind) and isinstance(kind, type):
            name = f"{kind.__module__}.{kind.__name__}"
            lines += [f"## {field.name}", "", f"::: {name}", ""]
    return "\n".join(lines)


def _zoo_rows() -> Iterator[dict[str, str]]:
    from vitrail.models.cost.total import cost_of
    from vitrail.weights.published.catalog import CATALOG

    with (ROOT / "docs" / "zoo-speed.csv").open(encoding="utf-8") as file:
        speeds = {(row["model"], row["pixels"]): row["images/s"] for row in csv.DictReader(file)}
    for entry in CATALOG:
        cost = cost_of(entry.spec)
        model, pixels = entry.model.partition(",classes=")[0], "x".join(map(str, entry.resolution))
        yield {
            "source": entry.source,
            "model": model,
            "pixels": pixels,
            "parameters": f"{cost.parameters:,}",
            "GMACs": f"{cost.macs / 1e9:.2f}",
            "images/s": speeds.get((model, pixels), ""),
            "trained on": entry.data,
            "ImageNet top-1": "" if entry.top1 is None else f"{entry.top1:.2f}",
            "published by": entry.cited,
            "use": entry.use,
            "license": entry.license,
        }


ZOO = """\
---
hide:
  - navigation
  - toc
---

# Published weights

What `vitrail weights list` knows. [The CSV file](zoo.csv) also has full model names and the source
of each accuracy. How to load them: [Weights](weights.md).

- **ImageNet top-1** is as published, not measured here.
- **images/s** was measured here: random weights, float32, one core of an AMD processor with
  AVX-512, batches in memory (`benchmarks/zoo.py`). Empty: more than 190 GMACs.
- **GMACs** are billions of multiply-adds per image.
"""


def zoo_page() -> str:
    """List the published weights of the catalog, with what fits on a page."""
    rows = list(_zoo_rows())
    for row in rows:
        del row["published by"]
        row["model"] = row["model"].partition(",")[0]
        row["pixels"] = re.sub(r"^(\d+)x\1$", r"\1", row["pixels"])
        row["parameters"] = f"{int(row['parameters'].replace(',', '')) / 1e6:.1f} M"
    lines = [
        ZOO,
        '<div class="zoo" markdown="1">',
        "",
        "| " + " | ".join(rows[0]) + " |",
        "|---|---|" + "--:|" * 4 + "---|--:|---|---|",
        *("| " + " | ".join(row.values()) + " |" for row in rows),
        "",
        "</div>",
    ]
    return "\n".join(lines) + "\n"


def zoo_table() -> str:
    """Write the same list as CSV."""
    rows, text = list(_zoo_rows()), io.StringIO()
    writer = csv.DictWriter(text, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def write_notebook(notebook: Path, folder: Path) -> None:
    """Write a notebook with its outputs as a page, images beside it."""
    import nbformat
    from nbconvert import MarkdownExporter
    from nbconvert.preprocessors import CoalesceStreamsPreprocessor

    exporter = MarkdownExporter()
    exporter.register_preprocessor(CoalesceStreamsPreprocessor, enabled=True)
    body, found = exporter.from_notebook_node(nbformat.read(notebook, 4))
    folder.mkdir(exist_ok=True)
    for name, data in found["outputs"].items():
        body = body.replace(f"({name})", f"({notebook.stem}-{name})")
        (folder / f"{notebook.stem}-{name}").write_bytes(data)
    (folder / f"{notebook.stem}.md").write_text(body, encoding="utf-8")


def llms_page(pages: Path) -> str:
    """List the pages with their first sentence, for programs that read."""
    lines = ["# vitrail", ""]
    for page in sorted(pages.rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        title = re.search(r"^# (.+)$", text, re.M)
        text = re.sub(r"\A---\n.*?\n---\n|^```.*?^```|^<.*?>$", "", text, flags=re.S | re.M)
        first = re.search(r"^(?![#|:!\s]).+?(?=\.\s|:\n|\n\n|\Z)", text, re.S | re.M)
        place = page.relative_to(pages).with_suffix(".html").as_posix()
        name = title[1] if title else page.stem
        said = re.sub(r"\[(.+?)\]\(.+?\)", r"\1", " ".join(first[0].split())) if first else ""
        lines.append(f"- [{name}]({place})" + (f": {said}" if said else ""))
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
