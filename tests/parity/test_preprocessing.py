"""Images as transformers' processors and timm's transforms make them of what is written for them.

Compared bit for bit before normalization, with processors that stretch, that crop, and both.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.material import PETS
from tests.parity import peers
from vitrail.data.transforms.apply import eval_image
from vitrail.data.transforms.preprocess import Preprocess
from vitrail.models import ViTSpec, parse
from vitrail.weights.formats.huggingface.huggingface_config import (
    read_hf_preprocess,
    write_hf_preprocess,
)
from vitrail.weights.formats.timm.timm_config import read_timm_preprocess, write_timm_config

CROP = Preprocess(
    size=(224, 224), mean=(0.5,) * 3, std=(0.5,) * 3, interpolation="bicubic", fit="crop", crop=0.9
)
SMALL = replace(CROP, size=(32, 32))
Peer = Callable[[Image.Image], np.ndarray]


def transformers_pipeline(preprocess: Preprocess, folder: Path) -> tuple[Peer, Preprocess]:
    """Load transformers' own processor from what is written; also read it back."""
    hf: Any = peers.load("transformers")
    written = write_hf_preprocess(preprocess)
    plain = {**written, "do_rescale": False, "do_normalize": False}
    folder.mkdir()
    (folder / "preprocessor_config.json").write_text(json.dumps(plain))
    process = hf.AutoImageProcessor.from_pretrained(folder, backend="pil")

    def run(image: Image.Image) -> np.ndarray:
        (pixels,) = process(image, return_tensors="np")["pixel_values"]
        return pixels.transpose(1, 2, 0)

    return run, read_hf_preprocess(written)


def timm_pipeline(preprocess: Preprocess, folder: Path) -> tuple[Peer, Preprocess]:
    """Make timm's own transform of what is written; also read it back."""
    data: Any = peers.load("timm.data")
    spec = parse("ViT-Ti/16")
    assert isinstance(spec, ViTSpec)
    config = write_timm_config(replace(spec, image=preprocess.size), preprocess, None)
    said = data.resolve_data_config({}, pretrained_cfg=config["pretrained_cfg"])
    transform = data.create_transform(**said, is_training=False, normalize=False)
    again = read_timm_preprocess(config)
    assert again is not None
    return lambda image: transform(image).permute(1, 2, 0).numpy(), again


PIPELINES = [
    (transformers_pipeline, {"center": "floor"}),
    (transformers_pipeline, {"center": "floor", "crop": 1.0, "interpolation": "bilinear"}),
    (transformers_pipeline, {"fit": "stretch"}),
    (timm_pipeline, {}),
    (timm_pipeline, {"crop": 1.0, "interpolation": "bilinear"}),
    (timm_pipeline, {"fit": "stretch", "crop": 1.0}),
]


def odd_images() -> Iterator[Image.Image]:
    """Draw images of odd sizes: of the 40, most leave an odd margin on a side."""
    rng = np.random.default_rng(0)
    for height, width in rng.integers(17, 150, (40, 2)):
        yield Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8))


@pytest.mark.parametrize(("pipeline", "changes"), PIPELINES)
def test_written_preprocessing_is_the_peers(
    pipeline: Any, changes: dict[str, Any], tmp_path: Path
) -> None:
    run, ours = pipeline(replace(SMALL, **changes), tmp_path / "out")
    for image in odd_images():
        assert np.array_equal(eval_image(np.asarray(image), ours), run(image)), image.size


def test_the_two_projects_cut_odd_margins_at_different_places() -> None:
    """Resized to 32 x 35, half of a margin of 3 is 2 (timm) or 1 (transformers)."""
    image = np.arange(32 * 35 * 3, dtype=np.uint8).reshape(32, 35, 3)
    whole = replace(SMALL, crop=1.0)
    assert np.array_equal(eval_image(image, whole), image[:, 2:34])
    assert np.array_equal(eval_image(image, replace(whole, center="floor")), image[:, 1:33])


@pytest.mark.slow
@pytest.mark.skipif(not PETS.is_dir(), reason="needs photos")
@pytest.mark.parametrize(("pipeline", "changes"), PIPELINES)
def test_photos_are_the_peers(pipeline: Any, changes: dict[str, Any], tmp_path: Path) -> None:
    run, ours = pipeline(replace(CROP, **changes), tmp_path / "out")
    photos = sorted(PETS.rglob("*.jpg"))[::2]
    assert len(photos) >= 300
    for photo in photos:
        content = photo.read_bytes()
        assert np.array_equal(eval_image(content, ours), run(Image.open(photo).convert("RGB")))
