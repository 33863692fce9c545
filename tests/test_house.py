"""The house's rules, read from the source: who may import whom, and what importing costs.

Lower rooms never import higher ones, siblings never each other; no peer is imported at all;
matplotlib only in plotting/; the door and the command's help do not import torch.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.material import ROOT

SOURCE = ROOT / "src" / "vitrail"
FILES = sorted(SOURCE.rglob("*.py"))

LEVELS = [
    {"config", "signals"},
    {"text", "files", "console"},
    {"result"},
    {"download", "distributed", "machine"},
    {"models", "data", "plotting"},
    {"weights"},
    {"training", "evaluation", "inspection"},
    {"predictor"},
    {"report"},
    {"run"},
    {"model_soup", "protocol"},
    {"recipes", "deploy", "estimate"},
    {"studies", "vtab1k", "demonstration"},
    {"cli"},
]
"""Rooms from the ground up; a room imports rooms of lower levels only."""

PEERS = {"timm", "transformers", "torchvision", "vit_pytorch", "flax", "jax", "big_vision"}


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[str]:
    """Name every module that a file imports, wherever in the file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: imports are absolute"
            assert node.module is not None
            if node.module == "vitrail":
                yield from (f"vitrail.{alias.name}" for alias in node.names)
            else:
                yield node.module


def level(room: str) -> int:
    for number, rooms in enumerate(LEVELS):
        if room in rooms:
            return number
    raise AssertionError(f"the house has no room {room!r}; say in LEVELS where it stands")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_dependencies_point_downwards(path: Path) -> None:
    room = room_of(path)
    for module in imports(path):
        package, _, rest = module.partition(".")
        assert package not in PEERS, f"{path.name} imports the peer {package}"
        if package == "matplotlib":
            assert room == "plotting"
        if package != "vitrail" or rest == "__version__" or room in ("__init__", "__main__"):
            continue
        other = rest.partition(".")[0]
        assert room == other or level(other) < level(room), f"{path.name} imports {module}"


def test_only_the_specs_of_models_are_free_of_torch() -> None:
    light = {"spec.py", "names.py", "total.py", "rows.py", "vit_rows.py", "resnet_rows.py"}
    for path in SOURCE.glob("models/**/*.py"):
        uses_torch = any(module.partition(".")[0] == "torch" for module in imports(path))
        assert uses_torch != (path.name in {*light, "__init__.py"}), path.name


def loaded_after(code: str) -> set[str]:
    """Run code in a fresh interpreter and name the top-level modules it leaves loaded."""
    script = f"import sys\n{code}\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    run = [sys.executable, "-c", script]
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize(
    "code",
    [
        "import vitrail",
        "from vitrail.cli import main; main(['--help'])",
        "from vitrail.cli import main; main(['--version'])",
        "from vitrail.cli import main; main(['models'])",
        "from vitrail.cli import main; main(['describe', 'ViT-H/14'])",
    ],
)
def test_light_commands_import_no_torch(code: str) -> None:
    heavy = {"torch", "numpy", "matplotlib", "datasets", "fastapi", "transformers"}
    assert not heavy & loaded_after(code)


def test_public_names_are_documented() -> None:
    for path in FILES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        assert ast.get_docstring(tree), path
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                assert ast.get_docstring(node), f"{path.name}: {node.name}"


def test_every_setting_is_read() -> None:
    """A field that nothing reads is an option that does nothing."""
    declared: set[str] = set()
    read: set[str] = set()
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and "dataclass" in map(
                decorator, node.decorator_list
            ):
                fields = [line.target for line in node.body if isinstance(line, ast.AnnAssign)]
                declared |= {field.id for field in fields if isinstance(field, ast.Name)}
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                read.add(node.attr)
    assert len(declared) > 30
    assert declared - read == set()


def decorator(node: ast.expr) -> str:
    """Name a decorator, with or without arguments and module."""
    function = node.func if isinstance(node, ast.Call) else node
    return function.attr if isinstance(function, ast.Attribute) else ast.unparse(function)
