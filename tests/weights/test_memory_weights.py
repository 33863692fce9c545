"""Weights in memory: state dicts of other projects, models saved, heads of one's own."""

from pathlib import Path

import pytest
import torch
from torch import nn

import vitrail
from tests.parity import peers
from vitrail.config import InputError

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


def test_describe_and_convert_are_functions(tmp_path: Path) -> None:
    cost = vitrail.describe("ViT-B/16", classes=10, image="384", batch=2)
    assert (cost.tokens, cost.classes, cost.batch) == (577, 10, 2)
    assert cost.to_dict()["parameters"] == 85_806_346  # Table 1's B with 10 outputs
    assert "ViT-B/16, 10 classes, 384x384 images" in str(cost._repr_html_())
    vitrail.save(vitrail.build(TINY), tmp_path / "model")
    done = vitrail.convert(str(tmp_path / "model"), str(tmp_path / "out"), "timm")
    assert done.to_dict()["files"][0].endswith("model.safetensors")
    assert done.max_difference < 1e-5
