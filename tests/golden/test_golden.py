"""Outputs of the official JAX code on small random models: ours are equal.

Covers: vision_transformer's ViT (class token, GAP, pre-logits), hybrids (stem alone, stages) and
position resize; big_vision's ViT (GAP with sin-cos, MAP, class token with pre-logits) and BiT.
"""

import json

import pytest
import torch

from tests.golden.reader import FOLDER, arrays, images, spec, state
from vitrail.models import build, resize_positions

MODELS = sorted(path.stem for path in FOLDER.glob("*.json"))


def test_all_models_are_here() -> None:
    assert len(MODELS) == 9


@pytest.mark.parametrize("name", MODELS)
def test_outputs_equal_the_official_code(name: str) -> None:
    wanted = spec(name)
    model = build(wanted).eval()
    model.load_state_dict(state(name, getattr(wanted, "stages", ())))
    x, outputs = images(name)
    with torch.no_grad():
        tokens = model.tokens(x)
        features = model.features(x)
        logits = model(x)
    record = json.loads((FOLDER / f"{name}.json").read_text())
    assert sum(p.numel() for p in model.parameters()) == record["parameters"]
    _assert_near(features, outputs["pre_logits"])
    _assert_near(logits, outputs["logits"])
    if "encoded" in outputs:
        _assert_near(tokens, outputs["encoded"])


def _assert_near(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    """Hold the largest difference to 1e-5 of the largest value."""
    assert ours.shape == theirs.shape
    assert (ours - theirs).abs().max() <= 1e-5 * theirs.abs().max()


@pytest.mark.parametrize("side", [3, 6, 7, 9])
def test_position_resize_equals_the_official_code(side: int) -> None:
    golden = {
        key: torch.from_numpy(value) for key, value in arrays("google-posembed-resize").items()
    }
    resized = resize_positions(golden["old"][0], (4, 4), (side, side), prefix=1)
    torch.testing.assert_close(resized, golden[f"grid{side}"][0], rtol=0, atol=1e-6)
