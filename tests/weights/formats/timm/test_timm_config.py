"""timm's config.json: architectures, preprocessing, names of classes."""

from dataclasses import replace
from typing import Any

import pytest

from tests.parity import peers
from vitrail.config import InputError
from vitrail.data.transforms.preprocess import Preprocess
from vitrail.models import parse
from vitrail.weights.formats.format import FileFacts
from vitrail.weights.formats.known_formats import read_preprocess
from vitrail.weights.formats.timm.timm import TIMM
from vitrail.weights.formats.timm.timm_config import (
    architecture_of,
    read_timm_classes,
    read_timm_preprocess,
    write_timm_config,
)

timm = peers.load("timm")

TINY = parse("ViT-Ti/16")
AUGREG = Preprocess(
    size=(224, 224), mean=(0.5,) * 3, std=(0.5,) * 3, interpolation="bicubic", fit="crop", crop=0.9
)


def test_architectures_are_timms() -> None:
    names = ["ViT-Ti/16", "ViT-B/16@384", "ViT-L/14", "ViT-G/14", "R26+ViT-B/32", "R50+ViT-L/32"]
    specs = [replace(parse(name), activation="gelu", classes=5) for name in names]
    found = [architecture_of(spec) for spec in [*specs, parse("BiT-R152x4")]]
    assert found == [
        "vit_tiny_patch16_224",
        "vit_base_patch16_384",
        "vit_large_patch14_224",
        "vit_gigantic_patch14_224",
        "vit_base_r26_s32_224",
        "vit_large_r50_s32_224",
        "resnetv2_152x4_bit",
    ]
    assert set(found) <= set(timm.list_models())
    for name in ("ViT-Ti/16", "ViT-L/14@378,activation=gelu", "BiT-R200x1", "R50+ViT-B/32"):
        assert architecture_of(parse(name)) is None


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"crop_pct": 0.9}, ("crop", 0.9)),
        ({"crop_pct": None, "crop_mode": None}, ("crop", 0.875)),
        ({"crop_pct": 1.0, "crop_mode": "squash"}, ("stretch", 1.0)),
        ({"crop_pct": 0.95, "crop_mode": "squash"}, ("stretch", 0.95)),
        ({"crop_pct": 0.97, "crop_mode": "squash"}, None),  # to 263 rows, where ours are 264
        ({"crop_mode": "border"}, None),
        ({"interpolation": "hamming"}, None),
    ],
)
def test_preprocess(config: dict[str, Any], said: tuple[str, float] | None) -> None:
    published = {
        "input_size": [3, 256, 192],
        "mean": [0.1, 0.2, 0.3],
        "std": [0.4, 0.5, 0.6],
        "interpolation": "bilinear",
        **config,
    }
    found = read_timm_preprocess(
        {"architecture": "vit_tiny_patch16_224", "pretrained_cfg": published}
    )
    assert found == read_timm_preprocess(published)  # as old folders say it
    if said is None:
        assert found is None
        return
    assert found is not None
    assert (found.size, found.mean, found.std) == ((256, 192), (0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    assert (found.interpolation, found.fit, found.crop) == ("bilinear", *said)
    again = write_timm_config(parse("ViT-Ti/16@256x192"), found, None)
    assert read_timm_preprocess(again) == found


def test_no_preprocess_is_none_and_a_wrong_one_refused() -> None:
    assert read_timm_preprocess({}) is None
    assert read_timm_preprocess({"pretrained_cfg": {"mean": [0.5], "std": [0.5]}}) is None
    wrong = {"input_size": 224, "mean": [0.5], "std": [0.5], "interpolation": "bicubic"}
    with pytest.raises(
        InputError,
        match=r"^config\.json: its preprocessing can't be read: 'int' object is not iterable",
    ):
        read_preprocess(wrong, {})
    with pytest.raises(InputError, match="timm has no interpolation 'area'"):
        write_timm_config(TINY, replace(AUGREG, interpolation="area"), None)
    with pytest.raises(InputError, match="timm stretches to 230 and cuts 224, not from 231"):
        write_timm_config(TINY, replace(AUGREG, fit="stretch", crop=0.97), None)


def test_classes() -> None:
    assert read_timm_classes(write_timm_config(TINY, None, ["cat", "dog"])) == ("cat", "dog")
    assert read_timm_classes({"label_names": {"1": "dog", "0": "cat"}}) == ("cat", "dog")
    assert read_timm_classes({"label_names": {"1": "dog", "7": "cat"}}) is None
    assert read_timm_classes({"pretrained_cfg": {"label_names": ["cat"]}}) == ("cat",)
    assert read_timm_classes({"label_names": {"cat": "a cat", "dog": "a dog"}}) is None
    assert read_timm_classes({}) is None
    with pytest.raises(InputError, match="expected names in label_names, got 3"):
        read_timm_classes({"label_names": 3})


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"pretrained_cfg": "x"}, "keys and values in pretrained_cfg, got 'x'"),
        ({"pretrained_cfg": [1]}, "keys and values in pretrained_cfg"),
        ({"model_args": "x"}, "keys and values in model_args"),
        ({"model_args": {"img_size": 16.0}}, "16.0 is not a size"),
        ({"input_size": "small"}, "'small' is not a size"),
        ({"model_args": {"act_layer": []}}, "unknown act_layer"),
    ],
)
def test_a_config_that_is_none_is_refused(config: dict[str, Any], said: str) -> None:
    shapes = {
        part.key: part.shape for entry in TIMM.table(replace(TINY, depth=1)) for part in entry.parts
    }
    with pytest.raises(InputError, match=f"^config.json: .*{said}"):
        TIMM.infer(shapes, FileFacts(config))
