"""Every Python snippet and every command of README and docs/ runs, on tiny stand-ins.

A page is read from top to bottom: its Python blocks share their names, its commands their folder.
What can't be run here says so in the page: <!-- not run: why --> above the block.
"""

import ast
import glob
import io
import re
import shutil
import subprocess
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cases import slow_but
from tests.deploy.serving import Server, started, until
from tests.docs.blocks import PAGES, RUN, SHOWN, Block, read_blocks, read_commands
from tests.docs.stand_ins import adapt_command, adapt_python, make_world
from tests.material import ROOT
from vitrail.cli import COMMANDS, main
from vitrail.machine import has_bfloat16, has_vnni


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs") / "world"
    folder.mkdir()
    make_world(folder)
    return folder


LONG = {
    *("data", "export", "inspection", "own-parts", "predict", "pretraining", "recipes", "serve"),
    *("small-data", "sweeps", "training"),
}
"""Pages whose commands take more than five seconds; what they say is parsed each time."""
SHORT = [page for page in PAGES if page.stem not in LONG]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # what exporters' libraries say of others
@pytest.mark.parametrize("page", slow_but(SHORT, PAGES), ids=lambda page: page.stem)
def test_a_page_runs(
    page: Path, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(world, tmp_path / "here")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    with ExitStack() as servers:
        reader = Reader(servers, tmp_path)
        for block in read_blocks(page):
            if block.language not in RUN or block.not_run:
                continue
            try:
                reader.run(block)
            except BaseException as error:
                error.add_note(f"{block}:\n{block.text}")
                raise


def name_lacking(words: list[str]) -> str | None:
    """Name what this processor would need for a command, but lacks: it is then refused."""
    asked = words[words.index("--precision") + 1] if "--precision" in words else ""
    if words[0] in ("train", "finetune"):  # any processor trains in any precision
        return None
    if asked == "bfloat16" and not has_bfloat16():
        return "this CPU has neither AVX-512 BF16 nor AMX"
    return "this CPU has no VNNI" if asked == "int8" and not has_vnni() else None


class Reader:
    """Somebody who tries what a page says, block after block."""

    def __init__(self, servers: ExitStack, place: Path) -> None:
        self.servers, self.place = servers, place
        self.server: Server | None = None
        self.names: dict[str, Any] = {"__name__": "__main__"}

    def run(self, block: Block) -> None:
        if block.language == "python":
            self.run_python(block)
            return
        for words, output in read_commands(block):
            match words:
                case ["vitrail", "serve", *rest]:
                    self.serve(adapt_command(rest))
                case ["vitrail", *rest]:
                    self.call(adapt_command(rest), output)
                case ["curl", *rest]:
                    self.curl(rest)
                case _:
                    pytest.fail(f"{words[0]} can't be run here; say why above the block")

    def run_python(self, block: Block) -> None:
        """Run a block; a comment after an expression that ends with a shape must be true."""
        code = adapt_python(block.text)
        lines = code.splitlines()
        for statement in ast.parse(code).body:
            lone = ast.Module([statement], [])
            exec(compile(lone, str(block), "exec"), self.names)
            said = re.search(r"#.*\((\d+(?:, \d+)+)\)$", lines[(statement.end_lineno or 1) - 1])
            if said and isinstance(statement, ast.Expr):
                value = eval(
                    compile(ast.Expression(statement.value), str(block), "eval"), self.names
                )
                assert tuple(value.shape) == tuple(map(int, said[1].split(","))), said[0]

    def call(self, words: list[str], output: str) -> None:
        """Call the command in this process, as from a shell; what is shown is what it prints."""
        begins = words[0] in ("train", "finetune", "vtab") and "--more" not in words
        if begins and "--out" in words:
            shutil.rmtree(words[words.index("--out") + 1], ignore_errors=True)
        expanded = [file for word in words for file in (sorted(glob.glob(word)) or [word])]
        with redirect_stdout(io.StringIO()) as printed, redirect_stderr(io.StringIO()) as warned:
            try:
                main(expanded)
                code: Any = 0
            except SystemExit as stop:
                code = stop.code
        if lacking := name_lacking(expanded):
            assert code == 2
            assert re.fullmatch(rf"vitrail: --precision \w+: {lacking}[^\n]*\n", warned.getvalue())
            return
        if code:
            pytest.fail(f"vitrail {' '.join(expanded)} ended with {code}: {warned.getvalue()}")
        if output:
            assert printed.getvalue().split() == output.split()

    def serve(self, words: list[str]) -> None:
        """Serve until the next server or the end of the page."""
        if name_lacking(words):
            self.call(["serve", *words, "--port", "0", "--workers", "1", "--device", "cpu"], "")
            return
        self.servers.close()
        if "--port" in words:
            del words[(at := words.index("--port")) : at + 2]
        place = self.place / f"server{len(list(self.place.iterdir()))}"
        place.mkdir()
        arguments = started(place, *words, "--workers", "1", "--device", "cpu")
        self.server = self.servers.enter_context(arguments)
        until(self.server.healthy)

    def curl(self, words: list[str]) -> None:
        assert self.server is not None, "no vitrail serve above this"
        words = [word.replace(":8000", f":{self.server.port}") for word in words]
        done = subprocess.run(["curl", "-sS", "--fail", *words], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_every_command_and_import_of_a_page_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a long page says is parsed as the command parses it, and does nothing."""
    asked: list[str] = []
    for name, command in COMMANDS.items():

        def note(*_: object, name: str = name, **options: object) -> None:
            asked.append(name)

        monkeypatch.setitem(COMMANDS, name, wraps(command)(note))
    for page in PAGES:
        for block in read_blocks(page):
            if block.language not in RUN or block.not_run:
                continue
            if block.language == "python":
                lines = ast.parse(block.text).body
                ours: list[ast.stmt] = [
                    line for line in lines if isinstance(line, ast.Import | ast.ImportFrom)
                ]
                exec(compile(ast.Module(ours, []), str(block), "exec"), {})
                continue
            for words, _ in read_commands(block):
                if words[0] == "vitrail" and words[1].isalpha():
                    main(words[1:])
    assert len(asked) > 60
    assert len(set(asked)) > 20


def test_every_block_says_what_it_is() -> None:
    for block in (block for page in PAGES for block in read_blocks(page)):
        assert block.language in RUN | SHOWN, f"{block}: {block.language!r}"
        if block.language == "yaml":
            assert yaml.safe_load(block.text)


def test_links_lead_somewhere() -> None:
    for page in [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "ARCHITECTURE.md"]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[\w-]+)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_files_that_are_named_are_there(page: str) -> None:
    files = [path.as_posix() for path in (ROOT / "src" / "vitrail").rglob("*")]
    files += [path.as_posix() for path in (ROOT / "tests").rglob("*.py")]
    for name in re.findall(r"`([\w/]+(?:\.py|/))`", (ROOT / page).read_text(encoding="utf-8")):
        assert any(f"{file}/".endswith(f"/{name.rstrip('/')}/") for file in files) or (
            (ROOT / name).exists()
        ), name


def test_every_command_has_a_row_in_the_list() -> None:
    text = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    named = " ".join(rows).replace("`", " ")
    for command in COMMANDS:
        first, _, second = command.partition(" ")
        assert re.search(rf"\b{first} {second}".rstrip() + r"\b", named), command


def test_examples_of_own_parts_are_short() -> None:
    for block in read_blocks(ROOT / "docs" / "own-parts.md"):
        code = [line for line in block.text.splitlines() if line.strip()]
        assert len(code) <= 25, f"{block} has {len(code)} lines"


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120


def test_the_results_are_those_of_the_pages_that_they_link_to() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    table = text.partition("## Results\n")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if "](docs/" in line]
    assert len(rows) >= 6
    for row in rows:
        (page,) = re.findall(r"\]\((docs/[^)]+)\)", row[2])
        there = (ROOT / page).read_text(encoding="utf-8")
        for number in re.findall(r"\d+(?:\.\d+)?", row[2].partition("(")[0]):
            assert re.search(rf"(?<![\d.]){re.escape(number)}(?![\d.]\d)", there), (page, number)
