"""Closed-form costs against the built models: parameters, FLOPs, activation memory."""

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from tests.cases import slow_but
from vitrail.config import InputError
from vitrail.models import NAMES, BiT, ViT, build, parse
from vitrail.models.cost.total import cost_of

TINY = "ViT/8@40x48,depth=3,width=96,heads=3,mlp=160,classes=10"
OPTIONS = [
    "pool=token",
    "pool=gap",
    "pool=map",
    "pool=map,activation=swiglu",
    "pool=token-gap,registers=2,representation=12",
    "activation=swiglu",
    "activation=geglu",
    "pool=probe",
    "pool=probe,qkv_bias=false,pool_heads=2,position=sincos-2d-mae",
    "layer_scale=0.1",
    "dropout=0.1",
    "attention_dropout=0.1",
    "stochastic_depth=0.2",
    "qk_norm=true",
    "qkv_bias=false",
    "registers=4",
    "registers=4,pool=gap",
    "representation=32",
    "class_position=false",
    "position=none",
    "position=sincos-2d",
    "position=learned-2d,position_at=every-layer",
    "position=relative,position_at=shared",
    "position=relative,position_at=every-layer,attention_dropout=0.1",
    "channels=5",
    "distilled=true",
    "distilled=true,representation=20,position=learned-2d",
    "pre_norm=true,patch_bias=false,head_bias=false",
    "activation=quick-gelu",
    "classes=0",
    "rotary=axial",
    "rotary=centered,rotary_theta=100,registers=2",
    "rotary=mixed,qk_norm=true",
    "key_bias=false",
    "norm=rms,pre_norm=true,qk_norm=true",
    "norm=rms,pool=map",
    "norm_place=post",
    "sub_norm=mlp,activation=swiglu",
    "sub_norm=both",
    "sub_norm=both,norm=rms",
    "last_norm=pooled",
    "last_norm=pooled,pool=gap",
    "last_norm=none,pool=gap",
    "pool=gap,unpooled_class_token=true",
    "pool=map,unpooled_class_token=true,pool_prefix=true,pool_heads=2,pool_mlp=40",
    "registers=3,register_position=true",
    "position=relative-2d,position_at=every-layer",
    "position=relative-2d,position_at=shared,pool=gap",
    "position=relative-mlp,position_at=every-layer",
    "position=relative-mlp,position_at=shared,position_mlp=24,pool=gap,registers=2",
    "position=factorized,registers=2",
    "patch_norm=true,dense_bias=false",
    "block=parallel,layer_scale=0.1,qk_norm=true",
    "attention=differential,layer_scale=0.1",
    "attention=differential,qk_norm=true,block=parallel",
    "branches=2,layer_scale=0.1",
    "key_heads=1,layer_scale=0.1,layer_scale_at=attention",
    "key_heads=1,key_heads_ends=1,rotary=centered",
]
OTHERS = [
    "AxialViT/8@64x96,depth=2,width=64,heads=4,mlp=128",
    "Hybrid/1@64,stages=1-2-1,stem_width=32,depth=2,width=64,heads=4,mlp=128",
    "Hybrid/2@32x48,stem=conv,stages=2-3,stem_width=32,depth=2,width=64,heads=4,mlp=128",
    "Hybrid/2@64x96,stem=mobileclip,stem_width=32,depth=2,width=64,heads=4,mlp=128",
    "R+ViT/16@64,depth=2,width=64,heads=4,mlp=128",
    "BiT@64x96,stages=1-2-1,width=32,classes=10",
    "BiT@64x96,stages=1-2-1,width=32,heads=4,classes=10",
]


def flops(name: str, height: int, width: int) -> int:
    model = build(name, device="meta")
    with FlopCounterMode(display=False) as counter:
        model(torch.empty(1, model.spec.channels, height, width, device="meta"))
    return counter.get_total_flops()


def kept_bytes(model: ViT | BiT, batch: int, height: int, width: int) -> int:
    """Measure what autograd keeps: each storage once, parameters left out."""
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    seen: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        seen[tensor.untyped_storage().data_ptr()] = tensor  # held, so that no address comes twice
        return tensor

    x = torch.randn(batch, model.spec.channels, height, width)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = model(x)
    assert result.requires_grad
    return sum(t.untyped_storage().nbytes() for pointer, t in seen.items() if pointer not in own)


@pytest.mark.parametrize("name", slow_but(tuple(NAMES)[::4], NAMES))
def test_named_models(name: str) -> None:
    spec = parse(name)
    cost = cost_of(spec)
    built = build(name, device="meta")
    assert cost.parameters == sum(p.numel() for p in built.parameters())
    assert cost.flops == pytest.approx(flops(name, 224, 224), rel=1e-3)
    assert cost.flops == 2 * cost.macs
    assert cost.training_flops == 3 * cost.flops
    assert sum(row.parameters for row in cost.rows) == cost.parameters


@pytest.mark.parametrize("name", [*(f"{TINY},{option}" for option in OPTIONS), *OTHERS])
def test_every_option(name: str) -> None:
    spec = parse(name)
    model = build(name)
    cost = cost_of(spec, batch=4)
    assert cost.parameters == sum(p.numel() for p in model.parameters())
    assert cost.flops == pytest.approx(flops(name, *spec.image), rel=1e-6)
    # Exact but for a few numbers an image; in the ResNets padded copies are not counted.
    tolerance = 0.03 if "stages" in name or name.startswith("R+") else 0.002
    measured = kept_bytes(model, 4, *spec.image)
    assert cost.activation_bytes == pytest.approx(measured, rel=tolerance)


@pytest.mark.parametrize("name", [TINY, *OTHERS])
def test_checkpointing_keeps_block_inputs(name: str) -> None:
    spec = parse(name)
    model = build(name)
    model.checkpointing = True
    cost = cost_of(spec, batch=4)
    blocks = [row for row in cost.rows if row.block_input]
    inside = max((4 * row.kept + row.kept_once) // row.repeats for row in blocks)
    measured = kept_bytes(model, 4, *spec.image)
    tolerance = 0.01 if spec.family == "vit" else 0.1
    assert cost.checkpointed_bytes - 4 * inside == pytest.approx(measured, rel=tolerance)


@pytest.mark.parametrize("name", [TINY, f"{TINY},pool=gap,position=learned-2d", *OTHERS])
def test_another_image_size(name: str) -> None:
    """The work follows the image; parameters stay those of the trained size."""
    spec = parse(name)
    cost = cost_of(spec, image=(128, 64))
    assert cost.parameters == cost_of(spec).parameters == sum(r.parameters for r in cost.rows)
    assert cost.flops == pytest.approx(flops(name, 128, 64), rel=1e-6)
    assert cost.image == (128, 64)


def test_activations_grow_with_the_batch() -> None:
    one, many = (cost_of(parse("ViT-B/16"), batch=n).activation_bytes for n in (1, 64))
    assert many == 64 * one


def test_a_size_that_does_not_fit_is_refused() -> None:
    with pytest.raises(InputError, match="100x100 image does not split into 16x16 patches"):
        cost_of(parse("ViT-B/16"), image=(100, 100))
