"""A model for the Hugging Face hub: read back by transformers, and its card by its front matter."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import vitrail
from tests.commands import run
from tests.parity import peers
from vitrail.config import InputError
from vitrail.data.decoding.reading import Reading
from vitrail.deploy.exporting import hub_export

TINY = "ViT/4@8,depth=2,width=32,heads=2,mlp=64"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a tiny model for two steps."""
    out = tmp_path_factory.mktemp("hub") / "tiny"
    settings = {"loggers": (), "loader.workers": 0}
    vitrail.train("digits", model=TINY, steps=2, out=out, settings=settings, report=False)
    return out


def front_of(card: str) -> dict[str, Any]:
    return yaml.safe_load(card.split("---\n")[1])


def test_transformers_read_what_is_written(trained: Path, tmp_path: Path) -> None:
    found = vitrail.export(trained, tmp_path / "mine", to="hub")
    names = {file.name for file in found.files}
    weights = {"README.md", "config.json", "model.safetensors", "preprocessor_config.json"}
    assert names == weights
    hf: Any = peers.load("transformers.models.vit.modeling_vit")
    theirs = hf.ViTForImageClassification.from_pretrained(tmp_path / "mine").eval()
    ours, images = vitrail.load(trained).model.eval(), torch.randn(3, 3, 8, 8)
    with torch.no_grad():
        torch.testing.assert_close(theirs(images).logits, ours(images), rtol=0, atol=1e-5)
    assert [theirs.config.id2label[number] for number in range(10)] == list("0123456789")


def test_the_card_says_what_it_is(trained: Path, tmp_path: Path) -> None:
    vitrail.export(trained, tmp_path / "mine", to="hub")
    card = (tmp_path / "mine" / "README.md").read_text(encoding="utf-8")
    front = front_of(card)
    assert front["library_name"] == "transformers"
    assert front["pipeline_tag"] == "image-classification"
    assert front["license"] == "other"  # nobody said one
    (entry,) = front["model-index"][0]["results"]
    top1 = yaml.safe_load((trained / "result.json").read_text())["top1"]
    assert entry["dataset"]["name"] == "digits"
    assert entry["metrics"] == [{"type": "accuracy", "value": round(top1, 4)}]
    assert f"Top-1 accuracy {top1:.2%}" in card
    assert "0, 1, 2, 3, 4, 5, 6, 7, 8, 9" in card
    assert str(tmp_path) not in card


def test_the_card_says_how_deep_images_are_read(trained: Path, tmp_path: Path) -> None:
    loaded = vitrail.load(trained)
    assert loaded.preprocess is not None
    plain = vitrail.export(loaded, tmp_path / "plain", to="hub")
    assert plain.reading is None
    assert "Before that" not in (tmp_path / "plain" / "README.md").read_text()
    read = replace(loaded.preprocess, reading=Reading(levels=(0, 4095)))
    found = vitrail.export(replace(loaded, preprocess=read), tmp_path / "deep", to="hub")
    said = "scale images of more than 8 bits to 255 * value / 4095, rounded and clipped to [0, 255]"
    assert found.reading == said
    assert f"Before that, {said}" in (tmp_path / "deep" / "README.md").read_text()


def test_a_folder_is_pushed_if_asked(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, Any]] = []

    class Api:
        def create_repo(self, name: str, *, exist_ok: bool) -> None:
            calls.append(("create", (name, exist_ok)))

        def upload_folder(self, *, repo_id: str, folder_path: Path) -> None:
            calls.append(("upload", (repo_id, (folder_path / "README.md").exists())))

    monkeypatch.setattr("huggingface_hub.HfApi", Api)
    found = vitrail.export(trained, tmp_path / "mine", to="hub", push="me/mine")
    assert calls == [("create", ("me/mine", True)), ("upload", ("me/mine", True))]
    assert found.address == "https://huggingface.co/me/mine"
    card = (tmp_path / "mine/README.md").read_text()
    assert 'pipeline("image-classification", "me/mine")("cat.jpg")' in card
    monkeypatch.setattr(Api, "create_repo", lambda *args, **options: 1 / 0)
    with pytest.raises(InputError, match="is written, but can't be pushed to me/mine: division"):
        hub_export.push_folder(tmp_path / "mine", "me/mine")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--to", "hub", "--push", "mine"], "--push mine: expected ORG/NAME"),
        (["--to", "onnx", "--push", "me/mine"], "--push requires --to hub, not onnx"),
        (["--to", "hbu"], "did you mean 'hub'"),
    ],
)
def test_what_cannot_be_is_refused(
    words: list[str], said: str, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "mine"
    code, _, err = run(capsys, "export", str(trained), str(out), *words)
    assert code == 2
    assert said in err
    assert err.count("\n") == 1
    assert not out.exists()


def test_the_catalog_is_filtered(capsys: pytest.CaptureFixture[str]) -> None:
    every = vitrail.list_weights().weights
    found = vitrail.list_weights(use="fine-tune", free=True, at_most=30).weights
    wanted = [
        each
        for each in every
        if each.use == "fine-tune" and "NC" not in each.license
        if not each.access and each.parameters <= 30e6
    ]
    assert list(found) == wanted
    assert 0 < len(found) < len(every)
    assert run(capsys, "weights", "list", "--at-most", "nan")[0] == 2
    code, _, err = run(capsys, "weights", "list", "--at-most", "0")
    assert (code, err.count("\n")) == (2, 1)
