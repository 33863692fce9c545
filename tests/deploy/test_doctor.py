"""`vitrail doctor` and `vitrail` alone, against what is installed."""

import json
import tomllib
from importlib.metadata import PackageNotFoundError

import pytest
import torch

from tests.commands import run
from tests.material import ROOT
from vitrail.deploy import installation
from vitrail.weights.published.catalog import find

Capture = pytest.CaptureFixture[str]


def test_every_extra_for_users_is_looked_at() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = set(extras["optional-dependencies"])
    looked_at = {each.name for each in installation.list_extras()}
    assert looked_at <= named
    for_developers = {"dev", "peers", "docs", "notebooks"}
    assert named - for_developers <= looked_at


def test_what_is_missing_is_said_with_its_command(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    def version(name: str) -> str:
        if name in ("onnxscript", "uvicorn"):
            raise PackageNotFoundError(name)
        return "1"

    monkeypatch.setattr(installation, "version", version)
    published = find("timm:vit_base_patch16_224.mae")
    assert published is not None
    monkeypatch.setattr("vitrail.weights.published.at_hand.cached_weights", lambda: [published])
    code, out, err = run(capsys, "doctor")
    assert (code, err) == (0, "")
    assert f"PyTorch {torch.__version__}" in out
    assert "missing onnx (export to ONNX, faster predictions; lacks onnxscript): pip install" in out
    assert "missing serve (vitrail serve; lacks uvicorn): pip install 'vitrail[serve]'" in out
    assert "CC-BY-NC-4.0" in out
    _, out, _ = run(capsys, "doctor", "--json")
    found = json.loads(out)
    assert found["device"].startswith(("cpu", "cuda", "mps"))
    assert {each["name"] for each in found["extras"] if each["missing"]} == {"onnx", "serve"}
    _, out, _ = run(capsys)
    assert f"PyTorch {torch.__version__}, without the extras onnx, serve\n" in out
    assert f"{found['device']}, {found['cores']} cores; weights at hand: 1, in " in out
