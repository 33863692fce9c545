"""Files as their projects' users have them, through the command's own path to equal logits.

Covers: a timm state dict, a transformers folder, a torchvision state dict, the official .npz files.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import vitrail
from tests.golden.reader import FOLDER, images
from tests.parity import peers
from vitrail.cli import main

Peer = Callable[[Path], tuple[Path, Callable[[Tensor], Tensor]]]


def timm_file(folder: Path) -> tuple[Path, Callable[[Tensor], Tensor]]:
    """Save a tiny timm ViT as `torch.save(model.state_dict())`."""
    vits = peers.load("timm.models.vision_transformer")
    model = vits.VisionTransformer(
        img_size=32, patch_size=8, embed_dim=128, depth=2, num_heads=2, num_classes=7
    )
    peers.randomize(model, torch.float32)
    torch.save(model.state_dict(), folder / "timm.pth")
    return folder / "timm.pth", model.eval()


def transformers_folder(folder: Path) -> tuple[Path, Callable[[Tensor], Tensor]]:
    """Save a tiny transformers ViT with `save_pretrained`."""
    hf: Any = peers.load("transformers")
    sizes = {"hidden_size": 48, "num_attention_heads": 4, "intermediate_size": 96}
    config = hf.ViTConfig(**sizes, num_hidden_layers=2, image_size=32, patch_size=8, num_labels=7)
    model = hf.ViTForImageClassification(config)
    peers.randomize(model, torch.float32)
    model.save_pretrained(folder / "hf")
    model.eval()
    return folder / "hf", lambda x: model(x).logits


def torchvision_file(folder: Path) -> tuple[Path, Callable[[Tensor], Tensor]]:
    """Save a tiny torchvision ViT as `torch.save(model.state_dict())`."""
    vits = peers.load("torchvision.models.vision_transformer")
    model = vits.VisionTransformer(
        image_size=32, patch_size=8, num_layers=2, num_heads=2, hidden_dim=128, mlp_dim=96,
        num_classes=7,
    )  # fmt: skip
    peers.randomize(model, torch.float32)
    torch.save(model.state_dict(), folder / "tv.pth")
    return folder / "tv.pth", model.eval()


MODELS = {
    "timm_file": "ViT/8@32,depth=2,width=128,heads=2,mlp=512,activation=gelu",
    "torchvision_file": "ViT/8@32,depth=2,width=128,heads=2,mlp=96,activation=gelu",
}
"""What files without a config leave open: the number of heads."""


@pytest.mark.parametrize("make", [timm_file, transformers_folder, torchvision_file])
def test_a_peers_file_loads_and_converts(
    make: Peer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, peer = make(tmp_path)
    named = ["--model", MODELS[make.__name__]] if make.__name__ in MODELS else []
    x = torch.randn(3, 3, 32, 32)
    with torch.inference_mode():
        theirs = peer(x)
        loaded = vitrail.load(str(source), model=MODELS.get(make.__name__))
        peers.assert_near(loaded.model(x), theirs, 1e-5)
        for to, out in (("vitrail", "ours"), ("timm", "as-timm"), ("hf", "as-hf")):
            main(["convert", str(source), str(tmp_path / out), "--to", to, *named])
            peers.assert_near(vitrail.load(str(tmp_path / out)).model(x), theirs, 1e-5)
    assert capsys.readouterr().out.count("logits differ from the source's") == 3


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.json")))
def test_an_official_file_loads(name: str) -> None:
    x, outputs = images(name)
    with torch.inference_mode():
        ours = vitrail.load(str(FOLDER / f"{name}.npz")).model(x)
    peers.assert_near(ours, outputs["logits"], 1e-5)
