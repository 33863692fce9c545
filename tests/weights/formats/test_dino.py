"""DINO's, DINOv2's and MAE's names, on timm's tiny random models with their tensors renamed."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.parity import peers
from tests.parity import test_timm as parity
from tests.weights.convert import assert_same_outputs, convert
from vitrail.config import InputError
from vitrail.models import ViTSpec, parse
from vitrail.weights.formats.dino import DINO, MAE
from vitrail.weights.formats.format import FileFacts
from vitrail.weights.formats.keymap import read_table
from vitrail.weights.formats.timm.timm import TIMM
from vitrail.weights.formats.timm.timm_config import write_timm_config

timm = peers.load("timm")

PLAIN = replace(parity.BASE, classes=0)
V2 = replace(PLAIN, layer_scale=1e-5)
GATED = replace(V2, activation="swiglu")
HEADS = {"model_args": {"num_heads": 4}}
MASK = {"mask_token": torch.zeros(1, 48)}


def make_peer(spec: ViTSpec) -> Any:
    return parity.timm_vit(replace(spec, class_position=not spec.registers), torch.float32)


def dino_state(peer: Any) -> dict[str, Tensor]:
    """Rename timm's tensors to DINO's; with registers, give the class token a position again."""
    state = {}
    for key, value in peer.state_dict().items():
        key = key.replace("reg_token", "register_tokens")
        if isinstance(peer.blocks[0].mlp, parity.timm_layers.GluMlp):
            key = key.replace("mlp.fc1", "mlp.w12").replace("mlp.fc2", "mlp.w3")
        state[key] = value
    if "register_tokens" in state:
        row = torch.randn(1, 1, state["cls_token"].shape[2]) / 4
        state["cls_token"] = state["cls_token"] - row
        state["pos_embed"] = torch.cat([row, state["pos_embed"]], dim=1)
    return state


def shapes_of(state: dict[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {key: tuple(value.shape) for key, value in state.items()}


@pytest.mark.parametrize(
    ("spec", "resize"),
    [
        (V2, "dinov2"),
        (GATED, "dinov2"),
        (replace(V2, registers=4), "timm"),
        (replace(GATED, registers=4), "timm"),
    ],
    ids=["mlp", "swiglu", "mlp with registers", "swiglu with registers"],
)
def test_dinov2_is_read_and_written(spec: ViTSpec, resize: Any) -> None:
    peer = make_peer(spec)
    state = {**dino_state(peer), **MASK}
    ours = convert(DINO, state, HEADS)
    assert ours.spec == replace(spec, position_resize=resize)
    assert ours.spec.norm_eps == 1e-6
    assert_same_outputs(ours, peer)
    assert not TIMM.recognizes(shapes_of(state))
    assert not MAE.recognizes(shapes_of(state))


def test_what_dino_leaves_out_is_said() -> None:
    state = {**dino_state(make_peer(V2)), **MASK, "head.mlp.0.weight": torch.ones(1)}
    state["student.module.backbone.cls_token"] = torch.ones(1)
    table = DINO.table(DINO.infer(shapes_of(state), FileFacts(HEADS)))
    assert read_table(table, state, DINO.left_out)[1] == {
        "mask_token": "the mask token, used by pre-training only",
        "head.mlp.0.weight": "the projection head, used by pre-training only",
        "student.module.backbone.cls_token": "the student, of which the teacher is the average",
    }
    with pytest.raises(InputError, match=r"unknown 'head\.weight'"):
        read_table(table, {**state, "head.weight": torch.ones(1)}, DINO.left_out)


def test_training_checkpoint_of_dino_gives_the_teacher() -> None:
    peer = make_peer(PLAIN)
    state = {f"teacher.module.backbone.{key}": v for key, v in dino_state(peer).items()}
    state |= {f"student.{key}": torch.zeros_like(v) for key, v in dino_state(peer).items()}
    state["teacher.module.head.last_layer.weight_v"] = torch.ones(3, 3)
    ours = convert(DINO, state, HEADS)
    assert ours.spec == replace(PLAIN, position_resize="dinov2")
    assert_same_outputs(ours, peer)


def test_training_checkpoint_of_dinov2_has_chunks() -> None:
    peer = make_peer(GATED)
    state = {
        f"backbone.{key.replace('blocks.', 'blocks.0.')}": v for key, v in dino_state(peer).items()
    }
    state["dino_head.mlp.0.weight"] = torch.ones(3, 3)
    assert_same_outputs(convert(DINO, state, HEADS), peer)


def test_plain_backbone_is_timms() -> None:
    state = dino_state(make_peer(PLAIN))
    assert TIMM.recognizes(shapes_of(state))
    assert not DINO.recognizes(shapes_of(state))
    assert not MAE.recognizes(shapes_of(state))


def test_mae_encoder_is_read_and_written() -> None:
    peer = make_peer(PLAIN)
    decoder = {"decoder_pos_embed": torch.ones(1, 17, 32), "mask_token": torch.zeros(1, 1, 32)}
    decoder |= {"decoder_blocks.0.norm1.weight": torch.ones(32), "decoder_pred.bias": torch.ones(9)}
    state = {**peer.state_dict(), **decoder}
    ours = convert(MAE, state, HEADS)
    assert ours.spec == replace(PLAIN, position_resize="huggingface")
    assert_same_outputs(ours, peer)
    assert {MAE.left_out(key) for key in decoder} == {"the decoder, used by pre-training only"}
    assert MAE.left_out("head.weight") is None
    assert not TIMM.recognizes(shapes_of(state))
    assert not DINO.recognizes(shapes_of(state))


def test_published_dinov2_giant_has_its_spec() -> None:
    with torch.device("meta"):
        peer = timm.create_model("vit_giant_patch14_dinov2", num_classes=0)
    spec = DINO.infer(shapes_of({**dino_state(peer), **MASK}), FileFacts())
    assert spec == replace(
        parse("ViT/14@518,depth=40,width=1536,heads=24,mlp=4096,activation=swiglu"),
        classes=0,
        layer_scale=1e-5,
        position_resize="dinov2",
    )
    table = DINO.table(spec)
    wanted = {part.key: part.shape for entry in table for part in entry.parts}
    assert wanted == shapes_of(dino_state(peer))


@pytest.mark.parametrize(
    ("format", "changes", "said"),
    [
        (DINO, {"classes": 7}, "DINO does not support head.output.weight"),
        (DINO, {"pool": "gap"}, "DINO does not support pool=gap"),
        (DINO, {"class_position": False}, "class_position=False"),
        (DINO, {"position": "sincos-2d"}, "position=sincos-2d"),
        (MAE, {"registers": 2}, "MAE does not support registers of"),
        (MAE, {"layer_scale": 0.1}, "MAE does not support layer_scale=0.1"),
        (MAE, {"activation": "swiglu"}, "MAE does not support activation=swiglu"),
    ],
)
def test_spec_without_a_place_is_refused(format: Any, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        format.table(replace(PLAIN, **changes))


def test_other_families_are_refused() -> None:
    for name in ("BiT-R50x1", "R50+ViT-B/16"):
        with pytest.raises(InputError, match=f"MAE does not support {name.replace('+', '.')}"):
            MAE.table(parse(name))


def test_timm_and_dino_hold_the_same_model() -> None:
    state = {**dino_state(make_peer(GATED)), **MASK}
    spec = DINO.infer(shapes_of(state), FileFacts(HEADS))
    assert isinstance(spec, ViTSpec)
    ours, _ = read_table(DINO.table(spec), state, DINO.left_out)
    assert write_timm_config(spec, None, None)["architecture"] == "vit_giant_patch14_dinov2"
    assert {entry.ours for entry in TIMM.table(spec)} == ours.keys()
