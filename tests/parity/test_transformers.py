"""transformers' ViT, DINOv2 and SigLIP with random weights: each rung of ours is equal.

Left out, because our models do not have it: DINOv2's classifier, which reads the class token and
the mean of the patches side by side.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from tests.parity import peers
from tests.parity.transformers_models import BASE, RULES, shape
from vitrail.models import ViT, ViTSpec, resize_positions
from vitrail.models.spec import Size

hf_vit = peers.load("transformers.models.vit.modeling_vit")
hf_dino = peers.load("transformers.models.dinov2.modeling_dinov2")
hf_registers = peers.load(
    "transformers.models.dinov2_with_registers.modeling_dinov2_with_registers"
)
hf_siglip = peers.load("transformers.models.siglip.modeling_siglip")

DINO = replace(BASE, classes=0, norm_eps=1e-6, layer_scale=1.0)
GATED = replace(DINO, activation="swiglu", mlp=64)  # two thirds of 96, in eights
# With registers, transformers resizes positions as timm does.
REGISTERS: dict[str, Any] = {"registers": 3, "position_resize": "timm"}
SIGLIP = replace(BASE, classes=0, norm_eps=1e-6, activation="gelu-tanh", pool="map")


class Peer(NamedTuple):
    """A model of transformers: its parts, and how it runs on images of any size."""

    model: Any
    embeddings: Any
    places: dict[str, peers.Cursor]
    call: Callable[[Tensor], Tensor]


def vit(spec: ViTSpec, dtype: torch.dtype) -> Peer:
    """Build the classifier, or without classes the model whose pooler is our representation."""
    config = hf_vit.ViTConfig(
        **shape(spec),
        intermediate_size=spec.mlp,
        qkv_bias=spec.qkv_bias,
        num_labels=spec.classes,
        pooler_output_size=spec.representation or None,
    )

    def call(x: Tensor) -> Tensor:
        output = model(x, interpolate_pos_encoding=tuple(x.shape[2:]) != spec.image)
        return output.logits if spec.classes else output.pooler_output

    kind = hf_vit.ViTForImageClassification if spec.classes else hf_vit.ViTModel
    model = peers.randomize(kind(config), dtype)
    inner = model.vit if spec.classes else model
    heads = {"features": model.classifier} if spec.classes else {"pooled": model.pooler.dense}
    places = peers.places(inner.layers[0], inner.layernorm, **heads)
    return Peer(model, inner.embeddings, places, call)


def dino(spec: ViTSpec, dtype: torch.dtype) -> Peer:
    options = {**shape(spec), "mlp_ratio": 2, "use_swiglu_ffn": spec.activation == "swiglu"}
    if spec.registers:
        config = hf_registers.Dinov2WithRegistersConfig(
            **options, num_register_tokens=spec.registers
        )
        model = hf_registers.Dinov2WithRegistersModel(config)
    else:
        model = hf_dino.Dinov2Model(hf_dino.Dinov2Config(**options))
    peers.randomize(model, dtype)
    places = peers.places(model.encoder.layer[0], model.layernorm)
    return Peer(model, model.embeddings, places, lambda x: model(x).pooler_output)


def siglip(spec: ViTSpec, dtype: torch.dtype) -> Peer:
    """Build the tower with its attention pooling, or the classifier of the patches' mean."""
    options = {**shape(spec), "intermediate_size": spec.mlp}

    def call(x: Tensor) -> Tensor:
        output = model(x, interpolate_pos_encoding=tuple(x.shape[2:]) != spec.image)
        return output.logits if spec.classes else output.pooler_output

    if spec.classes:
        options["vision_use_head"] = False
        config = hf_siglip.SiglipConfig(vision_config=options, num_labels=spec.classes)
        model = hf_siglip.SiglipForImageClassification(config)
    else:
        model = hf_siglip.SiglipVisionModel(hf_siglip.SiglipVisionConfig(**options))
    peers.randomize(model, dtype)
    inner = model.vision_model if spec.classes else model
    features = model.classifier if spec.classes else None
    places = peers.places(inner.encoder.layers[0], inner.post_layernorm, features=features)
    return Peer(model, inner.embeddings, places, call)


Build = Callable[[ViTSpec, torch.dtype], Peer]
CASES: dict[str, tuple[Build, ViTSpec]] = {
    "vit": (vit, BASE),
    "vit without qkv bias": (vit, replace(BASE, qkv_bias=False)),
    "vit with pooler": (vit, replace(BASE, classes=0, representation=20)),
    "dinov2": (dino, DINO),
    "dinov2 with swiglu": (dino, GATED),
    "dinov2 with registers": (dino, replace(DINO, **REGISTERS)),
    "dinov2 with both": (dino, replace(GATED, **REGISTERS)),
    "siglip": (siglip, SIGLIP),
    "siglip classifier": (siglip, replace(SIGLIP, pool="gap", classes=7)),
}
# Not at another resolution, where transformers takes any table for a square one.
NOT_SQUARE: dict[str, tuple[Build, ViTSpec]] = {
    "vit not square": (vit, replace(BASE, image=(24, 40))),
}


def ours_of(peer: Peer, spec: ViTSpec) -> ViT:
    state: dict[str, Tensor] = {}
    for name, value in peer.model.state_dict().items():
        if "in_proj_" in name:  # of SigLIP's pooling: query, key and value in one
            room, _, leaf = name.partition("in_proj_")
            state[f"{room}query.{leaf}"] = value[: spec.width]
            state[f"{room}key_value.{leaf}"] = value[spec.width :]
        elif not name.endswith("mask_token"):  # of training alone
            state[name] = value
    return peers.fill(ViT(spec), peers.translate(state, RULES))


@peers.PRECISIONS
@pytest.mark.parametrize("name", [*CASES, *NOT_SQUARE])
def test_rungs_equal_transformers(name: str, dtype: torch.dtype, tolerance: float) -> None:
    build, spec = {**CASES, **NOT_SQUARE}[name]
    peer = build(spec, dtype)
    model, x = ours_of(peer, spec), peers.images(spec, dtype)
    ours = peers.climb_ours(model, x)
    peers.assert_equal_rungs(ours, peers.climb(peer.places, peer.call, x), tolerance)


@peers.PRECISIONS
@pytest.mark.parametrize("size", [(48, 48), (16, 16), (64, 16), (24, 56)])
@pytest.mark.parametrize("name", CASES)
def test_rungs_at_another_resolution_equal_transformers(
    name: str, size: Size, dtype: torch.dtype, tolerance: float
) -> None:
    build, spec = CASES[name]
    peer = build(spec, dtype)
    model, x = ours_of(peer, spec), peers.images(spec, dtype, size)
    ours = peers.climb_ours(model, x)
    if build is dino:
        tolerance = max(tolerance, peers.FLOAT32_RESIZE)
    peers.assert_equal_rungs(ours, peers.climb(peer.places, peer.call, x), tolerance)


@pytest.mark.parametrize("new", [(7, 7), (3, 2), (2, 8), (9, 24)])
@pytest.mark.parametrize("name", ["vit", "dinov2", "dinov2 with registers", "siglip"])
def test_position_resize_equals_transformers(name: str, new: Size) -> None:
    build, spec = CASES[name]
    peer = build(spec, torch.float32)
    prefix = int(spec.pool == "token")
    tokens = torch.zeros(1, prefix + new[0] * new[1], spec.width)
    with torch.no_grad():
        theirs = peer.embeddings.interpolate_pos_encoding(tokens, 8 * new[0], 8 * new[1])[0]
        table = ours_of(peer, spec).get_parameter("positions.0.table")
        ours = resize_positions(table, spec.grid, new, spec.position_resize, prefix)
    peers.assert_near(ours, theirs, 1e-6)
