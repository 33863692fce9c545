"""torchvision's ViT with random weights: each rung of ours is equal, and so is its resize rule."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.parity import peers
from tests.parity.torchvision_models import BASE, torchvision, torchvision_vit
from vitrail.models import ViT, resize_positions

SPECS = {
    "linear head": BASE,
    "pre-logits": replace(BASE, representation=20),
    "deeper": replace(BASE, depth=4, width=30, heads=3, mlp=50, patch=(5, 5), image=(35, 35)),
}

RULES = [
    (r"^conv_proj\.", "embedding."),
    (r"^encoder\.pos_embedding$", "positions.0.table"),
    (r"^encoder\.ln\.", "norm."),
    (r"^encoder\.layers\.encoder_layer_", "blocks."),
    (r"\.ln_1\.", ".attention.norm."),
    (r"\.ln_2\.", ".mlp.norm."),
    (r"\.self_attention\.in_proj_", ".attention.qkv."),
    (r"\.self_attention\.out_proj\.", ".attention.output."),
    (r"\.mlp\.0\.", ".mlp.hidden."),
    (r"\.mlp\.3\.", ".mlp.output."),
    (r"^heads\.pre_logits\.", "head.hidden."),
    (r"^heads\.head\.", "head.output."),
]


def places(peer: Any) -> dict[str, peers.Cursor]:
    pooled = getattr(peer.heads, "pre_logits", None)
    return peers.places(
        peer.encoder.layers[0], peer.encoder.ln, pooled=pooled, features=peer.heads.head
    )


@peers.PRECISIONS
@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("grid", ["own", "smaller", "larger"])
def test_rungs_equal_torchvision(
    name: str, grid: str, dtype: torch.dtype, tolerance: float
) -> None:
    spec = SPECS[name]
    peer = torchvision_vit(spec, dtype)
    model = peers.fill(ViT(spec), peers.translate(peer.state_dict(), RULES))
    if grid != "own":  # a model of another size takes the first one's weights, positions resized
        state, side = dict(peer.state_dict()), 2 if grid == "smaller" else 9
        spec = replace(spec, image=(side * spec.patch[0],) * 2)
        peer = torchvision_vit(spec, dtype)
        resized = torchvision.interpolate_embeddings(spec.image[0], spec.patch[0], state)
        peer.load_state_dict(resized)
    x = peers.images(spec, dtype)
    ours = peers.climb_ours(model, x)
    peers.assert_equal_rungs(ours, peers.climb(places(peer), peer, x), tolerance)


@pytest.mark.parametrize(("old", "new"), [(4, 7), (4, 3), (2, 14), (7, 2)])
def test_position_resize_equals_torchvision(old: int, new: int) -> None:
    table = torch.randn(1 + old * old, 12)
    state = {"encoder.pos_embedding": table[None]}
    theirs = torchvision.interpolate_embeddings(new * 16, 16, state)["encoder.pos_embedding"][0]
    ours = resize_positions(table, (old, old), (new, new), "torchvision", prefix=1)
    peers.assert_near(ours, theirs, 1e-6)
