"""Zero-shot classifiers against transformers: text embeddings, tokens, logits, probabilities."""

import string
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tests import text_models
from tests.parity import peers
from vitrail.predictor import Predictor
from vitrail.weights.text.zero_shot import load_text_encoder, zero_shot_model

NAMES = ("cat", "dog", "red house")
TEXTS = [f"a photo of a {name}." for name in NAMES]
MAKERS = {
    "CLIP": lambda folder: text_models.make_clip(folder),
    "CLIP, old end": lambda folder: text_models.make_clip(folder, text={"eos_token_id": 2}),
    "CLIP, gelu": lambda folder: text_models.make_clip(
        folder,
        text={"hidden_act": "gelu", "layer_norm_eps": 1e-3},
        image={"hidden_act": "gelu", "layer_norm_eps": 1e-3},
    ),
    "SigLIP": lambda folder: text_models.make_siglip(folder),
}


def tokenize(folder: Path, model: Any, texts: list[str]) -> Any:
    tokenizer = peers.load("transformers").AutoTokenizer.from_pretrained(folder)
    padding: dict[str, Any] = {"padding": True}
    if "siglip" in model.config.model_type:
        padding = {"padding": "max_length", "max_length": 64}
    return tokenizer(texts, return_tensors="pt", **padding)


@pytest.mark.parametrize("name", MAKERS)
def test_logits_equal_transformers(name: str, tmp_path: Path) -> None:
    theirs = MAKERS[name](tmp_path)
    ours = zero_shot_model(tmp_path, NAMES)
    x = peers.images(ours.model.spec, torch.float32, (32, 32))
    with torch.inference_mode():
        expected = theirs(**tokenize(tmp_path, theirs, TEXTS), pixel_values=x)
        logits = ours.model(x)
    assert expected.logits_per_image.std() > 1e-2
    torch.testing.assert_close(logits, expected.logits_per_image, atol=1e-5, rtol=0)
    torch.testing.assert_close(ours.model.features(x), expected.image_embeds, atol=1e-5, rtol=0)
    assert ours.activation == ("sigmoid" if name == "SigLIP" else "softmax")


@pytest.mark.parametrize("name", ["CLIP", "SigLIP"])
def test_predictions_equal_the_pipeline(name: str, tmp_path: Path) -> None:
    MAKERS[name](tmp_path / "model")
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3), np.uint8)
    hf = peers.load("transformers")
    pipeline = hf.pipeline("zero-shot-image-classification", str(tmp_path / "model"))
    asked = {"candidate_labels": list(NAMES), "hypothesis_template": "This is a photo of {}."}
    expected = pipeline(Image.fromarray(pixels), **asked)
    model = zero_shot_model(tmp_path / "model", NAMES, templates="This is a photo of {}.")
    found = Predictor(model).predict(pixels)
    assert [each.label for each in found.top] == [each["label"] for each in expected]
    scores = [each.probability for each in found.top]
    np.testing.assert_allclose(scores, [each["score"] for each in expected], atol=1e-5)


def test_open_clip_equals_transformers(tmp_path: Path) -> None:
    theirs = text_models.make_clip(tmp_path / "hf")
    text_models.to_open_clip(theirs, tmp_path / "open")
    both = [zero_shot_model(tmp_path / name, NAMES) for name in ("hf", "open")]
    x = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(both[1].model(x), both[0].model(x), atol=1e-6, rtol=0)


def test_templates_are_averaged_as_clip_does(tmp_path: Path) -> None:
    theirs = text_models.make_clip(tmp_path)
    templates = ["a photo of a {}.", "the small {}", "{}"]
    ours = zero_shot_model(tmp_path, NAMES, templates=templates)
    rows = []
    for name in NAMES:
        texts = [template.format(name) for template in templates]
        with torch.inference_mode():
            embeds = theirs.get_text_features(**tokenize(tmp_path, theirs, texts)).pooler_output
        mean = (embeds / embeds.norm(dim=-1, keepdim=True)).mean(0)
        rows.append(mean / mean.norm())
    assert ours.model.head.output is not None
    found = ours.model.head.output.weight
    torch.testing.assert_close(found, torch.stack(rows) * np.exp(1.5), atol=1e-5, rtol=0)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, Any]]:
    made = {}
    for name in ("CLIP", "SigLIP"):
        folder = tmp_path_factory.mktemp(name)
        MAKERS[name](folder)
        theirs = peers.load("transformers").AutoTokenizer.from_pretrained(folder)
        made[name] = load_text_encoder(folder).tokenizer, theirs
    return made


@given(text=st.text(st.characters(codec="utf-8") | st.sampled_from(string.printable), max_size=20))
@settings(max_examples=200)
def test_tokens_equal_transformers(folders: dict[str, tuple[Any, Any]], text: str) -> None:
    for ours, theirs in folders.values():
        expected = theirs(text)["input_ids"]
        if len(expected) <= ours.spec.context:
            found = ours.encode([text])[0].tolist()
            assert found[: len(expected)] == expected
            assert set(found[len(expected) :]) <= {ours.pad}
