"""timm's VisionTransformerRelPos: relative positions by an MLP, of each layer or shared."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from vitrail.models import ViTSpec
from vitrail.weights.formats.conventions import require
from vitrail.weights.formats.format import Shapes
from vitrail.weights.formats.keymap import Row, linear_rows
from vitrail.weights.formats.timm.timm_eva import shape_arguments

_PLACES = {"every-layer": "blocks.{}.attn.rel_pos", "shared": "shared_rel_pos"}


def offset_rows(spec: ViTSpec) -> Iterator[Row]:
    """Give the rows of the MLPs, which stand in timm's attention or beside the blocks."""
    for layer in range(spec.depth):
        theirs = _PLACES.get(spec.position_at, "").format(layer)
        yield from linear_rows(f"positions.{layer}.hidden", f"{theirs}.mlp.fc1")
        yield from linear_rows(f"positions.{layer}.output", f"{theirs}.mlp.fc2")


def read_offsets(shapes: Shapes) -> dict[str, Any]:
    """Read the kind and place of such positions; nothing where there are none."""
    for place, name in _PLACES.items():
        if hidden := shapes.get(f"{name.format(0)}.mlp.fc1.weight"):
            given = {"position": "relative-mlp", "position_at": place}
            return {**given, "position_mlp": hidden[0]}
    return {}


def check_relative(spec: ViTSpec) -> None:
    """Refuse what timm's class does not have."""
    require(
        spec,
        "timm's ViT with relative positions",
        position_at=("every-layer", "shared"),
        attention="full",
        block="sequential",
        pool=("token", "gap"),
        activation="gelu",
        norm="layer",
        norm_eps=1e-6,
        last_norm=("tokens", "pooled"),
        layer_scale_at="both",
        sub_norm="none",
        branches=1,
    )


def write_relative_arguments(spec: ViTSpec) -> tuple[str, dict[str, Any]]:
    """Return an entry of timm's, and all arguments that make it a model of this spec."""
    post = spec.norm_place == "post"
    return f"vit_relpos_base_patch16_{'rpn_' if post else ''}224", {
        **shape_arguments(spec),
        "mlp_ratio": (spec.mlp + 0.5) / spec.width,
        "qkv_bias": spec.qkv_bias,
        "qk_norm": spec.qk_norm,
        "init_values": spec.layer_scale or None,
        "class_token": spec.class_tokens > 0,
        "fc_norm": spec.last_norm == "pooled",
        "rel_pos_dim": spec.position_mlp,
        "shared_rel_pos": spec.position_at == "shared",
        "global_pool": "avg" if spec.pool == "gap" else spec.pool,
    }
