"""Tiny models of transformers."""

from dataclasses import replace
from typing import Any

from tests.parity import peers
from vitrail.models import ViTSpec

BASE = replace(peers.TINY, norm_eps=1e-12, position_resize="huggingface")
RULES = [
    (r"^(vit|vision_model)\.", ""),
    (r"^embeddings\.cls_token$", "class_token"),
    (r"^embeddings\.register_tokens$", "registers"),
    (r"^embeddings\.position_embedding(s|\.weight)$", "positions.0.table"),
    (r"^embeddings\.patch_embeddings\.projection\.", "embedding."),
    (r"^embeddings\.patch_embedding\.", "embedding."),
    (r"^(encoder\.)?layers?\.(\d+)\.", r"blocks.\2."),
    (r"\.(layernorm_before|layer_norm1|norm1)\.", ".attention.norm."),
    (r"\.(layernorm_after|layer_norm2|norm2)\.", ".mlp.norm."),
    (r"\.layer_scale([12])\.lambda1$", r".after\1.scale.factor"),
    (r"\.self_attn\.", ".attention."),
    (r"\.q_proj\.", ".qkv#0."),
    (r"\.k_proj\.", ".qkv#1."),
    (r"\.v_proj\.", ".qkv#2."),
    (r"\.(o|out)_proj\.", ".output."),
    (r"\.mlp\.fc1\.", ".mlp.hidden."),
    (r"\.mlp\.gate_proj\.", ".mlp.hidden#0."),
    (r"\.mlp\.up_proj\.", ".mlp.hidden#1."),
    (r"\.mlp\.(fc2|down_proj)\.", ".mlp.output."),
    (r"^(post_)?layernorm\.", "norm."),
    (r"^head\.attention\.", "pooling."),
    (r"^head\.layernorm\.", "pooling.mlp.norm."),
    (r"^head\.", "pooling."),
    (r"^pooler\.dense\.", "head.hidden."),
    (r"^classifier\.", "head.output."),
]


def shape(spec: ViTSpec) -> dict[str, Any]:
    """Name what all configurations have; the rest stays at its default."""
    return {
        "hidden_size": spec.width,
        "num_hidden_layers": spec.depth,
        "num_attention_heads": spec.heads,
        "num_channels": spec.channels,
        "image_size": spec.image if spec.image[0] != spec.image[1] else spec.image[0],
        "patch_size": spec.patch[0],
    }
