"""The license of weights is shown, and one that has to be accepted first is said in one line."""

from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

import vitrail
from tests.predictors import make
from vitrail.config import InputError
from vitrail.weights.checkpoint import Provenance
from vitrail.weights.license import find_license
from vitrail.weights.sources.resolve import resolve
from vitrail.weights.sources.resolved import Resolved


def found(folder: Path, config: dict[str, Any], source: str = "file:x") -> Resolved:
    return Resolved(source, folder / "model.safetensors", config)


def test_where_a_license_is_found(tmp_path: Path) -> None:
    assert find_license(found(tmp_path, {})) is None
    config = {"pretrained_cfg": {"license": "dinov3-license"}}
    assert find_license(found(tmp_path, config)) == "dinov3-license"
    card = tmp_path / "README.md"
    card.write_text("---\ntags:\n- image\nlicense: apache-2.0\n---\n# A model\n")
    assert find_license(found(tmp_path, {})) == "apache-2.0"
    card.write_text("---\nlicense: other\nlicense_name: dinov3-license\n---\n")
    assert find_license(found(tmp_path, {})) == "dinov3-license"
    card.write_text("license: none, as this is no front matter")
    assert find_license(found(tmp_path, {})) is None


def test_weights_show_prints_it(tmp_path: Path) -> None:
    vitrail.save(make(), tmp_path / "ours")
    shown = vitrail.show_weights(str(tmp_path / "ours"))
    assert shown.license is None
    assert shown.to_dict()["license"] is None
    assert "not stated: see where the weights come from" in str(next(iter(shown.summary())))
    origin = Provenance(source="timm:vit_small_patch16_dinov3.lvd1689m", sha256="", format="timm")
    vitrail.save(replace(make(), provenance=origin), tmp_path / "ours")
    assert vitrail.show_weights(str(tmp_path / "ours")).license == "DINOv3 License"


def test_a_gated_source_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = pytest.importorskip("huggingface_hub")

    def refuse(*args: Any, **options: Any) -> str:
        raise hub.errors.GatedRepoError("Access is restricted", response=Answer())

    monkeypatch.setattr(hub, "hf_hub_download", refuse)
    monkeypatch.setattr("vitrail.download.knock", lambda *args, **options: None)
    with pytest.raises(InputError) as caught:
        resolve("hf:facebook/dinov3-vits16-pretrain-lvd1689m", cache=tmp_path)
    said = str(caught.value)
    assert "facebook/dinov3-vits16-pretrain-lvd1689m is gated: accept its license at" in said
    assert "`hf auth login`" in said
    assert "\n" not in said


class Answer:
    """What the hub's errors read of a response."""

    headers: ClassVar[dict[str, str]] = {}
    request = None
    status_code = 403
