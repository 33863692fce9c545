"""CLIP's names, on transformers' tiny random image tower with its tensors renamed."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.parity import peers
from tests.weights.convert import assert_same_outputs, convert, named
from vitrail.config import InputError
from vitrail.data.transforms.preprocess import Preprocess
from vitrail.models import ViTSpec, parse
from vitrail.weights.formats.clip import CLIP, read_open_clip_preprocess
from vitrail.weights.formats.dino import DINO, MAE
from vitrail.weights.formats.format import FileFacts
from vitrail.weights.formats.known_formats import read_preprocess
from vitrail.weights.formats.timm.timm import TIMM

hf = peers.load("transformers")

SPEC = ViTSpec(
    depth=2,
    width=64,
    heads=1,
    mlp=96,
    patch=(8, 8),
    image=(32, 32),
    classes=20,
    patch_bias=False,
    pre_norm=True,
    activation="quick-gelu",
    norm_eps=1e-5,
    head_bias=False,
    position_resize="timm",
)
RULES = [
    (r"^visual_projection\.weight$", "visual.proj"),
    (r"^vision_model\.(embeddings\.)?", "visual."),
    (r"\.patch_embedding\.", ".conv1."),
    (r"\.position_embedding\.weight$", ".positional_embedding"),
    (r"\.pre_layrnorm\.", ".ln_pre."),
    (r"\.post_layernorm\.", ".ln_post."),
    (r"\.encoder\.layers\.", ".transformer.resblocks."),
    (r"\.self_attn\.([qkv])_proj\.(\w+)$", r".attn.in_proj_\2#\1"),
    (r"#q", "#0"),
    (r"#k", "#1"),
    (r"#v", "#2"),
    (r"\.self_attn\.", ".attn."),
    (r"\.layer_norm([12])\.", r".ln_\1."),
    (r"\.fc1\.", ".c_fc."),
    (r"\.fc2\.", ".c_proj."),
]
TEXT = {"ln_final.weight", "token_embedding.weight", "text_projection", "positional_embedding"}
TEXT |= {"transformer.resblocks.0.ln_1.weight", "text.cls_emb"}


def make_peer(spec: ViTSpec) -> Any:
    """Build a tower whose call gives the projected image."""
    config = hf.CLIPVisionConfig(
        hidden_size=spec.width,
        intermediate_size=spec.mlp,
        projection_dim=spec.classes,
        num_hidden_layers=spec.depth,
        num_attention_heads=spec.heads,
        image_size=spec.image[0],
        patch_size=spec.patch[0],
        hidden_act={"quick-gelu": "quick_gelu", "gelu": "gelu"}[spec.activation],
    )
    return peers.randomize(hf.CLIPVisionModelWithProjection(config), torch.float32)


def clip_state(peer: Any) -> dict[str, Tensor]:
    state = peers.translate(peer.state_dict(), RULES)
    state.pop("visual.position_ids", None)
    return {**state, "visual.proj": state["visual.proj"].T.contiguous()}


def open_clip(**model: Any) -> dict[str, Any]:
    vision = {"image_size": 32, "layers": 2, "width": 64, "head_width": 32, "patch_size": 8}
    return {"model_cfg": {"embed_dim": 20, "vision_cfg": vision, **model}}


@pytest.mark.parametrize(
    ("config", "changes"),
    [
        ({}, {}),
        (open_clip(), {"heads": 2, "activation": "gelu"}),
        (open_clip(quick_gelu=True), {"heads": 2}),
    ],
    ids=["OpenAI", "open_clip", "open_clip with quick GELU"],
)
def test_clip_is_read_and_written(config: dict[str, Any], changes: dict[str, Any]) -> None:
    spec = replace(SPEC, **changes)
    peer = make_peer(spec)
    text = {key: torch.ones(3) for key in TEXT} | {"logit_scale": torch.ones(())}
    if not config:
        text["input_resolution"] = torch.tensor(32)  # in OpenAI's files alone
    state = {**clip_state(peer), **text}
    ours = convert(CLIP, state, config)
    assert ours.spec == spec
    assert_same_outputs(ours, lambda x: peer(pixel_values=x).image_embeds)


def test_other_formats_do_not_take_it() -> None:
    shapes = {key: tuple(value.shape) for key, value in clip_state(make_peer(SPEC)).items()}
    for format in (TIMM, DINO, MAE):
        assert not format.recognizes(shapes)
    assert not CLIP.recognizes({"visual.conv1.weight": (64, 3, 3, 3)})  # its ResNets


def test_what_is_left_out_is_said() -> None:
    assert {CLIP.left_out(key) for key in TEXT} == {"the text tower"}
    numbers = ("logit_scale", "logit_bias", "input_resolution", "context_length", "vocab_size")
    reason = "a number for comparing images with text"
    assert {CLIP.left_out(key) for key in numbers} == {reason}
    assert CLIP.left_out("visual.attn_pool.query") is None
    assert CLIP.left_out("something.else") is None


def test_layer_scale_and_no_projection() -> None:
    spec = replace(SPEC, layer_scale=1e-5, classes=0)
    shapes = {part.key: part.shape for entry in CLIP.table(spec) for part in entry.parts}
    assert shapes["visual.transformer.resblocks.1.ls_2.gamma"] == (64,)
    assert "visual.proj" not in shapes
    assert CLIP.infer({**shapes, "vocab_size": ()}, FileFacts()) == spec


def test_what_a_file_of_neither_project_leaves_open_is_asked_for() -> None:
    """Heads of 80 channels and the exact GELU of LAION's ViT-H only open_clip's config says."""
    sizes = "ViT-H/14,patch_bias=false,pre_norm=true,head_bias=false,norm_eps=1e-5,classes=1024"
    wanted = parse(f"{sizes},activation=gelu,position_resize=timm")
    assert isinstance(wanted, ViTSpec)
    shapes = {part.key: part.shape for entry in CLIP.table(wanted) for part in entry.parts}
    with pytest.raises(InputError, match=r"how many heads it has: .*--model ViT-B/32,activation"):
        CLIP.infer(shapes, FileFacts())
    with pytest.raises(InputError, match=r"which GELU it has: .*activation=quick-gelu"):
        CLIP.infer(shapes, named("ViT-H/14"))
    assert CLIP.infer(shapes, named("ViT-H/14,activation=gelu")) == wanted
    narrow = {"embed_dim": 1024, "vision_cfg": {"image_size": 224, "head_width": 80}}
    assert CLIP.infer(shapes, FileFacts(narrow)) == wanted


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"head_bias": True}, "CLIP's projection does not support head_bias=True"),
        ({"patch_bias": True}, "CLIP does not support patch_bias=True"),
        ({"pre_norm": False}, "pre_norm=False"),
        ({"registers": 1}, "registers=1"),
        ({"pool": "map"}, "pool=map"),
        ({"activation": "swiglu"}, "activation=swiglu"),
    ],
)
def test_spec_without_a_place_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        CLIP.table(replace(SPEC, **changes))


def test_broken_tower_is_refused() -> None:
    shapes = {part.key: part.shape for entry in CLIP.table(SPEC) for part in entry.parts}
    with pytest.raises(
        InputError, match=r"'visual.conv1.weight' is missing or does not have 4 axes"
    ):
        CLIP.infer({**shapes, "visual.conv1.weight": (64, 3)}, FileFacts())
    with pytest.raises(InputError, match="keys and values in vision_cfg, got 5"):
        CLIP.infer(shapes, FileFacts({"vision_cfg": 5}))
    with pytest.raises(InputError, match=r"image_size 7\.5 is not a size"):
        CLIP.infer(shapes, FileFacts({"vision_cfg": {"image_size": 7.5}}))
    with pytest.raises(InputError, match="image_size 'big' is not a size"):
        CLIP.infer(shapes, FileFacts({"vision_cfg": {"image_size": "big"}}))


def test_preprocess() -> None:
    said = {"mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6], "interpolation": "bicubic"}
    config = {**open_clip(), "preprocess_cfg": {**said, "resize_mode": "shortest"}}
    wanted = Preprocess(
        size=(32, 32),
        mean=(0.1, 0.2, 0.3),
        std=(0.4, 0.5, 0.6),
        interpolation="bicubic",
        fit="crop",
    )
    assert read_open_clip_preprocess(config) == wanted
    config["preprocess_cfg"]["resize_mode"] = "squash"
    assert read_open_clip_preprocess(config) == replace(wanted, fit="stretch")
    config["preprocess_cfg"]["resize_mode"] = "longest"
    assert read_open_clip_preprocess(config) is None
    assert read_open_clip_preprocess(open_clip()) is None
    with pytest.raises(
        InputError,
        match=r"config\.json: its preprocessing can't be read: 'float' object is not iterable",
    ):
        read_preprocess({**open_clip(), "preprocess_cfg": {**said, "mean": 0.5}}, {})
