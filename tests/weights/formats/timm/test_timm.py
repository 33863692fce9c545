"""timm's format on tiny random models of timm's own, and on its published ViT-Ti/16."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.parity import peers
from tests.parity import test_timm as parity
from tests.weights.convert import assert_same_outputs, convert, named
from vitrail.config import InputError
from vitrail.data.transforms.preprocess import Preprocess
from vitrail.models import BiTSpec, HybridSpec, Spec, ViTSpec, parse
from vitrail.weights.formats.format import FileFacts
from vitrail.weights.formats.timm.timm import TIMM
from vitrail.weights.formats.timm.timm_config import read_timm_preprocess, write_timm_config

timm = peers.load("timm")
timm_deit = peers.load("timm.models.deit")

BASE, HYBRIDS = parity.BASE, ("hybrid", "hybrid of the root alone")
DISTILLED = replace(BASE, distilled=True)
BIT = replace(parity.BIT, pool_padding="zeros")
SPECS: dict[str, ViTSpec] = {
    **parity.SPECS,
    "one head of 64": replace(BASE, width=64, heads=1),
    "clip": replace(BASE, pre_norm=True, patch_bias=False, norm_eps=1e-5, activation="quick-gelu"),
    "no class": replace(BASE, classes=0),
}
AUGREG = Preprocess(
    size=(224, 224), mean=(0.5,) * 3, std=(0.5,) * 3, interpolation="bicubic", fit="crop", crop=0.9
)


def make_peer(spec: Spec) -> Any:
    if isinstance(spec, BiTSpec):
        return parity.timm_bit(spec, torch.float32)
    if isinstance(spec, HybridSpec):
        return parity.timm_vit(spec, torch.float32)
    return make_by_config(write_timm_config(spec, None, None))


def make_by_config(config: dict[str, Any]) -> Any:
    """Build what timm builds of a hub folder with this config."""
    arguments = json.loads(json.dumps(config.get("model_args", {})))
    model = timm.create_model(
        config["architecture"], num_classes=config["num_classes"], **arguments
    )
    return peers.randomize(model, torch.float32)


def expected(spec: ViTSpec) -> ViTSpec:
    """Say what tensors show of a spec: not LayerScale's first value, nor unused options."""
    return replace(
        spec,
        layer_scale=1e-5 if spec.layer_scale else 0.0,
        class_position=spec.class_position or spec.pool != "token" or spec.position == "none",
    )


@pytest.mark.parametrize("name", SPECS)
def test_vit_is_read_and_written(name: str) -> None:
    spec = SPECS[name]
    peer = make_peer(spec)
    config = write_timm_config(spec, None, None)
    if isinstance(spec, HybridSpec):
        config["model_args"] = {"num_heads": spec.heads}
    ours = convert(TIMM, peer.state_dict(), config)
    assert ours.spec == expected(spec)
    assert_same_outputs(ours, peer)


@pytest.mark.parametrize("seed", range(2 * len(parity.KINDS)))
def test_drawn_vit_is_read_and_written(seed: int) -> None:
    spec = parity.draw(seed)
    peer = make_peer(spec)
    ours = convert(TIMM, peer.state_dict(), write_timm_config(spec, None, None))
    assert ours.spec == expected(spec)
    assert_same_outputs(ours, peer)


def test_distilled_vit_is_read_and_written() -> None:
    peer = make_peer(DISTILLED)
    assert isinstance(peer, timm_deit.VisionTransformerDistilled)
    assert tuple(peer.pos_embed.shape) == (1, 4 * 4 + 2, 48)
    ours = convert(TIMM, peer.state_dict(), write_timm_config(DISTILLED, None, None))
    assert ours.spec == DISTILLED
    assert_same_outputs(ours, peer)


def test_bit_is_read_and_written() -> None:
    peer = make_peer(BIT)
    ours = convert(TIMM, peer.state_dict(), named(BIT))
    assert ours.spec == BIT
    assert_same_outputs(ours, peer)


@pytest.mark.parametrize("name", ["one head of 64", "qk-norm", *HYBRIDS])
def test_spec_without_config(name: str) -> None:
    spec = SPECS[name]
    if name in HYBRIDS:
        spec = replace(spec, width=64, heads=1, image=(64, 64))
    state = make_peer(spec).state_dict()
    assert convert(TIMM, state, named(spec)).spec == spec
    with pytest.raises(InputError, match=r"which of timm's architectures .*--model vit_base_patch"):
        convert(TIMM, state, {})


def test_deits_own_spellings_are_read() -> None:
    spec = replace(BASE, layer_scale=1e-5, class_position=False)
    state = make_peer(spec).state_dict()
    renamed = {
        key.replace("ls1.gamma", "gamma_1").replace("ls2.gamma", "gamma_2"): value
        for key, value in state.items()
    }
    assert convert(TIMM, renamed, write_timm_config(spec, None, None)).spec == spec


@pytest.mark.parametrize(
    ("architecture", "name"),
    [
        ("vit_tiny_patch16_224", "ViT-Ti/16"),
        ("vit_small_patch32_384", "ViT-S/32@384"),
        ("vit_base_patch8_224", "ViT-B/8"),
        ("vit_huge_patch14_224", "ViT-H/14"),
        ("vit_giant_patch14_224", "ViT-g/14"),
        ("vit_gigantic_patch14_224", "ViT-G/14"),
        ("vit_base_patch16_siglip_224", "ViT-B/16,pool=map"),
        ("vit_so400m_patch16_siglip_256", "ViT-So400m/16@256,pool=map,activation=gelu-tanh"),
        ("vit_base_patch16_gap_224", "ViT/16,depth=12,width=768,heads=16,mlp=3072,pool=gap"),
        ("vit_large_patch14_clip_quickgelu_224", "ViT-L/14,patch_bias=false,pre_norm=true"
         ",activation=quick-gelu,norm_eps=1e-05"),
        ("vit_giant_patch14_reg4_dinov2", "ViT/14@518,depth=40,width=1536,heads=24,mlp=4096"
         ",registers=4,class_position=false,activation=swiglu,layer_scale=1e-05"),
        ("deit3_small_patch16_224", "ViT-S/16,class_position=false,layer_scale=1e-05"),
        ("deit_base_distilled_patch16_384", "ViT-B/16@384,distilled=true"),
        ("vit_tiny_r_s16_p8_224", "R+ViT-Ti/16"),
        ("vit_small_r26_s32_384", "R26+ViT-S/32@384"),
        ("vit_base_r50_s16_224", "R50+ViT-B/16"),
        ("vit_large_r50_s32_224", "R50+ViT-L/32"),
        ("resnetv2_101x3_bit", "BiT-R101x3"),
    ],
)  # fmt: skip
def test_published_architecture_has_its_spec_and_every_tensor(architecture: str, name: str) -> None:
    with torch.device("meta"):
        peer = timm.create_model(architecture)
    shapes = {key: tuple(value.shape) for key, value in peer.state_dict().items()}
    wanted = parse(name)
    options: dict[str, Any] = {"classes": peer.num_classes}
    if isinstance(wanted, ViTSpec):
        options |= {"position_resize": "timm"}
        options |= {} if "activation" in name else {"activation": "gelu"}
    if isinstance(wanted, BiTSpec | HybridSpec):
        options |= {"standardize": "timm"}
        options |= (
            {"stem_norm_eps": 1e-5} if isinstance(wanted, HybridSpec) else {"pool_padding": "zeros"}
        )
    spec = TIMM.infer(shapes, FileFacts({"architecture": architecture}))
    assert spec == replace(wanted, **options)
    table = TIMM.table(spec)
    assert {part.key: part.shape for entry in table for part in entry.parts} == shapes


def test_named_model_is_built_by_its_config() -> None:
    spec = replace(parse("ViT-Ti/16@384,activation=gelu,position_resize=timm"), channels=1)
    config = write_timm_config(spec, None, None)
    assert config["architecture"] == "vit_tiny_patch16_384"
    assert config["model_args"] == {"in_chans": 1}
    assert convert(TIMM, make_by_config(config).state_dict(), config).spec == spec


@pytest.mark.parametrize(
    ("architecture", "said"),
    [
        ("vit_base_resnet50d_224", "neither the ResNetV2"),
        ("resnetv2_50", "BatchNorm"),
    ],
)
def test_what_we_do_not_have_is_refused(architecture: str, said: str) -> None:
    with torch.device("meta"):
        peer = timm.create_model(architecture)
    shapes = {key: tuple(value.shape) for key, value in peer.state_dict().items()}
    with pytest.raises(InputError, match=said):
        TIMM.infer(shapes, FileFacts({"architecture": architecture}))


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({}, "which of timm's architectures it is"),
        ({"model_args": {"num_heads": 4, "act_layer": "relu"}}, "unknown act_layer 'relu'"),
        (
            {"model_args": {"num_heads": 4}, "global_pool": "map"},
            "'map' does not go with the tensors; expected 'token' or 'avg'",
        ),
        ({"model_args": {"num_heads": 4, "img_size": "big"}}, "'big' is not a size"),
    ],
)
def test_config_that_does_not_suit_is_refused(config: dict[str, Any], said: str) -> None:
    shapes = {key: tuple(value.shape) for key, value in make_peer(BASE).state_dict().items()}
    with pytest.raises(InputError, match=said):
        TIMM.infer(shapes, FileFacts(config))


@pytest.mark.parametrize(
    ("key", "shape"),
    [
        ("patch_embed.proj.weight", (48, 192)),
        ("pos_embed", (17, 48)),
        ("blocks.0.mlp.fc2.weight", (48,)),
        ("norm.weight", (0,)),
    ],
)
def test_tensor_of_another_shape_is_refused(key: str, shape: tuple[int, ...]) -> None:
    shapes = {key: tuple(value.shape) for key, value in make_peer(BASE).state_dict().items()}
    with pytest.raises(InputError, match=rf"'{key}' has shape .*, expected \d axes"):
        TIMM.infer({**shapes, key: shape}, FileFacts(write_timm_config(BASE, None, None)))


def test_depth_that_a_name_claims_is_bounded_by_the_file() -> None:
    shapes = {key: tuple(value.shape) for key, value in make_peer(BASE).state_dict().items()}
    shapes["blocks.999999999.norm1.weight"] = (48,)
    spec = TIMM.infer(shapes, FileFacts(write_timm_config(BASE, None, None)))
    assert isinstance(spec, ViTSpec)
    assert spec.depth == len(shapes)


def test_grid_that_is_not_square_needs_a_size() -> None:
    spec = SPECS["not square"]
    shapes = {key: tuple(value.shape) for key, value in make_peer(spec).state_dict().items()}
    heads = {"model_args": {"num_heads": 4}}
    with pytest.raises(InputError, match="no square grid: name the model"):
        TIMM.infer(shapes, FileFacts(heads))
    assert TIMM.infer(shapes, named(spec)) == spec


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"position": "sincos-2d"}, "position=sincos-2d"),
        ({"position_at": "shared"}, "position_at=shared .only input"),
        ({"head_bias": False}, "head_bias=False"),
        ({"patch_bias": False}, "patch_bias=False"),
        ({"representation": 8}, "representation=8"),
        ({"attention": "axial", "pool": "gap"}, "attention=axial"),
        ({"registers": 2}, "class_position=True"),
        ({"distilled": True, "registers": 2}, "registers=2"),
        ({"pool": "map", "activation": "swiglu"}, "activation=swiglu with pool=map"),
    ],
)
def test_spec_without_a_place_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        TIMM.table(replace(BASE, **changes))


def test_bit_with_another_pool_is_refused() -> None:
    with pytest.raises(InputError, match="pool_padding=none"):
        TIMM.table(replace(BIT, pool_padding="none"))


def test_published_tiny_equals_timm(timm_tiny: Path) -> None:
    load_file = peers.load("safetensors.torch").load_file
    config = json.loads((timm_tiny / "config.json").read_text())
    state = load_file(timm_tiny / "model.safetensors")
    ours = convert(TIMM, state, config)
    assert ours.spec == parse("ViT-Ti/16,activation=gelu,position_resize=timm")
    assert sum(parameter.numel() for parameter in ours.parameters()) == 5_717_416
    assert read_timm_preprocess(config) == AUGREG
    written = write_timm_config(ours.spec, AUGREG, None)
    for key in ("architecture", "num_classes", "num_features", "global_pool"):
        assert written[key] == config[key]
    assert written["pretrained_cfg"].items() <= config["pretrained_cfg"].items()
    peer = timm.create_model(config["architecture"])
    peer.load_state_dict(state, strict=True)
    assert_same_outputs(ours, peer.eval())
