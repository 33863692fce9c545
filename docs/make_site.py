"""Assemble the pages of the site in build/pages: the repository's Markdown and what the code says.

`make docs` runs it, and Zensical after it. Commands come from their own help, Python's names and
the settings from their docstrings, the zoo from the catalog and docs/zoo-speed.csv.
"""

from __future__ import annotations

import ast
import csv
import html
import inspect
import io
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import redirect_stdout, suppress
from dataclasses import is_dataclass
from pathlib import Path
from typing import get_args, get_type_hints
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
    for page in pages.rglob("*.md"):
        page.write_text(_mend_pipes(page.read_text(encoding="utf-8")), encoding="utf-8")
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


def _mend_pipes(text: str) -> str:
    r"""Write a | of code in a table in a way that Zensical reads; in `a\|b` it leaves the \."""

    def mend(match: re.Match[str]) -> str:
        code = html.escape(match[1], quote=False).replace(r"\|", "&#124;")
        return f"<code>{code}</code>"

    return re.sub(r"`([^`\n]*\\\|[^`\n]*)`", mend, text)


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
    """List the records of a run's settings, section by section, with types and defaults."""
    from vitrail.training.train_config import TrainConfig

    lines = ["# Settings as records", ""]
    lines += ["`TrainConfig` and its sections, as in Python. Field `lr` of `optim` is the flag"]
    lines += ["`--optim.lr`. What they mean in short: [Settings](../settings.md).", ""]
    for path, record in _find_records(TrainConfig):
        title = f"{path}: {record.__name__}" if path else record.__name__
        lines += [f"## {title}", "", *_record_lines(record)]
    return "\n".join(lines) + "\n"


def _find_records(record: type, path: str = "") -> Iterator[tuple[str, type]]:
    """Give a record and those of its fields, each with its place."""
    from vitrail.config import Duration

    yield path, record
    for name, hint in get_type_hints(record).items():
        for kind in (hint, *get_args(hint)):
            if isinstance(kind, type) and is_dataclass(kind) and kind is not Duration:
                yield from _find_records(kind, f"{path}.{name}".lstrip("."))


def _record_lines(record: type) -> Iterator[str]:
    """List the fields of a record, with the docstrings that stand below them."""
    (body,) = ast.parse(inspect.getsource(record)).body
    assert isinstance(body, ast.ClassDef)
    yield from (inspect.cleandoc(record.__doc__ or ""), "", "| field | what | default | type |")
    yield "|---|---|---|---|"
    for each, after in zip(body.body, [*body.body[1:], None], strict=True):
        if not isinstance(each, ast.AnnAssign):
            continue
        what = after.value if isinstance(after, ast.Expr) else None
        said = " ".join(str(what.value).split()) if isinstance(what, ast.Constant) else ""
        kind = re.sub(r"Annotated\[(.*?), [A-Z]\w*\(.*?\)\]", r"\1", ast.unparse(each.annotation))
        default = "" if each.value is None else f"`{ast.unparse(each.value)}`"
        default = re.sub(r"field\(default_factory=(\w+)\)", r"\1()", default)
        default = re.sub(r"field\(default=(.*)\)", r"\1", default)
        cells = (f"`{ast.unparse(each.target)}`", said, default, f"`{kind}`")
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
    yield ""


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

- **top-1** on ImageNet is as published, not measured here.
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
        row["top-1"] = row.pop("ImageNet top-1")
        row["pixels"] = re.sub(r"^(\d+)x\1$", r"\1", row["pixels"])
        row["parameters"] = f"{int(row['parameters'].replace(',', '')) / 1e6:.1f} M"
    lines = [
        ZOO,
        '<div class="zoo" markdown="1">',
        "",
        "| " + " | ".join(rows[0]) + " |",
        "|---|---|" + "--:|" * 4 + "---|---|---|--:|",
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
