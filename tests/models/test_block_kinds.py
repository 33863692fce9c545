"""Parallel, branched, differential and grouped blocks: recorded, fused and printed as they run."""

import pytest
import torch

from vitrail.config import InputError
from vitrail.inspection.hooks import AttentionCall, attention_layers, hooked
from vitrail.inspection.record import record
from vitrail.models import ViT, build, parse
from vitrail.predictor.fused import fuse

TINY = "ViT/8@32,depth=2,width=48,heads=4,mlp=64,classes=5"
KINDS = [
    "block=parallel,layer_scale=0.1",
    "attention=differential",
    "block=parallel,attention=differential,qk_norm=true",
    "branches=2",
    "key_heads=1,rotary=axial",
    "key_heads=2,key_heads_ends=1,depth=3",
]


def make(options: str) -> ViT:
    name = TINY.replace("depth=2,", "") if "depth" in options else TINY
    model = build(f"{name},{options}", seed=0).eval()
    assert isinstance(model, ViT)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.2, generator=generator)
    return model


@pytest.mark.parametrize("options", KINDS)
def test_recorded_attention_mixes_the_values(options: str) -> None:
    model, found = make(options), list[AttentionCall]()
    x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(2))
    layers = range(len(attention_layers(model)))
    with torch.no_grad(), record(model, attention="all") as tape:
        with hooked(model, attention=layers, on_attention=found.append):
            logits = model(x)
        torch.testing.assert_close(fuse(model)(x), logits, rtol=1e-5, atol=1e-5)
    for call in found:
        torch.testing.assert_close(tape.attention[call.layer] @ call.value, call.mixed)
    assert parse(str(model.spec)) == model.spec


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("key_heads=3", "key_heads must divide the 4 heads"),
        ("key_heads_ends=1", "key_heads_ends requires key_heads"),
        ("block=parallel,branches=2", "branches requires block=sequential"),
        ("attention=differential,rotary=axial", "differential attention takes absolute positions"),
        ("layer_scale_at=attention", "layer_scale_at requires layer_scale"),
    ],
)
def test_refusals(options: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse(f"{TINY},{options}")
