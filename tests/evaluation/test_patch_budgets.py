"""Batches of images of different sizes (NaFlex) in evaluation, features and fine-tuning."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from tests.predictors import make
from vitrail.config import InputError
from vitrail.data.batches import EvalBatches, TrainBatches
from vitrail.data.datasets.open import open_dataset
from vitrail.data.transforms.apply import normalize, patches_image
from vitrail.data.transforms.augment import Augment
from vitrail.data.transforms.patch_layout import lay_out_patches
from vitrail.data.transforms.preprocess import Preprocess
from vitrail.models import ViT, pack_images
from vitrail.predictor import Predictor

PREPROCESS = Preprocess(
    size=(32, 32), mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.25), interpolation="bicubic",
    fit="stretch", patches=16, patch_size=8,
)  # fmt: skip
NAME = "ViT/8@32,depth=2,width=32,heads=2,mlp=64,classes=2,pool=gap,registers=1"
SHAPES = [(40, 90), (90, 40), (33, 33), (12, 200), (64, 50)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes, dark and light images of many shapes, and one file that is no image."""
    root, draw = tmp_path_factory.mktemp("shapes"), np.random.default_rng(0)
    for split, count in (("train", 10), ("val", 5)):
        for number, name in enumerate(("dark", "light")):
            (root / split / name).mkdir(parents=True)
            for index in range(count):
                shape = (*SHAPES[index % len(SHAPES)], 3)
                pixels = draw.integers(0, 100, shape, np.uint8) + np.uint8(150 * number)
                Image.fromarray(pixels).save(root / split / name / f"{index}.png")
    (root / "val" / "dark" / "9.png").write_bytes(b"no image")
    return root


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    loaded = replace(make(NAME, PREPROCESS), classes=("dark", "light"))
    vitrail.save(loaded, tmp_path_factory.mktemp("naflex") / "model")
    return tmp_path_factory.getbasetemp() / "naflex0" / "model"


def test_a_patch_knows_its_place_however_far() -> None:
    wide = replace(PREPROCESS, patches=1000)
    image = np.arange(8 * 8 * 600 * 3, dtype=np.uint8).reshape(8, 8 * 600, 3)
    found = normalize(torch.from_numpy(lay_out_patches(image, wide))[None], wide)
    assert found[0, 599, :3].tolist() == [0, 599, 1]
    assert found[0, 600, :3].tolist() == [0, 0, 0]
    planes = normalize(torch.from_numpy(image)[None], wide)
    packed = pack_images([planes[0]], (8, 8), 1000)
    assert torch.equal(found[..., 3:][packed.valid], packed.patches[packed.valid])
    assert torch.equal(found[..., :2].long(), packed.places)


def test_a_batch_gives_what_each_image_gives_alone(folder: Path) -> None:
    loaded = make(NAME, PREPROCESS)
    assert isinstance(loaded.model, ViT)
    dataset = open_dataset(folder, split="val")
    batch = EvalBatches(dataset, PREPROCESS, batch=len(dataset))[0]
    assert batch.images.shape == (11, 16, 5 + 8 * 8 * 3)
    with torch.no_grad():
        together = loaded.model(normalize(batch.images, PREPROCESS))
        good = [i for i in range(11) if batch.weights[i]]
        for index in good:
            pixels = torch.from_numpy(patches_image(dataset.read(index), PREPROCESS))[None]
            alone = loaded.model(normalize(pixels, PREPROCESS))
            torch.testing.assert_close(together[index : index + 1], alone, atol=1e-4, rtol=1e-4)
    assert len(good) == 10
    assert together.isfinite().all()


def test_evaluation_and_features_are_the_predictors(model: Path, folder: Path) -> None:
    predictor = Predictor.load(model)
    paths = sorted((folder / "val").rglob("[0-4].png"))
    logits = predictor.logits(paths)
    result = vitrail.evaluate(model, folder)
    labels = torch.tensor([int(path.parent.name == "light") for path in paths])
    assert result.images == 10
    assert result.top1 is not None
    assert result.top1.value == pytest.approx((logits.argmax(1) == labels).float().mean().item())
    assert any("at most 16 patches" in note for note in result.notes)
    out = folder.parent / "features.npy"
    vitrail.embed(model, folder, split="val", out=out)
    np.testing.assert_allclose(np.load(out), predictor.embed(paths), rtol=1e-4, atol=1e-4)
    vitrail.embed(model, folder, split="val", out=out, features="patch-mean")
    mean = [patch_mean(predictor, path) for path in paths]
    np.testing.assert_allclose(np.load(out), torch.cat(mean), rtol=1e-4, atol=1e-4)
    assert vitrail.fewshot(model, folder, shots=[5], seeds=1).to_dict()["shots"]["5"]["mean"] == 1


def patch_mean(predictor: Predictor, path: Path) -> torch.Tensor:
    pixels = normalize(predictor.prepare(path)[None], PREPROCESS)
    with torch.no_grad():
        return predictor.model.tokens(pixels)[:, 1:].mean(1)


def test_training_keeps_the_aspect_ratio(folder: Path) -> None:
    dataset = open_dataset(folder, split="train")
    for crop in ("whole", "inception"):
        augment = Augment(crop=crop, flip=0.5)
        batches = TrainBatches(dataset, augment, PREPROCESS, batch=20, seed=0)
        valid = batches[0].images[..., 4].sum(1)
        assert valid.min() >= 4
        assert valid.max() <= 16
        assert len(valid.unique()) > 1
        assert torch.equal(batches[3].images, batches[3].images)


def test_fine_tuning(model: Path, folder: Path, tmp_path: Path) -> None:
    result = vitrail.finetune(
        folder, weights=str(model), out=tmp_path / "run", steps=30, batch=10, lr=0.01, report=False
    )  # fmt: skip
    assert result.top1 == 1.0
    loaded = vitrail.load(tmp_path / "run")
    assert loaded.preprocess is not None
    assert (loaded.preprocess.patches, loaded.preprocess.patch_size) == (16, 8)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"settings": {"augment.mixup": 0.2}},
            "mixup and cutmix can't use images of different sizes",
        ),
        ({"task": "mae"}, "MaskedImageModeling can't use images of different sizes"),
        ({"model": "BiT@32,stages=1,width=32"}, "patches requires a ViT with square patches"),
    ],
)
def test_what_needs_one_size(
    settings: dict[str, Any], message: str, folder: Path, tmp_path: Path
) -> None:
    more = {"preprocess.patches": 16, **settings.pop("settings", {})}
    words = {"model": NAME, **settings, "out": tmp_path / "run", "settings": more}
    with pytest.raises(InputError, match=message):
        vitrail.train(folder, steps=2, batch=4, **words)
    assert not (tmp_path / "run").exists()
