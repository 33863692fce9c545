"""What is released: wheel and source archive, installed away from the source, and its papers."""

import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

import vitrail
from tests.material import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def run(*words: str | Path, cwd: Path) -> str:
    done = subprocess.run(
        [str(word) for word in words], cwd=cwd, capture_output=True, text=True, check=False,
        env={"PATH": "/usr/bin:/bin", "HOME": str(cwd)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("build")
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, ROOT, cwd=out)
    return out


def test_the_archives_pass_twine_and_hold_what_the_package_reads(built: Path) -> None:
    wheel, source = (next(built.glob(pattern)) for pattern in ("*.whl", "*.tar.gz"))
    run(sys.executable, "-m", "twine", "check", "--strict", wheel, source, cwd=built)
    inside = set(zipfile.ZipFile(wheel).namelist())
    ours = {
        path.relative_to(ROOT / "src").as_posix()
        for path in (ROOT / "src" / "vitrail").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert ours <= inside
    assert any(name.endswith("licenses/NOTICE") for name in inside)
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"Makefile", "constraints.txt", "CITATION.cff", "SECURITY.md", "docs/paper.md"} <= names
    assert not any(name.startswith((".venv", "build/", "runs/")) for name in names)


@pytest.mark.slow
def test_the_wheel_works_in_an_environment_of_its_own(built: Path, tmp_path: Path) -> None:
    place = tmp_path / "env"
    run(sys.executable, "-m", "venv", "--without-pip", place, cwd=tmp_path)
    packages = next(place.glob("lib/python*/site-packages"))
    zipfile.ZipFile(next(built.glob("*.whl"))).extractall(packages)
    # The dependencies of this environment, without the source that it has installed editable.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    python = place / "bin" / "python"
    code = (
        "import vitrail, vitrail.data.datasets.open; print(vitrail.__file__, vitrail.__version__)"
    )
    assert run(python, "-c", code, cwd=tmp_path).split() == [
        str(packages / "vitrail" / "__init__.py"), vitrail.__version__,
    ]  # fmt: skip
    module = [python, "-m", "vitrail"]
    assert "86,567,656" in run(*module, "describe", "ViT-B/16", cwd=tmp_path)
    model = "ViT/4@8,depth=1,width=16,heads=2,mlp=32,channels=1"
    words = ["--model", model, "--steps", "2", "--batch", "8", "--device", "cpu", "--out", "run"]
    run(*module, "train", "digits", *words, cwd=tmp_path)
    assert (tmp_path / "run" / "report.html").stat().st_size > 10_000
    said = run(python, "-c", SHORT_DEMO, cwd=tmp_path)
    assert "digits, fine-tuned" in said
    assert (tmp_path / "runs/demo/finetune-0/report.html").exists()


SHORT_DEMO = """
from vitrail.studies import demonstration
from vitrail.cli import main
from vitrail.config import Duration

demonstration._STEPS = demonstration._FEW = Duration(2, "steps")
demonstration._CHARACTERS, demonstration._SEEDS = 640, 1
main(["demo"])
"""
"""`vitrail demo` as it is, cut short."""


def test_the_papers_agree_with_the_package() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == vitrail.__version__
    assert citation["license"] == PROJECT["license"]
    conda = (ROOT / "conda" / "meta.yaml").read_text(encoding="utf-8")
    assert f'version = "{vitrail.__version__}"' in conda
    (script,) = PROJECT["scripts"].items()
    assert " = ".join(script) in conda
    names = {"torch": "pytorch", "matplotlib": "matplotlib-base"}
    for wanted in PROJECT["dependencies"]:
        match = re.match(r"([\w-]+)(.+)", wanted)
        assert match is not None
        if match[1] != "simplejpeg":  # not in conda's channels; Pillow stands in
            assert f"- {names.get(match[1], match[1])} {match[2]}\n" in conda


def test_workflows_run_targets_that_there_are() -> None:
    targets = set(
        re.findall(r"^([\w./-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    )
    used = set()
    for path in sorted((ROOT / ".github" / "workflows").glob("*.yml")):
        for job in yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"].values():
            for step in job["steps"]:
                used |= set(re.findall(r"\bmake ([\w-]+)", step.get("run", "")))
    assert used == {"demo", "test", "docs", "wheel"}
    assert used <= targets


def test_the_dockerfile_is_clean_and_serves_as_nobody() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    if not hadolint.exists():
        pytest.skip("there is no hadolint to read the Dockerfile with")
    run(hadolint, ROOT / "Dockerfile", cwd=ROOT)
    lines = (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines()
    assert "USER 10001" in lines
    assert any(line.startswith("HEALTHCHECK") for line in lines)
    pinned = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    (torch,) = re.findall(r"\btorch==[\d.]+", "\n".join(lines))
    assert torch in pinned


def test_extras_ask_for_versions_that_the_constraints_have() -> None:
    pins = dict(
        line.lower().replace("_", "-").split("==")
        for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
        if "==" in line
    )
    packaging = pytest.importorskip("packaging.requirements")
    for extra, wanted in PROJECT["optional-dependencies"].items():
        for text in wanted:
            needed = packaging.Requirement(text)
            if needed.name == "vitrail":
                assert needed.extras <= set(PROJECT["optional-dependencies"])
                continue
            version = pins.get(needed.name.lower().replace("_", "-"))
            assert version is not None, f"{extra}: {needed.name} is not in constraints.txt"
            assert needed.specifier.contains(version), f"{extra}: {text}, but {version}"
