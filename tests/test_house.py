"""The house's rules, read from the source: who may import whom, and what importing costs.

Lower rooms never import higher ones, siblings never each other; no peer is imported at all;
matplotlib only in plotting/; the door and the command's help do not import torch.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.commands import loaded_after
from tests.material import ROOT
from tests.settings import Source, read_fields

SOURCE = ROOT / "src" / "vitrail"
FILES = sorted(SOURCE.rglob("*.py"))

LEVELS = [
    {"config", "signals"},
    {"text"},
    {"files", "console"},
    {"result"},
    {"download", "distributed", "machine"},
    {"models", "data", "plotting"},
    {"weights"},
    {"training", "inspection"},
    {"evaluation"},
    {"tasks", "predictor", "recipes"},
    {"report", "run_settings", "training_run"},
    {"run_minutes"},
    {"run"},
    {"model_soup", "run_estimate", "deploy"},
    {"studies", "vtab1k"},
    {"cli"},
]
"""Rooms from the ground up; a room imports rooms of lower levels only."""

AS_JSON = {"WorkerConfig"}
"""Records that another process reads as JSON."""

OLD_WORDS = {
    "picture", "pictures", "ledger", "journal", "rhythm", "workshop", "obituary", "homeless",
    "crew", "normalise", "normalised", "initialise", "optimiser", "colour", "colours", "neighbour",
}  # fmt: skip
"""Words that the field says otherwise: image, metrics logger, interval, backend, exit reason, …"""

MAY_RUN_CODE = {"eval", "exec", "os.system", "pickle.load", "pickle.loads", "extractall"}
"""Calls that can run what a file says, or write where it says."""

OWN_PICKLES = {"engine_ray.py"}
"""Modules that unpickle only what their own processes made."""

SAFE_IF = {
    "np.load": "allow_pickle=False",
    "torch.load": "weights_only=True",
    "Image.open": "formats=",  # or any of Pillow's fifty readers
}
"""Calls that open files of strangers, and what makes them safe."""

MOST_STATEMENTS = 50
"""Of a function in cli/."""

TEXTS = [
    *FILES,
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
]

TESTS = sorted((ROOT / "tests").rglob("*.py"))

PEERS = {"timm", "transformers", "torchvision", "vit_pytorch", "flax", "jax", "big_vision"}


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[str]:
    """Name every module that a file imports, wherever in the file."""
    for node in ast.walk(tree_of(path)):
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


def test_dependencies_point_downwards() -> None:
    wrong = [
        f"{path.relative_to(SOURCE)} imports {module}"
        for path in FILES
        for module in imports(path)
        if not may_import(room_of(path), module)
    ]
    assert wrong == []


def may_import(room: str, module: str) -> bool:
    """Tell whether a room may import a module: no peer, matplotlib to plot, ours from below."""
    package, _, rest = module.partition(".")
    if package != "vitrail" or rest == "__version__" or room in ("__init__", "__main__"):
        return package not in PEERS and (package != "matplotlib" or room == "plotting")
    other = rest.partition(".")[0]
    return room == other or level(other) < level(room)


def test_only_the_specs_of_models_are_free_of_torch() -> None:
    light = {"spec.py", "names.py", "total.py", "rows.py", "vit_rows.py", "resnet_rows.py"}
    light |= {"vit_spec.py", "vit_checks.py", "mim.py", "training_cost.py"}
    for path in SOURCE.glob("models/**/*.py"):
        uses_torch = any(module.partition(".")[0] == "torch" for module in imports(path))
        assert uses_torch != (path.name in {*light, "__init__.py"}), path.name


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
        tree = tree_of(path)
        assert ast.get_docstring(tree), path
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                assert ast.get_docstring(node), f"{path.name}: {node.name}"


def test_no_file_of_a_stranger_runs_code() -> None:
    assert {path.name for path in FILES if unsafe_calls(tree_of(path))} == OWN_PICKLES
    unsafe = ast.parse("torch.load(x, weights_only=False); np.load(x)")
    assert unsafe_calls(unsafe) == {"torch.load", "np.load"}
    unsafe = ast.parse("tar.extractall(x); Image.open(x, formats=('PNG',))")
    assert unsafe_calls(unsafe) == {"extractall"}


def unsafe_calls(tree: ast.Module) -> set[str]:
    """Name the calls that may run code, or open files without what makes that safe."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        name = "extractall" if name.endswith(".extractall") else name
        if name in MAY_RUN_CODE or SAFE_IF.get(name, "") not in ast.unparse(node):
            found.add(name)
    return found


def test_every_setting_is_read() -> None:
    """A field that nothing reads is an option that does nothing."""
    source, read = read_fields(map(tree_of, FILES))
    declared = settings_in(source)
    assert len({record for record, _ in declared}) > 15
    assert declared - read == set()


def test_a_dead_setting_is_found(tmp_path: Path) -> None:
    """Even if another class has a field of that name, which is read."""
    planted = tmp_path / "planted.py"
    planted.write_text(
        "from dataclasses import dataclass\n\n\n@dataclass(frozen=True)\nclass PlantedConfig:\n"
        "    lr: float = 0.0\n    momentum: float = 0.0\n\n\n"
        "def use(planted: PlantedConfig) -> float:\n    return planted.lr\n"
    )
    optim = SOURCE / "training" / "optimization" / "optim.py"
    source, read = read_fields(map(tree_of, [optim, planted]))
    assert ("OptimConfig", "momentum") in read
    dead = settings_in(source) - read
    assert {each for record, each in dead if record == "PlantedConfig"} == {"momentum"}


def settings_in(source: Source) -> set[tuple[str, str]]:
    """Name the fields of configuration records."""
    records = {name for name in source.dataclasses if name.endswith(("Config", "Spec", "Limits"))}
    records |= source.dataclasses & {"Augment", "RandAugment", "Preprocess", "Protocol"}
    return {(name, each) for name in records - AS_JSON for each in source.own[name]}


def test_no_module_hides_a_function_of_the_door() -> None:
    """`from vitrail import train` must give the function, whatever was imported before."""
    door = ast.parse((SOURCE / "__init__.py").read_text(encoding="utf-8"))
    (names,) = (
        node.value
        for node in door.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_LAZY"
    )
    offered = set(ast.literal_eval(names))
    assert len(offered) > 4
    assert {path.stem for path in SOURCE.iterdir()} & offered == set()


def test_no_room_for_odds_and_ends() -> None:
    odds = {"util", "utils", "helper", "helpers", "common", "misc", "core", "base"}
    inside = [path.relative_to(SOURCE) for path in FILES]
    assert not [path for path in inside if odds & set(path.with_suffix("").parts)]


def test_words_of_our_own_stay_away() -> None:
    found = {}
    for path in TEXTS:
        text = re.sub("</?picture>", "", path.read_text(encoding="utf-8"))  # HTML's own word
        if words := {word.lower() for word in re.findall(r"[A-Za-z]+", text)} & OLD_WORDS:
            found[str(path.relative_to(ROOT))] = words
    assert found == {}


def test_tests_share_plain_modules_and_call_public_names() -> None:
    """What is private may change without a test; tests may only replace it, to make it fail."""
    wrong = [
        f"{path.relative_to(ROOT)}:{line}" for path in TESTS for line in what_tests_may_not(path)
    ]
    assert wrong == []


def what_tests_may_not(path: Path) -> Iterator[str]:
    """Name what a test imports of another one, or imports or calls of what is private."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.ImportFrom) and node.module:
            if node.module.startswith("tests.") and ".test_" in node.module:
                yield f"{node.lineno} imports a test module"
            ours = node.module.startswith("vitrail")
            private = [a.name for a in node.names if re.match("_[a-z]", a.name)] if ours else []
            yield from (f"{node.lineno} imports {name}, which is private" for name in private)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            attribute = node.func.attr
            if not re.fullmatch(r"_[a-z]\w*[a-z]", attribute):
                continue
            name = ast.unparse(node.func)
            kept = attribute in {"_exit", "_replace", "_getframe"}
            if not kept and not name.startswith(("self.", "cls.")):
                yield f"{node.lineno}: {name} is private"


def test_commands_only_parse_call_and_print() -> None:
    for path in sorted((SOURCE / "cli").glob("*.py")):
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.FunctionDef) and path.name != "main.py":
                count = sum(isinstance(each, ast.stmt) for each in ast.walk(node)) - 1
                assert count <= MOST_STATEMENTS, f"{path.name}: {node.name} has {count} statements"
