"""Patch budgets against transformers (SigLIP 2) and timm (NaFlex): sizes, pixels, logits."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

import vitrail
from tests import text_models
from tests.parity import peers
from vitrail.config import InputError
from vitrail.data.transforms.geometry import fit_to_patches
from vitrail.predictor import Predictor

SIDES = st.integers(1, 3000)


@given(
    height=SIDES, width=SIDES, patch=st.sampled_from([8, 14, 16, 32]), budget=st.integers(1, 1024)
)
@settings(deadline=None)
@example(height=1, width=3000, patch=16, budget=256)
def test_sizes_equal_both(height: int, width: int, patch: int, budget: int) -> None:
    found = fit_to_patches(height, width, patch, budget)
    name = "transformers.models.siglip2.image_processing_siglip2"
    theirs = peers.load(name).get_image_size_for_max_num_patches
    assert found == theirs(height, width, patch, budget)
    assert min(found) >= patch
    if max(height, width) < 1000 and min(height, width) > 100:
        timm = peers.load("timm.data.naflex_transforms").get_image_size_for_seq
        assert found == timm((height, width), patch, budget)[1]


@pytest.mark.parametrize("size", [(30, 70), (64, 64), (90, 20)])
def test_images_of_any_shape_equal_transformers(size: tuple[int, int], tmp_path: Path) -> None:
    theirs = text_models.make_siglip(tmp_path, second=True)
    pixels = np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8)
    hf = peers.load("transformers")
    processor = hf.Siglip2ImageProcessorPil.from_pretrained(tmp_path)
    inputs = processor(pixels, return_tensors="pt")
    predictor = Predictor.load(tmp_path, classes="cat,dog")
    rows, columns = inputs["spatial_shapes"][0].tolist()
    assert rows * columns <= 16
    prepared = predictor.prepare(pixels)
    assert tuple(prepared.shape) == (8 * rows, 8 * columns, 3)
    cells = prepared.view(rows, 8, columns, 8, 3).transpose(1, 2).reshape(rows * columns, -1)
    values = inputs["pixel_values"][0, : rows * columns]
    torch.testing.assert_close(cells.float() / 127.5 - 1, values, atol=1e-6, rtol=0)
    tokens = hf.AutoTokenizer.from_pretrained(tmp_path)(
        ["a photo of a cat.", "a photo of a dog."], padding="max_length", max_length=64,
        return_tensors="pt",
    )  # fmt: skip
    with torch.inference_mode():
        expected = theirs(**tokens, **inputs).logits_per_image[0]
    torch.testing.assert_close(predictor.logits(pixels), expected, atol=1e-5, rtol=0)


def test_a_budget_is_checked_and_kept(tmp_path: Path) -> None:
    text_models.make_siglip(tmp_path / "second", second=True)
    loaded = vitrail.load(tmp_path / "second")
    assert loaded.preprocess is not None
    assert (loaded.preprocess.patches, loaded.preprocess.size) == (16, (32, 32))
    vitrail.save(loaded, tmp_path / "ours")
    assert vitrail.load(tmp_path / "ours").preprocess == loaded.preprocess
    images = [np.zeros((40, 90, 3), np.uint8), np.zeros((90, 40, 3), np.uint8)]
    with pytest.raises(InputError, match="--patches must be at least 1, got 0"):
        vitrail.predict(tmp_path / "second", images, classes="cat,dog", patches=0)
    found = vitrail.predict(tmp_path / "second", images, classes="cat,dog", patches=4)
    assert found.images == 2
