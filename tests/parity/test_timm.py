"""timm's ViT, hybrid and BiT with random weights: each rung of ours is equal.

Every spec here is also a timm model; `timm_vit` says which. Left out, because our models do not
have them: timm's norm after pooling (`fc_norm`), mean pooling beside a class token, and positions
of registers.
"""

import random
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.parity import peers
from vitrail.models import BiT, BiTSpec, HybridSpec, ViT, ViTSpec, resize_patches, resize_positions
from vitrail.models.spec import Activation, Pool, Size

timm_layers = peers.load("timm.layers")
timm_resnet = peers.load("timm.models.resnetv2")
timm_vits = peers.load("timm.models.vision_transformer")

BASE = replace(peers.TINY, position_resize="timm")
STEM: dict[str, Any] = {"stem_width": 32, "stem_norm_eps": 1e-5, "standardize": "timm"}
SPECS: dict[str, ViTSpec] = {
    "class token": BASE,
    "not square": replace(BASE, image=(24, 40), patch=(8, 4)),
    "gap": replace(BASE, pool="gap"),
    "no class position": replace(BASE, class_position=False),
    "no position": replace(BASE, position="none"),
    "layer scale": replace(BASE, layer_scale=0.1),
    "dinov2": replace(BASE, layer_scale=0.1, activation="swiglu"),
    "dinov2 with registers": replace(
        BASE, layer_scale=0.1, activation="swiglu", registers=3, class_position=False
    ),
    "registers and gap": replace(BASE, registers=2, pool="gap"),
    "qk-norm": replace(BASE, qk_norm=True),
    "no qkv bias": replace(BASE, qkv_bias=False),
    "siglip": replace(BASE, pool="map", activation="gelu-tanh"),
    "map and registers": replace(BASE, pool="map", registers=2),
    "one channel": replace(BASE, channels=1),
    "hybrid": HybridSpec(
        **{**vars(BASE), "patch": (1, 1), "image": (48, 64)}, stages=(1, 2, 1), **STEM
    ),
    "hybrid of the root alone": HybridSpec(
        **{**vars(BASE), "patch": (2, 2), "image": (40, 24)}, **STEM
    ),
}
BIT = BiTSpec(stages=(1, 2, 1, 1), width=32, image=(64, 64), classes=7, standardize="timm")

RULES = [
    (r"^cls_token$", "class_token"),
    (r"^reg_token$", "registers"),
    (r"^pos_embed$", "positions.0.table"),
    (r"^patch_embed\.proj\.", "embedding."),
    (r"^patch_embed\.backbone\.(stem\.)?", "stem."),
    (r"\.downsample\.conv\.", ".shortcut.0."),
    (r"\.downsample\.norm\.", ".shortcut.1."),
    (r"^(blocks\.\d+)\.norm1\.", r"\1.attention.norm."),
    (r"^(blocks\.\d+)\.norm2\.", r"\1.mlp.norm."),
    (r"^attn_pool\.norm\.", "pooling.mlp.norm."),
    (r"\.attn\.", ".attention."),
    (r"\.q_norm\.", ".query_norm."),
    (r"\.k_norm\.", ".key_norm."),
    (r"^attn_pool\.latent$", "pooling.probe"),
    (r"^attn_pool\.q\.", "pooling.query."),
    (r"^attn_pool\.kv\.", "pooling.key_value."),
    (r"^attn_pool\.", "pooling."),
    (r"(attention|pooling)\.proj\.", r"\1.output."),
    (r"\.mlp\.fc1\.", ".mlp.hidden."),
    (r"\.mlp\.fc2\.", ".mlp.output."),
    (r"\.ls([12])\.gamma$", r".after\1.scale.factor"),
    (r"^head\.", "head.output."),
]
BIT_RULES = [
    (r"^stem\.conv\.", "root."),
    (r"\.downsample\.conv\.", ".shortcut."),
    (r"^head\.fc\.", "head.output."),
]


def timm_vit(spec: ViTSpec, dtype: torch.dtype, *, dynamic: bool = False) -> Any:
    """Build timm's model of the same meaning; a dynamic one takes images of any size."""
    gated = spec.activation == "swiglu"
    activations = {"gelu": None, "gelu-tanh": "gelu_tanh", "swiglu": "silu"}
    embed = timm_layers.PatchEmbed
    if isinstance(spec, HybridSpec):
        embed = partial(timm_layers.HybridEmbed, backbone=timm_stem(spec))
    peer = timm_vits.VisionTransformer(
        img_size=spec.image,
        patch_size=spec.patch,
        in_chans=spec.channels,
        num_classes=spec.classes,
        global_pool="avg" if spec.pool == "gap" else spec.pool,
        embed_dim=spec.width,
        depth=spec.depth,
        num_heads=spec.heads,
        mlp_ratio=(spec.mlp * (2 if gated else 1) + 0.5) / spec.width,  # timm rounds down
        qkv_bias=spec.qkv_bias,
        qk_norm=spec.qk_norm,
        init_values=spec.layer_scale or None,
        class_token=spec.pool == "token",
        pos_embed="none" if spec.position == "none" else "learn",
        no_embed_class=bool(spec.registers) or not spec.class_position,
        reg_tokens=spec.registers,
        fc_norm=False,
        dynamic_img_size=dynamic,
        embed_layer=embed,
        act_layer=activations[spec.activation],
        mlp_layer=timm_layers.SwiGLUPacked if gated else timm_layers.Mlp,
    )
    return peers.randomize(peer, dtype)


def timm_stem(spec: HybridSpec) -> Any:
    """Build a hybrid's ResNet as timm's `_resnetv2` does, which knows one width only."""
    options: dict[str, Any] = {
        "stem_type": "same",
        "preact": False,
        "conv_layer": partial(timm_layers.StdConv2dSame, eps=1e-8),
    }
    if not spec.stages:
        return timm_resnet.create_resnetv2_stem(spec.channels, spec.stem_width, **options)
    return timm_resnet.ResNetV2(
        spec.stages,
        channels(spec.stages, spec.stem_width),
        num_classes=0,
        global_pool="",
        stem_chs=spec.stem_width,
        **options,
    )


def timm_bit(spec: BiTSpec, dtype: torch.dtype) -> Any:
    peer = timm_resnet.ResNetV2(
        spec.stages,
        channels(spec.stages, spec.width),
        num_classes=spec.classes,
        in_chans=spec.channels,
        stem_chs=spec.width,
        stem_type={"none": "", "zeros": "fixed"}[spec.pool_padding],
        conv_layer=partial(timm_layers.StdConv2d, eps=1e-8),
    )
    return peers.randomize(peer, dtype)


def channels(stages: tuple[int, ...], width: int) -> tuple[int, ...]:
    return tuple(4 * width * 2**stage for stage in range(len(stages)))


def count_through(stages: tuple[int, ...]) -> peers.Rules:
    """Give the blocks of a ResNet the numbers that ours have, from the first to the last."""
    named = [(stage, block) for stage, blocks in enumerate(stages) for block in range(blocks)]
    return [
        (rf"\bstages\.{stage}\.blocks\.{block}\.", f"blocks.{index}.")
        for index, (stage, block) in enumerate(named)
    ]


def ours_of(peer: nn.Module, spec: ViTSpec) -> ViT:
    stages = spec.stages if isinstance(spec, HybridSpec) else ()
    rules = [*count_through(stages), *RULES]
    return peers.fill(ViT(spec), peers.translate(peer.state_dict(), rules))


def climb_both(peer: Any, model: ViT, x: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    ours: dict[str, peers.Cursor] = {}
    theirs = peers.places(peer.blocks[0], peer.norm, features=peer.head)
    if isinstance(model.spec, HybridSpec) and model.stem is not None:
        stages, backbone = model.spec.stages, peer.patch_embed.backbone
        root = backbone.stem if stages else backbone
        ours = {"root": (model.stem, "output"), **our_stages(stages, model.stem.blocks)}
        theirs = {"root": (root, "output"), **timm_stages(stages, backbone), **theirs}
    return peers.climb_ours(model, x, **ours), peers.climb(theirs, peer, x)


def our_stages(stages: tuple[int, ...], blocks: nn.ModuleList) -> dict[str, peers.Cursor]:
    ends = [sum(stages[: stage + 1]) for stage in range(len(stages))]
    return {f"stage {stage}": (blocks[end - 1], "output") for stage, end in enumerate(ends)}


def timm_stages(stages: tuple[int, ...], resnet: Any) -> dict[str, peers.Cursor]:
    return {f"stage {stage}": (resnet.stages[stage], "output") for stage in range(len(stages))}


@peers.PRECISIONS
@pytest.mark.parametrize("name", SPECS)
def test_rungs_equal_timm(name: str, dtype: torch.dtype, tolerance: float) -> None:
    spec = SPECS[name]
    peer = timm_vit(spec, dtype)
    rungs = climb_both(peer, ours_of(peer, spec), peers.images(spec, dtype))
    peers.assert_equal_rungs(*rungs, tolerance)


# Not to one column: torch's antialiased resize is wrong there for the layout that timm gives it.
RESIZED = [
    *product(
        ["class token", "gap", "dinov2", "dinov2 with registers", "siglip"],
        [(48, 48), (16, 16), (64, 16), (48, 80)],
    ),
    *product(["hybrid"], [(16, 32), (64, 32), (48, 80)]),
    ("hybrid of the root alone", (32, 48)),
]


@peers.PRECISIONS
@pytest.mark.parametrize(("name", "size"), RESIZED)
def test_rungs_at_another_resolution_equal_timm(
    name: str, size: Size, dtype: torch.dtype, tolerance: float
) -> None:
    spec = SPECS[name]
    peer = timm_vit(spec, dtype, dynamic=True)
    rungs = climb_both(peer, ours_of(peer, spec), peers.images(spec, dtype, size))
    peers.assert_equal_rungs(*rungs, max(tolerance, peers.FLOAT32_RESIZE))


KINDS: list[tuple[Pool, Activation]] = [  # timm's attention pooling has no gate
    *product(("token", "gap", "map"), ("gelu", "gelu-tanh")),
    *product(("token", "gap"), ("swiglu",)),
]


def draw(seed: int) -> ViTSpec:
    """Draw a spec of which timm has a model too."""
    pick = random.Random(seed)
    pool, activation = KINDS[seed % len(KINDS)]
    heads, patch = pick.choice([1, 2, 3, 5]), (pick.randint(2, 8), pick.randint(2, 8))
    registers = pick.choice([0, 0, 1, 4])
    return ViTSpec(
        depth=pick.randint(1, 4),
        width=heads * pick.choice([4, 8, 12, 16]),
        heads=heads,
        mlp=pick.randint(5, 100),
        patch=patch,
        image=(patch[0] * pick.randint(2, 6), patch[1] * pick.randint(2, 6)),
        channels=pick.choice([1, 3, 4]),
        classes=pick.randint(2, 20),
        pool=pool,
        registers=registers,
        class_position=not registers and pick.choice([True, False]),
        activation=activation,
        qkv_bias=pick.choice([True, False]),
        qk_norm=pick.choice([True, False]),
        layer_scale=pick.choice([0, 0.1]),
        position_resize="timm",
    )


@peers.PRECISIONS
@pytest.mark.parametrize("seed", range(2 * len(KINDS)))
def test_rungs_of_drawn_specs_equal_timm(seed: int, dtype: torch.dtype, tolerance: float) -> None:
    spec = draw(seed)
    peer = timm_vit(spec, dtype, dynamic=True)
    model = ours_of(peer, spec)
    rungs = climb_both(peer, model, peers.images(spec, dtype))
    peers.assert_equal_rungs(*rungs, tolerance)
    larger = (spec.image[0] + spec.patch[0], spec.image[1] + 2 * spec.patch[1])
    rungs = climb_both(peer, model, peers.images(spec, dtype, larger))
    peers.assert_equal_rungs(*rungs, max(tolerance, peers.FLOAT32_RESIZE))


@pytest.mark.parametrize(
    ("size", "changes", "rung"),
    [
        ((32, 32), {"activation": "gelu-tanh"}, "block"),
        ((32, 32), {"norm_eps": 2e-6}, "block"),
        ((48, 48), {"position_resize": "huggingface"}, "embedding"),
        ((48, 48), {"position_resize": "torchvision"}, "embedding"),
        ((48, 48), {"position_resize": "google"}, "embedding"),
    ],
)
def test_another_option_shows_at_its_rung(size: Size, changes: dict[str, Any], rung: str) -> None:
    peer = timm_vit(BASE, torch.float64, dynamic=True)
    model = ours_of(peer, replace(BASE, **changes))
    rungs = climb_both(peer, model, peers.images(BASE, torch.float64, size))
    tolerance = 1e-10 if size == BASE.image else peers.FLOAT32_RESIZE
    with pytest.raises(AssertionError, match=rf"^{rung}: off by"):
        peers.assert_equal_rungs(*rungs, tolerance)


@peers.PRECISIONS
@pytest.mark.parametrize("size", [(64, 64), (61, 75)])
@pytest.mark.parametrize("pool_padding", ["zeros", "none"])
def test_stages_of_bit_equal_timm(
    pool_padding: Any, size: Size, dtype: torch.dtype, tolerance: float
) -> None:
    spec = replace(BIT, pool_padding=pool_padding)
    peer = timm_bit(spec, dtype)
    rules = [*count_through(spec.stages), *BIT_RULES]
    model = peers.fill(BiT(spec), peers.translate(peer.state_dict(), rules))
    assert model.head.output is not None
    ours: dict[str, peers.Cursor] = {
        "convolution": (model.root, "output"),
        "root": (model.blocks[0], "input"),
        **our_stages(spec.stages, model.blocks),
        "features": (model.head.output, "input"),
    }
    theirs: dict[str, peers.Cursor] = {
        "convolution": (peer.stem.conv, "output"),
        "root": (peer.stem, "output"),
        **timm_stages(spec.stages, peer),
        "features": (peer.head.global_pool, "output"),
    }
    x = peers.images(spec, dtype, size)
    rungs = peers.climb(theirs, peer, x)
    rungs["features"] = rungs["features"].flatten(1)
    peers.assert_equal_rungs(peers.climb(ours, model, x), rungs, tolerance)
    with torch.no_grad():
        cells = peer.forward_features(x).flatten(2).transpose(1, 2)
        peers.assert_near(model.tokens(x), cells, tolerance)


@pytest.mark.parametrize("prefix", [0, 1, 4])
@pytest.mark.parametrize(
    ("old", "new"),
    [((4, 4), (7, 7)), ((4, 4), (3, 2)), ((4, 4), (2, 8)), ((4, 6), (6, 4)), ((5, 3), (24, 9))],
)
def test_position_resize_equals_timm(old: Size, new: Size, prefix: int) -> None:
    table = torch.randn(prefix + old[0] * old[1], 12)
    theirs = timm_layers.resample_abs_pos_embed(
        table[None], list(new), list(old), num_prefix_tokens=prefix
    )
    peers.assert_near(resize_positions(table, old, new, "timm", prefix), theirs[0], 1e-6)


@pytest.mark.parametrize(
    ("old", "new"),
    [((16, 16), (8, 8)), ((8, 8), (12, 12)), ((7, 7), (5, 9)), ((4, 6), (6, 4))],
)
def test_patch_resize_equals_timm(old: Size, new: Size) -> None:
    weight = torch.randn(6, 3, *old)
    theirs = timm_layers.resample_patch_embed(weight, list(new), interpolation="bilinear")
    peers.assert_near(resize_patches(weight, new), theirs, 1e-5)
