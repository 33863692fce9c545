"""Fenced blocks of a Markdown page, and the commands in them."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.material import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

RUN = {"python", "sh", "console"}
"""Languages of blocks that are run."""
SHOWN = {"text", "yaml", "json", "mermaid"}
"""Languages of blocks that are only read."""

_FENCE = re.compile(r"(?:<!-- not run: (?P<why>.+?) -->\n)?^```(?P<language>\w*)\n", re.M)


@dataclass(frozen=True)
class Block:
    """A fenced block: where it stands, its language, its text, and why it is not run, if so."""

    page: Path
    line: int
    language: str
    text: str
    not_run: str | None = None

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def read_blocks(page: Path) -> Iterator[Block]:
    """Read the fenced blocks of a page, from top to bottom."""
    text, place = page.read_text(encoding="utf-8"), 0
    while match := _FENCE.search(text, place):
        end = text.index("\n```", match.end() - 1)
        line = text.count("\n", 0, match.end()) + 1
        body = text[match.end() : end + 1]
        yield Block(page, line, match["language"], body, match["why"])
        place = end + 4


def read_commands(block: Block) -> Iterator[tuple[list[str], str]]:
    """Read the commands of a block: their words, and the output that is shown below."""
    text = block.text.replace("\\\n", " ")
    if block.language == "console":
        for part in re.split(r"^\$ ", text, flags=re.M)[1:]:
            command, _, output = part.partition("\n")
            yield shlex.split(command, comments=True), output
    else:
        for line in text.splitlines():
            if words := shlex.split(line, comments=True):
                yield words, ""
