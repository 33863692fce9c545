"""config.json and preprocessor_config.json, read from and written for transformers."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.weights.huggingface_cases import (
    CLIP,
    DINO,
    VIT,
    hf,
)
from vitrail.config import InputError
from vitrail.data.transforms.geometry import fit_to_size
from vitrail.data.transforms.preprocess import Preprocess
from vitrail.weights.formats.huggingface.huggingface_config import (
    read_hf_classes,
    read_hf_preprocess,
    write_hf_config,
    write_hf_preprocess,
)


def test_config_holds_the_class_names(tmp_path: Path) -> None:
    names = tuple(f"bird {number}" for number in range(7))
    config = write_hf_config(VIT, names)
    assert read_hf_classes(config) == names
    (tmp_path / "config.json").write_text(json.dumps(config))
    theirs = hf.AutoConfig.from_pretrained(tmp_path)
    assert type(theirs) is hf.ViTConfig
    assert theirs.id2label == dict(enumerate(names))
    assert theirs.label2id["bird 3"] == 3
    assert (theirs.hidden_size, theirs.intermediate_size, theirs.qkv_bias) == (48, 96, True)
    assert read_hf_classes(write_hf_config(VIT)) is None  # LABEL_0 is no name
    assert read_hf_classes({}) is None
    with pytest.raises(InputError, match="6 class names for a model of 7 classes"):
        write_hf_config(VIT, names[:6])
    with pytest.raises(InputError, match="does not number its 2 classes from 0"):
        read_hf_classes({"id2label": {"1": "cat", "2": "dog"}})


def test_config_refuses_what_transformers_cannot_build() -> None:
    with pytest.raises(InputError, match=r"no whole mlp_ratio for spec\.mlp=100"):
        write_hf_config(replace(DINO, mlp=100))
    with pytest.raises(InputError, match="CLIP is square"):
        write_hf_config(replace(CLIP, image=(24, 40)))


def processor(kind: str, **options: Any) -> dict[str, Any]:
    return getattr(hf, kind)(**options).to_dict()


HALF = (0.5, 0.5, 0.5)
STRETCH = Preprocess(size=(224, 224), mean=HALF, std=HALF, interpolation="bilinear", fit="stretch")
OPENAI = Preprocess(
    size=(224, 224),
    mean=(0.48145466, 0.4578275, 0.40821073),
    std=(0.26862954, 0.26130258, 0.27577711),
    interpolation="bicubic",
    fit="crop",
    center="floor",
)


@pytest.mark.parametrize(
    ("kind", "options", "expected"),
    [
        ("ViTImageProcessor", {}, STRETCH),
        (
            "ViTImageProcessor",
            {"size": {"height": 96, "width": 128}, "resample": 1},
            replace(STRETCH, size=(96, 128), interpolation="lanczos"),
        ),
        ("DeiTImageProcessor", {}, replace(STRETCH, interpolation="bicubic", crop=0.875)),
        ("CLIPImageProcessor", {}, OPENAI),
        ("CLIPImageProcessor", {"size": {"shortest_edge": 256}}, replace(OPENAI, crop=0.875)),
        ("BitImageProcessor", {}, OPENAI),
        ("SiglipImageProcessor", {}, replace(STRETCH, interpolation="bicubic")),
    ],
)
def test_preprocessing_of_transformers(
    kind: str, options: dict[str, Any], expected: Preprocess, tmp_path: Path
) -> None:
    getattr(hf, kind)(**options).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "preprocessor_config.json").read_text())
    assert read_hf_preprocess(config) == expected
    written = write_hf_preprocess(expected)
    assert read_hf_preprocess(written) == expected
    ours = hf.AutoImageProcessor.from_pretrained(save_json(tmp_path / "ours", written))
    theirs = getattr(hf, kind)(**options)
    image = torch.randint(0, 256, (3, 150, 211), dtype=torch.uint8)
    pixels = [p(image, return_tensors="pt")["pixel_values"] for p in (ours, theirs)]
    assert torch.equal(pixels[0], pixels[1])


def save_json(folder: Path, data: dict[str, Any]) -> Path:
    folder.mkdir()
    (folder / "preprocessor_config.json").write_text(json.dumps(data))
    return folder


OLD = {"resample": 2, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"size": 224, "feature_extractor_type": "ViTFeatureExtractor"}, STRETCH),
        (
            {
                "size": 256,
                "do_center_crop": True,
                "crop_size": 224,
                "feature_extractor_type": "CLIPFeatureExtractor",
            },
            replace(STRETCH, fit="crop", crop=0.875, center="floor"),
        ),
        ({"size": 224, "do_normalize": False}, replace(STRETCH, mean=(0.0,) * 3, std=(1.0,) * 3)),
        (
            {"size": 224, "do_rescale": False, "image_mean": [51.0] * 3, "image_std": [255.0] * 3},
            replace(STRETCH, mean=(0.2,) * 3, std=(1.0,) * 3),
        ),
    ],
)
def test_older_preprocessing(config: dict[str, Any], expected: Preprocess) -> None:
    assert read_hf_preprocess({**OLD, **config}) == expected


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "no size"),
        ({"size": 224, "image_mean": None}, "no image_mean"),
        ({"size": 224, "image_std": [0.5, None, 0.5]}, "expected numbers in image_std"),
        ({"size": 224, "rescale_factor": "1"}, "expected numbers in rescale_factor"),
        ({"size": 224, "do_resize": False}, "do_resize is off"),
        ({"size": 224, "resample": 5}, "unknown resample 5"),
        ({"size": {"shortest_edge": 224}}, "cuts nothing"),
        ({"size": {"longest_edge": 224}}, r"size is .* expected a number, height and width"),
        ({"size": 224, "do_center_crop": True}, "no crop_size"),
        ({"size": 224, "do_center_crop": True, "crop_size": [224, 112]}, "of another shape"),
        (
            {"size": {"shortest_edge": 256}, "do_center_crop": True, "crop_size": [224, 112]},
            "cuts 224x112 from the short side",
        ),
    ],
)
def test_preprocessing_that_says_too_little_is_refused(
    config: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        read_hf_preprocess({**OLD, **config})


@pytest.mark.parametrize(
    ("preprocess", "size"),
    [
        (replace(OPENAI, crop=0.9), {"shortest_edge": 248}),  # as timm's rule, which rounds down
        (replace(OPENAI, crop=0.875, fit="small"), {"shortest_edge": 256}),
        (replace(OPENAI, fit="small"), {"shortest_edge": 224}),
        (replace(STRETCH, crop=0.9), {"height": 249, "width": 249}),
    ],
)
def test_what_is_written_resizes_as_we_do(preprocess: Preprocess, size: dict[str, int]) -> None:
    written = write_hf_preprocess(preprocess)
    assert written["size"] == size
    again = read_hf_preprocess(written)
    for height, width in ((150, 211), (301, 200)):
        assert fit_to_size(height, width, again).size == fit_to_size(height, width, preprocess).size


def test_no_processor_cuts_other_shapes_from_the_short_side() -> None:
    with pytest.raises(InputError, match="224x112"):
        write_hf_preprocess(replace(OPENAI, size=(224, 112)))


def test_a_class_may_be_called_none() -> None:
    names = ("None", "cat", "dog")
    assert read_hf_classes({"id2label": {str(i): name for i, name in enumerate(names)}}) == names
    with pytest.raises(InputError, match="id2label does not number its 2 classes from 0"):
        read_hf_classes({"id2label": {"0": "a", "2": "b"}})
