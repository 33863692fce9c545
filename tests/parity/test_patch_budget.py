"""Patch budgets against transformers (SigLIP 2) and timm (NaFlex): sizes, pixels, logits."""

import csv
import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image

import vitrail
from tests import text_models
from tests.parity import peers
from vitrail.config import InputError
from vitrail.data.transforms.apply import normalize
from vitrail.data.transforms.geometry import fit_to_patches
from vitrail.predictor import Predictor

SIDES = st.integers(1, 3000)


@given(
    height=SIDES, width=SIDES, patch=st.sampled_from([8, 14, 16, 32]), budget=st.integers(1, 1024)
)
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


def test_every_command_takes_a_budget(tmp_path: Path) -> None:
    """A model of one size reads images at their own, the same in each command."""
    text_models.make_clip(tmp_path / "clip")
    rng = np.random.default_rng(0)
    for split, label in itertools.product(("train", "val"), ("cat", "dog")):
        folder = tmp_path / "photos" / split / label
        folder.mkdir(parents=True)
        for number in range(3):
            height, width = rng.integers(20, 120, 2)
            pixels = rng.integers(0, 256, (height, width, 3), np.uint8)
            Image.fromarray(pixels).save(folder / f"{number}.png")
    photos, clip = tmp_path / "photos", tmp_path / "clip"
    vitrail.embed(clip, photos, out=tmp_path / "found.npy", patches=6, fresh=True)
    predictor = Predictor.load(clip).with_patches(6)
    names = list(csv.DictReader((tmp_path / "found.rows.csv").read_text().splitlines()))
    for row, found in zip(names, np.load(tmp_path / "found.npy"), strict=True):
        pixels = np.asarray(Image.open(photos / row["name"]))
        rows, columns = (side // 8 for side in predictor.prepare(pixels).shape[:2])
        assert rows * columns <= 6
        image = normalize(predictor.prepare(pixels)[None], predictor.preprocess)
        with torch.no_grad():
            expected = predictor.model.features(image)[0]
        np.testing.assert_allclose(found, expected, atol=1e-4)
    vitrail.fewshot(clip, photos, shots=[2], patches=6, out=tmp_path / "few", fresh=True)
    kept = vitrail.load(tmp_path / "few").preprocess
    assert kept is not None
    assert kept.patches == 6
    vitrail.zeroshot(str(clip), photos, save=tmp_path / "zero", patches=6)
    result = vitrail.evaluate(tmp_path / "zero", photos, patches=4)
    assert result.notes == ("images keep their aspect ratio, in at most 4 patches",)
    for command in (vitrail.evaluate, vitrail.fewshot):
        with pytest.raises(InputError, match="--patches must be at least 1, got 0"):
            command(tmp_path / "zero", photos, patches=0)
    with pytest.raises(InputError, match="give it or --image, not both"):
        vitrail.evaluate(tmp_path / "zero", photos, patches=4, image="32")
    with pytest.raises(InputError, match="requires a ViT with square patches, got BiT"):
        vitrail.evaluate(vitrail.build("BiT-R50x1", classes=2), photos, patches=4)
