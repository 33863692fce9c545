"""The transcript of docs/start.md: its commands run as a person types them, and what they print.

    python -m tests.docs.transcript PHOTOS NEW WEIGHTS   # writes it anew, from real photos

PHOTOS is a folder with train/ and test/, NEW a folder of other photos, WEIGHTS the folder of the
published weights that the page names. test_transcript.py runs the same commands on drawn ones.
"""

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.docs.blocks import Block, read_blocks, read_commands
from tests.material import ROOT

PAGE = ROOT / "docs" / "start.md"
MARK = "it is a transcript, made by tests/docs/transcript.py"
WEIGHTS = "timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k"


def transcript_blocks() -> list[Block]:
    """Read the blocks of the page that are transcripts."""
    return [block for block in read_blocks(PAGE) if block.not_run == MARK]


def make_machine(folder: Path, photos: Path, new: Path, weights: Path) -> None:
    """Lay out a person's folder, and the hub's cache with the weights in it."""
    shutil.copytree(photos, folder / "photos")
    shutil.copytree(new, folder / "new")
    cached = folder / "hub" / f"models--{WEIGHTS.replace('/', '--')}"
    snapshot = cached / "snapshots" / ("0" * 40)
    shutil.copytree(weights, snapshot)
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text(snapshot.name)


def play(blocks: Sequence[Block], folder: Path) -> Iterator[str]:
    """Run the commands of all blocks in a folder, and give each block's text as it is now."""
    with Shell(folder) as shell:
        for block in blocks:
            yield "".join(f"$ {said}\n{shell.run(words)}" for said, words in _lines(block))


def _lines(block: Block) -> Iterator[tuple[str, list[str]]]:
    said = re.findall(r"^\$ (.*)$", block.text, re.M)
    yield from zip(said, (words for words, _ in read_commands(block)), strict=True)


class Shell:
    """A person's shell: it knows vitrail, pip, ls and curl, and one job in the background."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = "8000"
        """Of the server that was started last."""
        own = {
            "HF_HUB_CACHE": str(folder / "hub"),
            "HF_HUB_OFFLINE": "1",
            "VITRAIL_CACHE": str(folder / "cache"),
            "COLUMNS": "100",
            "NO_COLOR": "1",
            "no_proxy": "*",
        }
        self.environment = {**os.environ, **own}
        self.job: subprocess.Popen[str] | None = None

    def __enter__(self) -> "Shell":
        return self

    def __exit__(self, *_: object) -> None:
        if self.job is not None:
            self.job.terminate()
            self.job.communicate(timeout=30)

    def run(self, words: list[str]) -> str:
        """Run a command to its end, a server until it serves; give what it printed."""
        match words:
            case ["pip", "install", "-q", wanted]:
                return check_extras(wanted)
            case ["vitrail", *rest, "&"]:
                return self._start(rest)
            case ["vitrail", *rest]:
                return self._call([sys.executable, "-m", "vitrail", *rest])
            case ["curl" | "ls", *_]:
                return self._call([word.replace(":8000", f":{self.port}") for word in words])
            case _:
                raise AssertionError(f"{shlex.join(words)} is not known to this shell")

    def _call(self, words: list[str]) -> str:
        done = subprocess.run(
            words,
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, done.stdout
        return self._tidy(done.stdout)

    def _start(self, words: list[str]) -> str:
        assert self.job is None
        self.job = subprocess.Popen(
            [sys.executable, "-m", "vitrail", *words, "--port", "0"],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self.job.stdout is not None
        line = self.job.stdout.readline()
        (self.port,) = re.findall(r"http://127\.0\.0\.1:(\d+)", line)
        end = time.monotonic() + 60
        while time.monotonic() < end:
            try:
                socket.create_connection(("127.0.0.1", int(self.port)), timeout=1).close()
                return self._tidy(line)
            except OSError:
                time.sleep(0.1)
        raise AssertionError(f"it does not serve: {line}")

    def _tidy(self, text: str) -> str:
        """Leave out the lines that show progress, and what is this machine's."""
        text = text.replace(f":{self.port}", ":8000").replace(f"{self.folder}/", "")
        text = re.sub(r"(^step \d+/\d+  epoch .*\n)+", "…\n", text, flags=re.M)
        lines = [line.rstrip() for line in text.splitlines()]
        return "".join(f"{line}\n" for line in lines if line)


def check_extras(wanted: str) -> str:
    """See that the package has the extras which are to be installed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    place, extras = wanted.rstrip("]").split("[")
    assert place == "."  # a clone: nothing is published
    assert set(extras.split(",")) <= project["optional-dependencies"].keys(), wanted
    return ""


def mask(text: str, classes: Sequence[str]) -> list[str]:
    """Keep the structure of each line: not numbers, classes, notes and the width of columns.

    Nor what depends on the processor: the precision that `auto` takes.
    """
    names = "|".join(map(re.escape, sorted(classes, key=len, reverse=True)))
    text = re.sub(rf"\b({names})\b", "CLASS", text)
    text = re.sub(r"photos/test/\S+\.jpg", "IMAGE", text)
    text = re.sub(r"\b(bfloat16|float32)\b", "PRECISION", text)
    text = re.sub(r"-?\d[\d,.]*(e-?\d+)?", "#", text).replace("# workers", "# worker")
    text = re.sub(r"─+", "─", text)
    lines = [re.sub(r"\s+", " ", line).strip() for line in text.splitlines()]
    rows = [re.sub(r"^(new/\S+ )?CLASS #%.*$", "CLASS #%", line) for line in lines]
    rows = [row.removesuffix(" note") for row in rows]  # a column that is there if there are notes
    return [row for place, row in enumerate(rows) if place == 0 or row != rows[place - 1]]


def main() -> None:
    """Write the page's transcript anew."""
    photos, new, weights = map(Path, sys.argv[1:])
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place).resolve()
        make_machine(folder, photos, new, weights)
        blocks = transcript_blocks()
        text = PAGE.read_text(encoding="utf-8")
        for block, now in zip(blocks, play(blocks, folder), strict=True):
            text = text.replace(f"```console\n{block.text}```", f"```console\n{now}```")
        PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
