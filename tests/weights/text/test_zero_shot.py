"""Zero-shot classifiers as models: prompts, refusals, saving, evaluating, exporting."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import vitrail
from tests import text_models
from tests.commands import run
from vitrail.config import InputError
from vitrail.models import ViTSpec, parse
from vitrail.weights.class_names import imagenet_wnids
from vitrail.weights.text.prompts import (
    CLIP_TEMPLATES,
    DEFAULT_TEMPLATE,
    parse_classes,
    parse_templates,
    spell_classes,
)
from vitrail.weights.text.tokenizer import canonicalize
from vitrail.weights.text.zero_shot import zero_shot_model


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "clip"
    text_models.make_clip(folder)
    return folder


def test_classes_and_templates_are_lists_text_or_files(tmp_path: Path) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_text("red {}\n\n  a {} truck \n", encoding="utf-8")
    assert parse_templates(lines) == parse_templates(str(lines)) == ("red {}", "a {} truck")
    assert parse_templates(None) == (DEFAULT_TEMPLATE,)
    assert parse_templates("clip-7") == CLIP_TEMPLATES
    assert len(CLIP_TEMPLATES) == 7
    assert parse_classes("cat, dog") == parse_classes(["cat", "dog"]) == ("cat", "dog")
    lines.write_text("tench, a fish\ncat\n", encoding="utf-8")
    assert parse_classes(lines) == ("tench, a fish", "cat")


def test_class_names_are_spelled_as_words() -> None:
    assert spell_classes(["pit_bull", "cat"]) == ("pit bull", "cat")
    assert spell_classes(["n01440764", "n01443537"]) == ("tench", "goldfish")
    wnids = imagenet_wnids(1000)
    assert wnids is not None
    words = spell_classes(wnids)
    # CLIP's tokenizer has no capitals, and a text for two classes can't tell one from the other.
    assert len({word.lower() for word in words}) == 1000
    assert words[264] == "Cardigan Welsh corgi"
    assert (words[134], words[517]) == ("crane bird", "construction crane")
    assert (words[638], words[639]) == ("tights", "one-piece bathing suit")
    assert spell_classes(["n01440764", "other"]) == ("n01440764", "other")


def test_siglips_texts_have_no_punctuation() -> None:
    assert canonicalize("  A Photo, of\ta  Cat! ") == "a photo of a cat"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"classes": ","}, "--classes: expected names"),
        ({"classes": []}, "--classes: expected names"),
        ({"classes": "cat,dog,cat"}, "--classes has 'cat' twice"),
        ({"classes": "cat", "templates": "no place"}, "expected texts with one {}"),
        ({"classes": "cat", "templates": []}, "got none"),
        ({"classes": "cat " * 80}, "takes at most 77"),
    ],
)
def test_wrong_texts_are_refused(clip: Path, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        zero_shot_model(clip, **arguments)


def test_missing_and_foreign_tokenizers_are_refused(clip: Path, tmp_path: Path) -> None:
    for name in ("model.safetensors", "config.json"):
        (tmp_path / name).write_bytes((clip / name).read_bytes())
    with pytest.raises(InputError, match=r"has no tokenizer\.json; put the one"):
        zero_shot_model(tmp_path, "cat")
    (tmp_path / "tokenizer.json").write_text("{", encoding="utf-8")
    with pytest.raises(InputError, match="is not a tokenizer"):
        zero_shot_model(tmp_path, "cat")
    text_models.siglip2_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(InputError, match="it belongs to another model"):
        zero_shot_model(tmp_path, "cat")


def test_a_missing_package_is_named(clip: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "tokenizers", None)
    with pytest.raises(InputError, match=r"pip install 'vitrail\[text\]'"):
        zero_shot_model(clip, "cat")


def test_a_model_without_a_text_tower_is_refused(tmp_path: Path) -> None:
    model = vitrail.build("ViT/8@16,depth=1,width=16,heads=2,mlp=16", classes=2)
    vitrail.save(model, tmp_path / "ours")
    with pytest.raises(InputError, match="holds no text tower"):
        vitrail.predict(tmp_path / "ours", np.zeros((16, 16, 3), np.uint8), classes="cat")
    vitrail.convert(str(tmp_path / "ours"), tmp_path / "timm", "timm")
    with pytest.raises(InputError, match="has no text tower, so its classes can't be given"):
        zero_shot_model(tmp_path / "timm", "cat")


def test_a_classifier_is_an_ordinary_model(clip: Path, tmp_path: Path) -> None:
    made = zero_shot_model(clip, "cat,dog")
    spec = made.model.spec
    assert isinstance(spec, ViTSpec)
    assert (spec.representation, spec.representation_tanh, spec.unit_features) == (24, False, True)
    assert parse(str(spec)) == spec
    vitrail.save(made, tmp_path / "made")
    again = vitrail.load(tmp_path / "made")
    assert again.classes == ("cat", "dog")
    x = torch.randn(2, 3, 32, 32)
    assert torch.equal(again.model(x), made.model(x))
    counted = sum(p.numel() for p in made.model.parameters())
    assert vitrail.describe(str(spec)).parameters == counted
    with pytest.raises(InputError, match="timm does not support head_bias=False"):
        vitrail.convert(str(tmp_path / "made"), tmp_path / "timm", "timm")
    replaced = vitrail.load(tmp_path / "made", classes=3).model.spec
    assert isinstance(replaced, ViTSpec)
    assert (replaced.representation, replaced.unit_features, replaced.head_bias) == (0, False, True)


def test_zeroshot_scores_a_dataset(clip: Path, tmp_path: Path) -> None:
    folder = tmp_path / "made"
    result = vitrail.zeroshot(clip, "shapes:count=40", split="val", save=folder)
    same = vitrail.evaluate(folder, "shapes:count=40", split="val")
    assert result.top1 == same.top1
    assert result.model == str(clip)
    assert result.top1 is not None
    low, high = result.top1.low, result.top1.high
    assert low < result.top1.value < high or result.top1.value in (0, 1)
    with pytest.raises(InputError, match="give one for each, in their order"):
        vitrail.zeroshot(clip, "shapes:count=40", split="val", classes="one")


def test_the_command_prints_each_images_classes(
    clip: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from PIL import Image

    Image.new("RGB", (40, 30), "red").save(tmp_path / "red.png")
    command = ["predict", str(clip), str(tmp_path / "red.png"), "--classes", "cat,dog", "--json"]
    line = json.loads(run(capsys, *command)[1])
    assert {each["label"] for each in line["top"]} == {"cat", "dog"}
    assert sum(each["probability"] for each in line["top"]) == pytest.approx(1)


@pytest.mark.parametrize("second", [False, True], ids=["CLIP", "SigLIP 2"])
def test_a_zero_shot_head_is_where_fine_tuning_begins(second: bool, tmp_path: Path) -> None:
    """The rows of its classes stay, with the projection and the length that they go with."""
    if second:
        text_models.make_siglip(tmp_path / "both", second=True)
    else:
        text_models.make_clip(tmp_path / "both")
    made = zero_shot_model(tmp_path / "both", ["cat", "dog"])
    vitrail.save(made, tmp_path / "zero")
    x = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    begun = vitrail.load(tmp_path / "zero", classes=["dog", "hen", "cat"]).model
    with torch.no_grad():
        rows, expected = begun(x), made.model(x)
    torch.testing.assert_close(rows[:, [2, 0]], expected)
    if not second:
        assert torch.equal(rows[:, 1], torch.zeros(3))  # CLIP's head has no bias
    other = vitrail.load(tmp_path / "zero", classes=["hen", "owl"]).model.spec
    assert isinstance(other, ViTSpec)
    assert not other.unit_features  # nothing of it stays for other classes
