"""The site: built without a warning, all pages in its navigation, a paper map that holds."""

import csv
import io
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.material import ROOT
from vitrail.cli.main import COMMANDS
from vitrail.recipes import RECIPES
from vitrail.studies.reproduce import NAMES

CONFIG = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture(scope="module")
def site() -> Iterator[ModuleType]:
    sys.path.insert(0, str(ROOT / "docs"))  # as for a script that is run
    spec = spec_from_file_location("make_site", ROOT / "docs" / "make_site.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.path.remove(str(ROOT / "docs"))


def pages_of(nav: Any) -> set[str]:
    if isinstance(nav, str):
        return {nav}
    return set().union(
        *(pages_of(each) for each in (nav.values() if isinstance(nav, dict) else nav))
    )


@pytest.mark.slow  # `make docs` builds it, too
def test_the_site_builds_without_a_warning_and_shows_every_page(
    site: ModuleType, tmp_path: Path
) -> None:
    pytest.importorskip("zensical")
    site.main(tmp_path / "build" / "pages")
    made = {
        path.relative_to(tmp_path / "build/pages").as_posix() for path in tmp_path.rglob("*.md")
    }
    assert made == pages_of(CONFIG["nav"])
    text = (ROOT / "zensical.toml").read_text(encoding="utf-8")
    (tmp_path / "zensical.toml").write_text(text.replace('["src"]', f'["{ROOT / "src"}"]'))
    done = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    home = (tmp_path / "build/site/index.html").read_text(encoding="utf-8")
    assert "fonts.googleapis" not in home
    rooms = (tmp_path / "build/site/architecture.html").read_text(encoding="utf-8")
    assert "mermaid" not in rooms  # which a script from the network would draw
    assert all(f">{name}</text>" in rooms for name in ("models/", "vitrail/__init__.py", "cli/"))
    python = (tmp_path / "build/site/reference/python.html").read_text(encoding="utf-8")
    for name in import_module("vitrail")._LAZY:
        assert re.search(rf'id="[\w.]*\.{name}"', python), name
    commands = (tmp_path / "build/site/reference/commands.html").read_text(encoding="utf-8")
    assert all(f"vitrail {name}" in commands for name in COMMANDS)
    listed = (tmp_path / "build/pages/llms.txt").read_text(encoding="utf-8")
    assert listed.count("\n- ") == len(made)


def test_the_zoo_has_every_known_checkpoint(site: ModuleType) -> None:
    from vitrail.weights.published.catalog import CATALOG

    rows = {row["source"]: row for row in csv.DictReader(io.StringIO(site.zoo_table()))}
    assert len(rows) == len(CATALOG)
    row = rows["google:imagenet21k+imagenet2012/ViT-B_16"]
    assert row["model"] == "ViT-B/16@384"
    assert row["parameters"] == "86,859,496"  # torchvision's count of B/16 at 384
    assert row["GMACs"] == "55.48"  # and its
    assert all(float(row["images/s"]) > 0 for row in rows.values() if small(row))


def small(row: dict[str, str]) -> bool:
    return float(row["GMACs"]) < 190


def test_a_flowchart_stands_on_its_roots() -> None:
    sys.path.insert(0, str(ROOT / "docs"))
    chart = import_module("make_diagram").draw('a["A & B<br>more"] --> b\n  b --> c\n  a --> c\n')
    sys.path.remove(str(ROOT / "docs"))
    boxes = re.findall(r'<rect x="(.+?)" y="(.+?)" width="(.+?)" height="(.+?)"', chart)
    tops = [float(box[1]) for box in boxes]
    assert tops == sorted(tops, reverse=True)  # a is lowest, c stands on b
    assert len(set(tops)) == 3
    assert "A &amp; B is used by b; b is used by c; A &amp; B is used by c" in chart
    assert chart.count("<path") == 3


def test_the_paper_map_has_no_dead_row() -> None:
    rows = re.findall(
        r"^\| .* \| `(.+?)` \| `(.+?)` \|$", (ROOT / "docs/paper.md").read_text(), re.M
    )
    assert len(rows) > 30
    for command, file in rows:
        program, name, *words = command.split()
        assert program == "vitrail"
        assert name in COMMANDS
        assert (ROOT / "src" / "vitrail" / file).exists(), file
        if name == "reproduce":
            assert words[0] in NAMES
        if "--recipe" in words:
            assert words[words.index("--recipe") + 1] in RECIPES
    shown = {command.split()[2] for command, _ in rows if command.startswith("vitrail reproduce")}
    assert shown == set(NAMES)
