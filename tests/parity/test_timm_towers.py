"""Files of other projects whose models timm builds: open_clip's towers and DINOv3's hub files."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tests.parity import peers
from tests.parity.timm_models import assert_equal, images
from vitrail.config import InputError
from vitrail.models import parse
from vitrail.weights.formats.timm.timm_architectures import VITS
from vitrail.weights.load import read_checkpoint

timm = peers.load("timm")

TINY: dict[str, Any] = {"embed_dim": 48, "depth": 2, "num_heads": 3}
TOWERS: dict[str, tuple[str, str, dict[str, Any], bool | None]] = {
    # timm's name, open_clip's pooling, its arguments, and a projection with a bias or without
    "SigLIP": ("vit_base_patch16_siglip_224", "map", {"num_classes": 0}, None),
    "EVA-02": ("eva02_base_patch16_clip_224", "token", {"num_classes": 20}, None),
    "PE": ("vit_pe_core_base_patch16_224", "map", {"num_classes": 20}, None),
    "linear": ("vit_base_patch16_224", "avg", {"num_classes": 0}, False),
    "linear with bias": ("vit_medium_patch16_gap_256", "avg", {"num_classes": 0}, True),
}


def write_tower(folder: Path, name: str) -> tuple[Any, nn.Module]:
    """Write a tower beside a text tower as open_clip does; also return what computes the same."""
    architecture, pool, more, biased = TOWERS[name]
    heads = VITS[architecture][1]
    arguments = {
        **TINY,
        "num_heads": heads,
        "img_size": (64, 96),
        "patch_size": 16,
        "global_pool": pool,
        **more,
    }
    trunk = peers.randomize(timm.create_model(architecture, **arguments), torch.float32)
    head: nn.Module = nn.Identity()
    state = {f"visual.trunk.{key}": tensor for key, tensor in trunk.state_dict().items()}
    if biased is not None:
        head = peers.randomize(nn.Linear(48, 20, bias=biased), torch.float32)
        state |= {f"visual.head.proj.{key}": tensor for key, tensor in head.state_dict().items()}
    state |= {"logit_scale": torch.ones(()), "text.token_embedding.weight": torch.ones(3, 4)}
    folder.mkdir()
    save_file(
        {key: tensor.contiguous() for key, tensor in state.items()},
        folder / "open_clip_model.safetensors",
    )
    vision = {"timm_model_name": architecture, "timm_pool": pool, "image_size": [64, 96]}
    config = {"model_cfg": {"embed_dim": 20, "vision_cfg": vision, "text_cfg": {}}}
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    return trunk, head


@pytest.mark.parametrize("name", TOWERS)
def test_open_clip(name: str, tmp_path: Path) -> None:
    trunk, head = write_tower(tmp_path / "clip", name)
    mlp = trunk.blocks[0].mlp.fc2.in_features
    heads = trunk.blocks[0].attn.num_heads
    named = f"ViT/16@64x96,heads={heads},depth=2,width=48,mlp={mlp}"
    checkpoint = read_checkpoint(str(tmp_path / "clip"), model=named)
    assert checkpoint.provenance is not None
    assert checkpoint.provenance.format == "open_clip"
    x = images((64, 96))
    with torch.no_grad():
        assert_equal(checkpoint.build()(x), head(trunk(x)), 2e-5)
    assert parse(str(checkpoint.spec)) == checkpoint.spec
    with pytest.raises(InputError, match=f"heads {heads}, not 3"):
        read_checkpoint(str(tmp_path / "clip"), model=named.replace(f"heads={heads}", "heads=3"))


def test_open_clips_other_projections_are_refused(tmp_path: Path) -> None:
    write_tower(tmp_path / "clip", "linear")
    path = tmp_path / "clip" / "open_clip_model.safetensors"
    state = load_file(path)
    save_file({**state, "visual.head.mlp.fc1.weight": torch.ones(4, 4)}, path)
    with pytest.raises(InputError, match="a projection of more than one layer"):
        read_checkpoint(str(tmp_path / "clip"))


def make_hub_state(gated: bool, masked: bool) -> dict[str, Tensor]:
    """Name random tensors as DINOv3's hub files do (facebookresearch/dinov3)."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator) * (1.5 * shape[-1] ** -0.5)

    state = {"cls_token": draw(1, 1, 384), "storage_tokens": draw(1, 4, 384)}
    state |= {"mask_token": draw(1, 384), "patch_embed.proj.weight": draw(384, 3, 16, 16) / 16}
    state |= {"patch_embed.proj.bias": draw(384), "norm.weight": draw(384), "norm.bias": draw(384)}
    state["rope_embed.periods"] = 100 ** (torch.arange(16) / 16)
    names = {"fc1": (1536, 384), "fc2": (384, 1536)}
    if gated:
        names = {"w1": (1536, 384), "w2": (1536, 384), "w3": (384, 1536)}
    for block in ("blocks.0", "blocks.1"):
        shapes = {"attn.qkv": (1152, 384), "attn.proj": (384, 384)}
        shapes |= {f"mlp.{name}": shape for name, shape in names.items()}
        for name, shape in shapes.items():
            state[f"{block}.{name}.weight"] = draw(*shape)
            state[f"{block}.{name}.bias"] = draw(shape[0])
        for name in ("norm1.weight", "norm1.bias", "norm2.weight", "norm2.bias"):
            state[f"{block}.{name}"] = draw(384)
        state |= {f"{block}.ls{n}.gamma": draw(384) for n in (1, 2)}
        if masked:
            mask = torch.ones(1152)
            mask[384:768] = 0
            state[f"{block}.attn.qkv.bias_mask"] = mask
    return state


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("prefix", ["", "teacher.backbone.", "module.", "_orig_mod."])
def test_dinov3_hub_files(gated: bool, prefix: str, tmp_path: Path) -> None:
    """The reference is how timm itself reads such files."""
    state = make_hub_state(gated, masked=True)
    torch.save({f"{prefix}{k}": v for k, v in state.items()}, tmp_path / "dinov3.pth")
    name = "vit_small_plus_patch16_dinov3_qkvb" if gated else "vit_small_patch16_dinov3_qkvb"
    theirs = timm.create_model(name, depth=2, num_classes=0, global_pool="token").eval()
    convert = peers.load("timm.models.eva").checkpoint_filter_fn
    theirs.load_state_dict(convert(dict(state), theirs))
    shape = "depth=2,width=384,heads=6,mlp=1536"
    checkpoint = read_checkpoint(str(tmp_path / "dinov3.pth"), model=f"ViT/16,{shape}")
    assert checkpoint.provenance is not None
    assert checkpoint.provenance.format == "DINOv3"
    said = " ".join(checkpoint.provenance.changes)
    assert "mask_token" in said
    assert "used by pre-training only" in said
    with torch.no_grad():
        for size in ((224, 224), (64, 96)):
            assert_equal(checkpoint.build()(images(size)), theirs(images(size)), 2e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rope_embed.periods": torch.ones(16)}, "expected those of a base of 100"),
        ({"blocks.0.attn.qkv.bias_mask": torch.ones(1152)}, "leaves out the keys' biases only"),
        ({"cls_norm.weight": torch.ones(384)}, "unknown 'cls_norm.weight'"),
    ],
)
def test_other_dinov3_are_refused(change: dict[str, Tensor], message: str, tmp_path: Path) -> None:
    torch.save({**make_hub_state(False, masked=True), **change}, tmp_path / "dinov3.pth")
    name = "ViT/16,depth=2,width=384,heads=6,mlp=1536"
    with pytest.raises(InputError, match=message):
        read_checkpoint(str(tmp_path / "dinov3.pth"), model=name)


def test_a_dinov3_that_says_no_heads_is_asked_for_them(tmp_path: Path) -> None:
    torch.save(make_hub_state(False, masked=False), tmp_path / "dinov3.pth")
    with pytest.raises(InputError, match="does not say how many heads"):
        read_checkpoint(str(tmp_path / "dinov3.pth"))
