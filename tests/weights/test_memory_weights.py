"""Weights in memory: state dicts of other projects, models saved, heads of one's own."""

import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import nn

import vitrail
from tests.parity import peers
from vitrail.config import InputError
from vitrail.models import ViTSpec

TINY = "ViT/4@8,depth=2,width=64,heads=1,mlp=24,classes=3"


def images() -> torch.Tensor:
    return torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def test_a_peers_state_dict_is_loaded_and_given_back() -> None:
    timm = peers.load("timm.models.vision_transformer")
    peer = timm.VisionTransformer(
        img_size=8, patch_size=4, embed_dim=64, depth=2, num_heads=1, mlp_ratio=0.375, num_classes=3
    ).eval()
    theirs = peer.state_dict()
    loaded = vitrail.load(theirs, format="timm", model=TINY)
    torch.testing.assert_close(loaded.model(images()), peer(images()), rtol=0, atol=1e-5)
    back = vitrail.to_state_dict(loaded, "timm")
    assert back.keys() == theirs.keys()
    assert all(torch.equal(back[name], theirs[name]) for name in theirs)


def test_formats_that_are_not_there_or_not_meant_are_refused() -> None:
    model = vitrail.build(TINY)
    theirs = vitrail.to_state_dict(model, "timm")
    for format, message in (("tim", "no format 'tim'"), ("google", "format timm, not google")):
        with pytest.raises(InputError, match=message):
            vitrail.load(theirs, format=format, model=TINY)
    with pytest.raises(InputError, match=r"no format 'tim'; there are: .*did you mean 'timm'"):
        vitrail.to_state_dict(model, "tim")
    with pytest.raises(InputError, match="format is for a state dict"):
        vitrail.load("somewhere", format="timm")


@pytest.mark.parametrize("head", [None, nn.Linear(64, 5)])
def test_a_saved_model_is_loaded_again(tmp_path: Path, head: nn.Linear | None) -> None:
    model = vitrail.build(TINY).eval()
    if head is not None:
        model.replace_head(head)
    folder = vitrail.save(model, tmp_path / "model")
    again = vitrail.load(str(folder)).model
    assert torch.equal(again(images()), model(images()))
    assert again.spec.classes == (5 if head else 3)


def test_what_load_gave_is_saved_whole(tmp_path: Path) -> None:
    loaded = vitrail.load(vitrail.save(vitrail.build(TINY), tmp_path / "first"))
    named = vitrail.load(tmp_path / "first", classes=2)
    vitrail.save(named, tmp_path / "second")
    assert vitrail.load(tmp_path / "second").model.spec == named.model.spec
    assert vitrail.load(tmp_path / "first").preprocess == loaded.preprocess


def test_a_head_that_no_spec_describes_is_refused_whole(tmp_path: Path) -> None:
    model = vitrail.build(TINY)
    model.replace_head(nn.Sequential(nn.Linear(64, 8), nn.GELU(), nn.Linear(8, 5)))
    with pytest.raises(InputError, match="other parameters than a ViT/4@8"):
        vitrail.save(model, tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_noise_of_later_training_is_asked_for_on_loading(tmp_path: Path) -> None:
    folder = vitrail.save(vitrail.build(TINY), tmp_path / "model")
    loaded = vitrail.load(folder, dropout=0.5, stochastic_depth=0.25, classes=2)
    spec = loaded.model.spec
    assert isinstance(spec, ViTSpec)
    assert (spec.dropout, spec.stochastic_depth, spec.classes) == (0.5, 0.25, 2)
    plain = vitrail.load(folder, classes=2).model
    assert torch.equal(loaded.model(images()), plain(images()))  # not while evaluating
    loaded.model.train()
    nn.init.ones_(loaded.model.get_parameter("head.output.weight"))
    assert not torch.equal(loaded.model(images()), loaded.model(images()))
    vitrail.save(vitrail.build("BiT@32,stages=1,width=32,classes=2"), tmp_path / "bit")
    with pytest.raises(InputError, match=r"BiT@32.* has no dropout; use a ViT"):
        vitrail.load(tmp_path / "bit", dropout=0.1)
    with pytest.raises(InputError, match="dropout must be"):
        vitrail.load(folder, dropout=2.0)


class Photos(torch.utils.data.Dataset[torch.Tensor]):
    """What a user writes: a dataset with a transform."""

    def __init__(self, transform: Callable[[Image.Image], torch.Tensor]) -> None:
        self.transform = transform

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.transform(Image.new("RGB", (9 + index, 12), (index, 100, 200)))


def test_a_transform_is_a_torch_datasets(tmp_path: Path) -> None:
    """It makes what the predictor makes, and goes to other processes without the model."""
    loaded = vitrail.load(vitrail.save(vitrail.build(TINY), tmp_path / "model"))
    with pytest.raises(InputError, match="came without preprocessing"):
        _ = loaded.transform
    preprocess = replace(vitrail.default_preprocess((8, 8), 3), fit="crop", mean=(0.4, 0.5, 0.6))
    loaded = replace(loaded, preprocess=preprocess)
    dataset = Photos(pickle.loads(pickle.dumps(loaded.transform)))
    assert len(pickle.dumps(loaded.transform)) < 2000
    (batch,) = torch.utils.data.DataLoader(dataset, batch_size=4)
    predictor = vitrail.Predictor.load(loaded)
    photos = [Image.new("RGB", (9 + index, 12), (index, 100, 200)) for index in range(4)]
    torch.testing.assert_close(loaded.model(batch), predictor.logits(photos), rtol=0, atol=1e-5)
    assert torch.equal(loaded.transform(batch[0]), batch[0])  # is the model's input already
    budget = replace(loaded, preprocess=replace(preprocess, patches=6, patch_size=4))
    assert budget.transform(photos[0]).shape == (6, 3 + 3 * 16)


def test_describe_and_convert_are_functions(tmp_path: Path) -> None:
    cost = vitrail.describe("ViT-B/16", classes=10, image="384", batch=2)
    assert (cost.tokens, cost.classes, cost.batch) == (577, 10, 2)
    assert cost.to_dict()["parameters"] == 85_806_346  # Table 1's B with 10 outputs
    assert "ViT-B/16, 10 classes, 384x384 images" in str(cost._repr_html_())
    vitrail.save(vitrail.build(TINY), tmp_path / "model")
    done = vitrail.convert(str(tmp_path / "model"), str(tmp_path / "out"), "timm")
    assert done.to_dict()["files"][0].endswith("model.safetensors")
    assert done.max_difference < 1e-5
