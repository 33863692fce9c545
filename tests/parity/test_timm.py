"""timm's ViT, hybrid and BiT with random weights: each rung of ours is equal.

Every spec here is also a timm model; `timm_vit` says which. Left out, because our models do not
have them: timm's norm after pooling (`fc_norm`), mean pooling beside a class token, and positions
of registers.
"""

import random
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.parity import peers
from vitrail.models import BiT, BiTSpec, HybridSpec, ViT, ViTSpec, resize_patches, resize_positions
from vitrail.models.spec import Size

timm_layers = peers.load("timm.layers")
timm_resnet = peers.load("timm.models.resnetv2")
timm_vits = peers.load("timm.models.vision_transformer")

BASE = ViTSpec(
    depth=2,
    width=48,
    heads=4,
    mlp=96,
    patch=(8, 8),
    image=(32, 32),
    classes=7,
    activation="gelu",
    position_resize="timm",
)
STEM: dict[str, Any] = {"stem_width": 32, "stem_norm_eps": 1e-5, "standardise": "timm"}
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
BIT = BiTSpec(stages=(1, 2, 1, 1), width=32, image=(64, 64), classes=7, standardise="timm")

RULES = [
    (r"^cls_token$", "class_token"),
    (r"^reg_token$", "registers"),
    (r"^pos_embed$", "positions.0.table"),
    (r"^patch_embed\.proj\.", "embedding.projection."),
    (r"^patch_embed\.backbone\.(stem\.)?", "stem."),
    (r"\.downsample\.conv\.", ".shortcut.0."),
    (r"\.downsample\.norm\.", ".shortcut.1."),
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
    """Build timm's model of the same meaning; a dynamic one takes pictures of any size."""
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
    return peers.randomise(peer, dtype)


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
    return peers.randomise(peer, dtype)


def channels(stages: tuple[int, ...], width: int) -> tuple[int, ...]:
    return tuple(4 * width * 2**stage for stage in range(len(stages)))


def count_through(stages: tuple[int, ...]) -> peers.Rules:
    """Number the blocks of a ResNet as ours are, from the first to the last."""
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
    ours, theirs = peers.our_places(model), peers.places(peer.blocks[0], peer.norm)
    theirs["features"] = (peer.head, "input")
    if isinstance(model.spec, HybridSpec) and model.stem is not None:
        backbone = peer.patch_embed.backbone
        ours["root"] = (model.stem, "output")
        theirs["root"] = (backbone.stem if model.spec.stages else backbone, "output")
        ours |= stages_of(model.spec.stages, model.stem.blocks)
        theirs |= {name: (backbone.stages[int(name[-1])], "output") for name in ours if "stage" in name}
    return peers.climb(ours, model, x), peers.climb(theirs, peer, x)


def stages_of(stages: tuple[int, ...], blocks: nn.ModuleList) -> dict[str, peers.Place]:
    lasts = [sum(stages[: stage + 1]) - 1 for stage in range(len(stages))]
    return {f"stage {stage}": (blocks[last], "output") for stage, last in enumerate(lasts)}
