"""torchvision's ViT, tiny and random: read, and written back for torchvision to read."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.parity import peers
from tests.parity.torchvision_models import BASE, torchvision_vit
from tests.weights.convert import named
from vitrail.config import InputError
from vitrail.models import HybridSpec, Spec, build
from vitrail.weights.formats.format import FileFacts
from vitrail.weights.formats.huggingface.huggingface import (
    HF_CLIP,
    HF_DEIT,
    HF_DINOV2,
    HF_SIGLIP,
    HF_VIT,
)
from vitrail.weights.formats.keymap import read_table, write_table
from vitrail.weights.formats.timm.timm import TIMM
from vitrail.weights.formats.torchvision import TORCHVISION

WIDE = replace(BASE, width=128, heads=2)
SPECS = {
    "linear head": WIDE,
    "pre-logits": replace(WIDE, representation=20),
    "deeper": replace(WIDE, depth=11, mlp=50, patch=(5, 5), image=(35, 35)),
}


def shapes_of(tensors: dict[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {key: tuple(value.shape) for key, value in tensors.items()}


def read(
    tensors: dict[str, Tensor], facts: FileFacts | None = None
) -> tuple[Spec, dict[str, Tensor]]:
    named = TORCHVISION.normalize(tensors)
    spec = TORCHVISION.infer(shapes_of(named), facts or FileFacts())
    ours, left_out = read_table(TORCHVISION.table(spec), named, TORCHVISION.left_out)
    assert left_out == {}
    return spec, ours


def older(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Name the MLP's layers as torchvision 0.12 did."""
    names = {".mlp.0.": ".mlp.linear_1.", ".mlp.3.": ".mlp.linear_2."}
    renamed = {}
    for key, value in tensors.items():
        for new, old in names.items():
            key = key.replace(new, old)
        renamed[key] = value
    return renamed


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("version", ["today's", "older"])
def test_reads_and_writes_torchvision(name: str, version: str) -> None:
    peer = torchvision_vit(SPECS[name], torch.float32)
    state = dict(peer.state_dict())
    tensors = older(state) if version == "older" else state
    others = [HF_VIT, HF_DEIT, HF_DINOV2, HF_CLIP, HF_SIGLIP, TIMM]
    assert TORCHVISION.recognizes(shapes_of(TORCHVISION.normalize(tensors)))
    assert not any(form.recognizes(shapes_of(form.normalize(tensors))) for form in others)
    spec, ours = read(tensors, named(SPECS[name]))
    assert spec == SPECS[name]
    model, x = build(spec), peers.images(spec, torch.float32)
    model.load_state_dict(ours)
    with torch.no_grad():
        peers.assert_near(model.eval()(x), peer(x), 1e-5)
        written = write_table(TORCHVISION.table(spec), dict(model.named_parameters()))
        assert written.keys() == state.keys()
        assert all(torch.equal(written[key], state[key]) for key in state)
        again = torchvision_vit(SPECS[name], torch.float32)
        again.load_state_dict(written)
        assert torch.equal(again(x), peer(x))


@pytest.mark.parametrize(("width", "heads"), [(48, 4), (128, 2), (192, 3), (768, 12), (1280, 16)])
def test_heads_of_no_published_shape_are_asked_for(width: int, heads: int) -> None:
    spec = replace(BASE, width=width, heads=heads, mlp=8)
    state = dict(torchvision_vit(spec, torch.float32).state_dict())
    assert read(state, named(spec))[0] == spec
    with pytest.raises(InputError, match=rf"how many heads .*width={width}.*--model .*,heads=16"):
        read(state)


def test_heads_of_a_published_shape_are_taken_from_it_and_said() -> None:
    base = replace(BASE, depth=12, width=768, heads=12, mlp=3072)
    with torch.device("meta"):
        state = dict(torchvision_vit(base, torch.float32).state_dict())
    facts = FileFacts()
    assert TORCHVISION.infer(shapes_of(state), facts) == base
    assert facts.notes == [
        "the file does not say the number of heads: 12, as in its project's models of "
        "depth=12,width=768,mlp=3072"
    ]
    facts = named(base)
    assert TORCHVISION.infer(shapes_of(state), facts) == base
    assert facts.notes == []


def test_a_file_without_a_head_gives_features() -> None:
    state = torchvision_vit(WIDE, torch.float32).state_dict()
    bare = {key: value for key, value in state.items() if not key.startswith("heads.")}
    assert read(bare, named(WIDE))[0] == replace(WIDE, classes=0)


def test_what_does_not_fit_is_refused_at_once() -> None:
    state = dict(torchvision_vit(WIDE, torch.float32).state_dict())
    del state["encoder.layers.encoder_layer_1.ln_2.bias"]
    state["heads.extra"] = torch.zeros(1)
    with pytest.raises(InputError) as error:
        read(state, named(WIDE))
    assert str(error.value) == (
        "missing 'encoder.layers.encoder_layer_1.ln_2.bias' (128,); unknown 'heads.extra'"
    )
    state["conv_proj.weight"] = torch.zeros(3)
    with pytest.raises(InputError, match=r"'conv_proj.weight' has shape \(3,\), expected 4 axes"):
        read(state)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (replace(WIDE, pool="gap"), "pool=gap"),
        (replace(WIDE, activation="gelu-tanh"), r"activation=gelu-tanh \(only gelu\)"),
        (replace(WIDE, norm_eps=1e-5), "norm_eps=1e-05"),
        (replace(WIDE, qkv_bias=False), "qkv_bias=False"),
        (replace(WIDE, head_bias=False), "head_bias=False"),
        (replace(WIDE, position="sincos-2d"), "position=sincos-2d"),
        (replace(WIDE, distilled=True), "does not support distillation_token"),
        (HybridSpec(depth=1, width=64, heads=1, mlp=8, stages=(1,)), "a hybrid model"),
    ],
)
def test_a_spec_without_a_place_is_refused(spec: Spec, message: str) -> None:
    with pytest.raises(InputError, match=message):
        TORCHVISION.table(spec)
