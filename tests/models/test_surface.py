"""The surface that all models share, as a contract that each family runs.

Covers: tokens, features, logits; other sizes; replace_head; parameter_groups; gradient
checkpointing; compile without graph breaks; bfloat16 autocast; float64; meta device; bad input.
"""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import vitrail
from tests.cases import slow_but
from vitrail.config import InputError
from vitrail.models import BiT, ViT, ViTSpec, build, parse

FAMILIES = {
    "token": "ViT/8@32,depth=2,width=24,heads=2,mlp=32,classes=5",
    "gap": "ViT/8@32x48,depth=2,width=24,heads=2,mlp=32,pool=gap,position=sincos-2d,classes=5",
    "token-gap": "ViT/8@32,depth=2,width=24,heads=2,mlp=32,pool=token-gap,registers=2,classes=5",
    "map": "ViT/8@32,depth=2,width=24,heads=2,mlp=32,pool=map,representation=12,classes=5",
    "dino": "ViT/8@32,depth=2,width=24,heads=2,mlp=32,registers=2,activation=swiglu,"
    "qk_norm=true,layer_scale=0.1,classes=5",
    "deit": "ViT/8@32,depth=2,width=24,heads=2,mlp=32,distilled=true,classes=5",
    "clip": "ViT/8@32,depth=2,width=24,heads=2,mlp=32,patch_bias=false,pre_norm=true,"
    "activation=quick-gelu,head_bias=false,classes=5",
    "relative": "ViT/8@32,depth=2,width=24,heads=2,mlp=32,position=relative,position_at=shared,"
    "classes=5",
    "every-layer": "ViT/8@32,depth=2,width=24,heads=2,mlp=32,position=learned-2d,"
    "position_at=every-layer,classes=5",
    "eva": "ViT/8@32,depth=2,width=24,heads=2,mlp=32,pool=gap,unpooled_class_token=true,"
    "rotary=axial,rotary_grid=4,key_bias=false,sub_norm=both,activation=swiglu,last_norm=pooled,"
    "classes=5",
    "dinov3": "ViT/8@32x48,depth=2,width=24,heads=3,mlp=32,registers=2,position=none,"
    "rotary=centered,rotary_theta=100.0,layer_scale=0.1,classes=5",
    "mixed": "ViT/8@32,depth=2,width=24,heads=2,mlp=32,rotary=mixed,rotary_theta=10.0,norm=rms,"
    "norm_place=post,classes=5",
    "perception": "ViT/8@32,depth=2,width=24,heads=2,mlp=32,pool=map,unpooled_class_token=true,"
    "pool_prefix=true,pool_heads=3,pool_mlp=16,rotary=axial-xy,rotary_offset=1.0,pre_norm=true,"
    "registers=1,register_position=true,classes=5",
    "beit": "ViT/8@32,depth=2,width=24,heads=2,mlp=32,pool=gap,unpooled_class_token=true,"
    "position=relative-2d,position_at=every-layer,key_bias=false,last_norm=pooled,classes=5",
    "aim": "ViT/8@32,depth=2,width=24,heads=2,mlp=32,pool=gap,patch_norm=true,norm=rms,"
    "dense_bias=false,qkv_bias=false,activation=swiglu,classes=5",
    "channels": "ViT/8x4@32,depth=2,width=24,heads=2,mlp=32,channels=7,classes=5",
    "axial": "AxialViT/8@32x48,depth=2,width=24,heads=2,mlp=32,classes=5",
    "hybrid": "Hybrid/2@32,stages=1-1,stem_width=32,depth=2,width=24,heads=2,mlp=32,classes=5",
    "conv-hybrid": "Hybrid/2@32,stem=conv,stages=1-2,stem_width=32,depth=2,width=24,heads=2,mlp=32,"
    "classes=5",
    "bit": "BiT@32,stages=1-1,width=32,classes=5",
    "axial-resnet": "BiT@32x48,stages=1-1,width=32,heads=4,classes=5",
}

families = pytest.mark.parametrize("name", FAMILIES.values(), ids=FAMILIES.keys())


def make(name: str) -> tuple[ViT | BiT, Tensor]:
    """Build a model whose head is not zero, and images for it."""
    model = build(name)
    for name, parameter in model.named_parameters():
        if "head.output" in name:
            torch.nn.init.normal_(parameter)
    for module in model.modules():  # a fresh stem block is its shortcut: give it something to do
        if isinstance(module, torch.nn.GroupNorm):
            torch.nn.init.uniform_(module.weight, 0.5, 1.5)
    return model, torch.randn(3, model.spec.channels, *model.spec.image)


@families
def test_tokens_features_and_logits(name: str) -> None:
    model, x = make(name)
    model.eval()
    tokens, features, logits = model.tokens(x), model.features(x), model(x)
    assert tokens.shape[:2] == (3, model.spec.tokens)
    assert features.shape == (3, 12 if "representation" in name else model.spec.pooled)
    assert logits.shape == (3, 5)
    torch.testing.assert_close(model.head.features(model.pool(tokens)), features)
    if isinstance(model, ViT) and model.distillation_head is not None:
        second = model.distillation_head(tokens[:, 1])
        torch.testing.assert_close((model.head(features) + second) / 2, logits)
    else:
        torch.testing.assert_close(model.head(features), logits)


@families
def test_a_image_does_not_depend_on_its_batch(name: str) -> None:
    model, x = make(name)
    model.eval()
    alone = torch.cat([model(image[None]) for image in x])
    torch.testing.assert_close(alone, model(x), rtol=1e-4, atol=1e-5)


@families
def test_another_size_than_trained(name: str) -> None:
    model, _ = make(name)
    model.eval()
    for height, width in ((32, 32), (48, 32), (64, 80)):
        stride = model.spec.stride if isinstance(model.spec, ViTSpec) else (1, 1)
        if height % stride[0] or width % stride[1]:
            continue
        logits = model(torch.randn(1, model.spec.channels, height, width))
        assert logits.shape == (1, 5)
        assert logits.isfinite().all()


@families
def test_gradients_reach_every_parameter(name: str) -> None:
    model, x = make(name)
    model(x).square().sum().backward()
    dead = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert dead == []


@families
def test_checkpointing_changes_nothing_but_memory(name: str) -> None:
    model, x = make(name)
    gradients: list[list[Tensor]] = []
    kept: list[int] = []
    for checkpointing in (0, 2, 1):
        model.checkpointing = checkpointing
        model.zero_grad()
        sizes: list[int] = []

        def pack(tensor: Tensor, sizes: list[int] = sizes) -> Tensor:
            sizes.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = model(x).square().sum()
        loss.backward()
        kept.append(sum(sizes))
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    for each in gradients[1:]:
        torch.testing.assert_close(gradients[0], each)
    assert kept[2] < 0.7 * kept[0]
    assert kept[2] < kept[1] < kept[0]


@families
def test_float64_and_autocast(name: str) -> None:
    model, x = make(name)
    model.eval()
    single = model(x)
    with torch.autocast("cpu", torch.bfloat16):
        half = model(x)
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), single, rtol=0.1, atol=0.1 * single.abs().max().item())
    double = model.double()(x.double())
    assert double.dtype == torch.float64
    torch.testing.assert_close(double.float(), single, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("options", ["", ",pool=gap,position=sincos-2d", ",pool=gap,position=none"])
def test_autocast_adds_up_blocks_in_float32(options: str) -> None:
    """What runs from block to block is a sum, which halves would round at every block."""
    model = build(f"ViT/8@32,depth=2,width=24,heads=2,mlp=32,classes=5{options}")
    seen: list[torch.dtype] = []
    for block in model.blocks:
        block.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].dtype))
    with torch.autocast("cpu", torch.bfloat16):
        model(torch.randn(2, 3, 32, 32))
    assert seen == [torch.float32] * 2


@families
def test_half_precision_weights(name: str) -> None:
    model, x = make(name)
    assert model.eval().bfloat16()(x.bfloat16()).dtype == torch.bfloat16


@families
def test_meta_device_allocates_nothing(name: str) -> None:
    model = build(name, device="meta")
    assert all(parameter.is_meta for parameter in model.parameters())
    x = torch.empty(2, model.spec.channels, *model.spec.image, device="meta")
    assert model(x).shape == (2, 5)


def test_the_largest_models_are_built_without_memory() -> None:
    for name in ("ViT-H/14", "ViT-G/14", "BiT-R200x4"):
        assert all(p.is_meta for p in build(name, device="meta").parameters())


@families
def test_replace_head(name: str) -> None:
    model, x = make(name)
    model.eval().double()
    x, before = x.double(), model.pool(model.tokens(x.double()))
    model.replace_head(9)
    assert model.spec.classes == 9
    assert model.head.hidden is None
    assert torch.equal(model(x), torch.zeros(3, 9, dtype=torch.float64))
    torch.testing.assert_close(model.features(x), before)
    assert build(model.spec).state_dict().keys() == model.state_dict().keys()
    model.replace_head(0)
    torch.testing.assert_close(model.features(x), before)


@families
def test_parameter_groups(name: str) -> None:
    model, _ = make(name)
    groups = model.parameter_groups(weight_decay=0.3, layer_decay=0.5, lr=0.01)
    named = dict(model.named_parameters())
    assert sorted(n for group in groups for n in group["names"]) == sorted(named)
    for group in groups:
        assert all(named[n] is p for n, p in zip(group["names"], group["params"], strict=True))
        matrices = {n.endswith(".weight") and named[n].ndim > 1 for n in group["names"]}
        assert matrices == {group["weight_decay"] == 0.3}
        assert group["lr_scale"] == 0.5 ** (groups[-1]["layer"] - group["layer"])
    depth = len(model.blocks)
    assert {group["layer"] for group in groups} == set(range(depth + 2))
    before = {n: p.detach().clone() for n, p in named.items()}
    for parameter in named.values():  # the first step of Adam without decay is the rate itself
        parameter.grad = torch.ones_like(parameter)
    for group in groups:
        group["weight_decay"] = 0.0
    torch.optim.AdamW(groups, lr=0.1, eps=0.0).step()
    for group in groups:
        for each in group["names"]:
            moved = before[each] - named[each].detach()
            rate = 0.01 * 0.5 ** (groups[-1]["layer"] - group["layer"])
            torch.testing.assert_close(moved, torch.full_like(moved, rate), rtol=1e-3, atol=1e-6)


def test_a_layer_decay_that_torch_would_not_read_is_refused() -> None:
    model, _ = make(FAMILIES["dino"])
    with pytest.raises(InputError, match=r"layer_decay requires lr: .*\(layer_decay=0\.5, lr=…"):
        model.parameter_groups(weight_decay=0.1, layer_decay=0.5)
    assert all("lr" not in group for group in model.parameter_groups(weight_decay=0.1))


def test_parameter_groups_of_a_vit() -> None:
    model, _ = make(FAMILIES["dino"])
    layers = {n: g["layer"] for g in model.parameter_groups() for n in g["names"]}
    assert layers["class_token"] == layers["positions.0.table"] == layers["registers"] == 0
    assert layers["embedding.weight"] == 0
    assert layers["blocks.0.attention.norm.weight"] == 1
    assert layers["norm.weight"] == layers["head.output.weight"] == 3


@pytest.mark.parametrize("name", slow_but((FAMILIES["eva"],), FAMILIES.values()))
def test_compile_has_no_graph_breaks(name: str) -> None:
    """Trace to one graph and run it, forward and backward; no C++ compiler is needed for that."""
    torch._dynamo.reset()
    model, x = make(name)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    x.requires_grad_()
    (expected,) = torch.autograd.grad(model(x).square().sum(), x)
    logits = compiled(x)
    assert isinstance(logits, Tensor)
    torch.testing.assert_close(logits, model(x))
    (gradient,) = torch.autograd.grad(logits.square().sum(), x)
    torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-4)


COMPILED = [
    pytest.param(FAMILIES[each], id=each, marks=[] if each in ("eva", "bit") else pytest.mark.slow)
    for each in FAMILIES
]


@pytest.mark.parametrize("name", COMPILED)
def test_intermediates_compile_to_one_graph_and_stop_early(name: str) -> None:
    """What an inspecting hook sees, from one graph; later blocks do not run."""
    torch._dynamo.reset()
    model, x = make(name)
    model.eval()
    with torch.no_grad(), vitrail.record(model, tokens="all") as tape:
        model(x)
    compiled = torch.compile(model.intermediates, fullgraph=True, backend="eager")
    with torch.no_grad():
        for layers in (None, [0], [-1, 0]):
            asked = range(len(model.blocks)) if layers is None else layers
            for index, tokens in zip(asked, compiled(x, layers), strict=True):
                torch.testing.assert_close(tokens, tape.tokens[index])
        (cells,) = compiled(x, [0], grid=True)
        prefix = getattr(model.spec, "prefix", 0)
        torch.testing.assert_close(cells.flatten(2).mT, tape.tokens[0][:, prefix:])
        if isinstance(model, ViT):
            assert cells.shape[2:] == model.spec.grid
        ran: list[nn.Module] = []
        model.blocks[-1].register_forward_hook(lambda block, *_: ran.append(block))
        model.intermediates(x, [0])
        assert not ran
        model.intermediates(x, [0], stop_early=False)
        assert len(ran) == 1


@pytest.mark.slow
def test_compile_with_checkpointing_and_another_size() -> None:
    torch._dynamo.reset()
    model, x = make(FAMILIES["token"])
    model.checkpointing = True
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for images in (x, torch.randn(2, 3, 48, 64)):
        torch.testing.assert_close(compiled(images), model(images))


def test_the_fused_kernel_is_always_on(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[Any, ...]] = []
    fused = F.scaled_dot_product_attention

    def counted(*args: Any, **options: Any) -> Tensor:
        calls.append(args)
        return fused(*args, **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", counted)
    for name, count in (("token", 2), ("relative", 2), ("map", 3), ("axial", 4)):
        calls.clear()
        model, x = make(FAMILIES[name])
        model(x)
        assert len(calls) == count


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((3, 32, 32), "expected (batch, 3, height, width) images, got (3, 32, 32)"),
        ((1, 1, 3, 32, 32), "expected (batch, 3, height, width) images, got (1, 1, 3, 32, 32)"),
        ((1, 4, 32, 32), "expected 3 channels, got 4 in (1, 4, 32, 32)"),
        ((1, 32, 32, 3), "expected 3 channels, got 32 in (1, 32, 32, 3); channels come second"),
        ((1, 3, 32, 33), "a 32x33 image does not split into 8x8 patches; the nearest size that "
                         "does is 32x32"),
        ((1, 3, 4, 32), "a 4x32 image does not split into 8x8 patches; the nearest size that "
                        "does is 8x32"),
    ],
)  # fmt: skip
def test_bad_images_get_one_clear_line(shape: tuple[int, ...], message: str) -> None:
    model, _ = make(FAMILIES["token"])
    with pytest.raises(InputError) as caught:
        model(torch.randn(shape))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_whole_numbers_are_refused() -> None:
    model, _ = make(FAMILIES["bit"])
    with pytest.raises(InputError, match=r"expected floating-point images, got torch\.uint8"):
        model(torch.zeros(1, 3, 32, 32, dtype=torch.uint8))


@families
def test_nan_is_passed_through_and_stays_in_its_image(name: str) -> None:
    model, x = make(name)
    model.eval()
    x[1, 0, 5, 5] = float("nan")
    finite = model(x).isfinite().all(1)
    assert finite.tolist() == [True, False, True]


def test_empty_batch() -> None:
    model, _ = make(FAMILIES["token"])
    assert model(torch.empty(0, 3, 32, 32)).shape == (0, 5)


def test_the_door() -> None:
    model = vitrail.build("ViT-Ti/16", classes=10)
    assert isinstance(model, ViT)
    assert model.spec == parse("ViT-Ti/16,classes=10")
    assert model(torch.randn(1, 3, 224, 224)).shape == (1, 10)
    with pytest.raises(InputError, match="classes must be at least 0"):
        vitrail.build("ViT-Ti/16", classes=-1)


@pytest.mark.parametrize(
    "name",
    ["ViT/8@16x24,depth=3,width=8,heads=2,mlp=8", "AxialViT/8@16x24,depth=3,width=8,heads=2,mlp=8"],
)
def test_intermediates_are_the_blocks_outputs_with_gradients(name: str) -> None:
    model = build(name, seed=1)
    x = torch.randn(2, 3, 16, 24, requires_grad=True)
    tokens, (last, first) = model.forward_intermediates(x, [-1, 0])
    torch.testing.assert_close(tokens, model.tokens(x))
    torch.testing.assert_close(model.norm(last), tokens)
    assert first.shape == tokens.shape
    (gradient,) = torch.autograd.grad(first.square().sum(), x)
    assert gradient.abs().sum() > 0
    every = model.forward_intermediates(x, norm=True)[1]
    assert len(every) == 3
    torch.testing.assert_close(every[2], tokens)
    with pytest.raises(InputError, match="has blocks 0 to 2, not 3"):
        model.forward_intermediates(x, [3])
    with pytest.raises(InputError, match="has 3 blocks, not the last 4"):
        model.intermediates(x, 4)
    two = model.intermediates(x, 2, norm=True, grid=True)
    assert [each.shape for each in two] == [(2, 8, 2, 3)] * 2
    patches = every[2] if "Axial" in name else every[2][:, 1:]
    torch.testing.assert_close(two[1].flatten(2).mT, patches)


def test_intermediates_of_a_resnet_are_its_cells() -> None:
    model = build("BiT@32,stages=1-1,width=32", seed=1)
    tokens, (first, last) = model.forward_intermediates(torch.randn(2, 3, 32, 32), [0, 1])
    assert first.shape == (2, 64, 128)
    assert last.shape == tokens.shape == (2, 16, 256)
    with pytest.raises(InputError, match="fits its last block only"):
        model.forward_intermediates(torch.randn(2, 3, 32, 32), norm=True)


def test_a_module_becomes_the_head() -> None:
    model = build("ViT/8@16,depth=1,width=8,heads=2,mlp=8,classes=5,representation=4", seed=1)
    x = torch.randn(2, 3, 16, 16)
    head = nn.Sequential(nn.Linear(8, 6), nn.GELU(), nn.Linear(6, 3))
    model.replace_head(head)
    assert model.spec.classes == 0
    torch.testing.assert_close(model(x), head(model.pool(model.tokens(x))))
    linear = nn.Linear(8, 3, bias=False)
    model.replace_head(linear)
    assert str(model.spec).endswith(",classes=3,head_bias=false")
    torch.testing.assert_close(model(x), model.features(x) @ linear.weight.T)
    with pytest.raises(InputError, match="gets 8 features, the layer takes 7"):
        model.replace_head(nn.Linear(7, 3))


def test_options_are_arguments() -> None:
    assert build("ViT-Ti/16", pool="gap", classes=10, device="meta").spec == parse(
        "ViT-Ti/16,pool=gap,classes=10"
    )
    for image in (384, "384", "384x384", (384, 384)):
        assert build("ViT-Ti/16", image=image, device="meta").spec.image == (384, 384)
    assert build("ViT-Ti/16", image="32x48", device="meta").spec.image == (32, 48)
    with pytest.raises(InputError, match="'big' is not a size"):
        build("ViT-Ti/16", image="big", device="meta")
    with pytest.raises(InputError, match=r"ViT-Ti/16: .*pools.*pool"):
        build("ViT-Ti/16", pools="gap", device="meta")
    with pytest.raises(
        InputError, match="expected 'token', 'gap', 'map', 'probe' or 'token-gap', got 'gapp'"
    ):
        build("ViT-Ti/16", pool="gapp", device="meta")
