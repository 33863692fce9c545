"""Kinds of blocks, attention, norms and positions: each is used as the plain ViT is."""

import pytest
import torch

from tests.vit_kinds import KINDS
from vitrail.config import InputError
from vitrail.deploy.backends.token_merging import MergedViT
from vitrail.inspection.hooks import AttentionCall, attention_layers, hooked
from vitrail.inspection.record import record
from vitrail.models import ViT, build, parse
from vitrail.predictor.fused import fuse
from vitrail.training.peft import TuneConfig, adapt, merge_lora

TINY = "ViT/8@32,depth=2,width=48,heads=4,mlp=64,classes=5"

POOLED = ("map", "probe")
"""What reads all tokens by attention, which merging would have to weigh."""


def make(name: str) -> ViT:
    model = build(name, seed=0).eval()
    assert isinstance(model, ViT)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.2, generator=generator)
    return model


@pytest.mark.parametrize("name", KINDS)
def test_recorded_attention_mixes_the_values(name: str) -> None:
    model, found = make(name), list[AttentionCall]()
    x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(2))
    layers = range(len(attention_layers(model)))
    with torch.no_grad(), record(model, attention="all") as tape:
        with hooked(model, attention=layers, on_attention=found.append):
            logits = model(x)
        torch.testing.assert_close(fuse(model)(x), logits, rtol=1e-5, atol=1e-5)
    for call in found:
        mixed = tape.attention[call.layer] @ call.value
        torch.testing.assert_close(mixed, call.mixed, rtol=1e-4, atol=1e-4)
    assert parse(str(model.spec)) == model.spec


def gradients(model: ViT, x: torch.Tensor) -> dict[str, torch.Tensor]:
    model.zero_grad()
    model(x).square().sum().backward()
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("name", KINDS)
def test_checkpointing_and_low_rank_updates(name: str) -> None:
    """Gradients are the same with checkpointing, and merged updates compute what they did apart."""
    model = make(name).double()
    x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(2)).double()
    plain = gradients(model, x)
    model.checkpointing = True
    again = gradients(model, x)
    assert plain.keys() == again.keys() == dict(model.named_parameters()).keys()
    assert all(torch.allclose(plain[name], again[name], rtol=1e-9) for name in plain)
    before = model(x)
    adapt(model, TuneConfig(mode="lora", rank=2, targets=("query", "key", "mlp-hidden")))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(".up"):
                parameter.normal_(generator=torch.Generator().manual_seed(3))
    apart = model(x)
    merge_lora(model)
    assert (before - apart).abs().max() > 1e-3
    assert torch.allclose(model(x), apart, rtol=1e-9)


@pytest.mark.parametrize("name", KINDS)
def test_tokens_are_merged_or_it_says_why_not(name: str) -> None:
    model = make(name)
    x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(2))
    spec = model.spec
    inside = spec.relative or spec.rotary != "none" or spec.distilled or spec.pool in POOLED
    plain = spec.attention == "full" and spec.block == "sequential" and spec.branches == 1
    if inside or not plain:
        with pytest.raises(InputError, match=r"token merging needs \w+"):
            MergedViT(model, 0.1)
        return
    with torch.no_grad():
        torch.testing.assert_close(MergedViT(model, 0.0)(x), model(x), rtol=1e-5, atol=1e-5)
        assert MergedViT(model, 0.2)(x).isfinite().all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("key_heads=3", "key_heads must divide the 4 heads"),
        ("key_heads_ends=1", "key_heads_ends requires key_heads"),
        ("block=parallel,branches=2", "branches requires block=sequential"),
        ("attention=differential,rotary=axial", "differential attention takes absolute positions"),
        ("layer_scale_at=attention", "layer_scale_at requires layer_scale"),
        ("position_mlp=24", "position_mlp requires position=relative-mlp"),
        ("position=relative-mlp", "relative positions act inside attention"),
        (
            *("position=sincos-2d,position_resize=timm-square",),
            "timm-square requires position=learned-1d or factorized",
        ),
    ],
)
def test_refusals(options: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse(f"{TINY},{options}")
