"""How each project's files name a ViT, written down for `reference` without the formats' tables."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class ReferenceNames:
    """The parts of a ViT, several apart by spaces, `{}` being a block's number; empty for none."""

    patch: str
    positions: str
    block: str
    norms: str
    qkv: str
    """Of three layers, of query and key-value, or of all in one."""
    out: str
    mlp: str
    last: str
    tokens: str = ""
    heads: str = ""
    """The classifier, and DeiT's second one."""
    registers: str = ""
    scales: str = ". ."
    pre: str = ""
    hidden: str = ""
    pool: str = ""
    """Attention pooling's probe, output, norm and MLP."""
    pool_qkv: str = ""


_TIMM = ReferenceNames(
    patch="patch_embed.proj", tokens="cls_token dist_token", positions="pos_embed",
    block="blocks.{}.", norms="norm1 norm2", qkv="attn.qkv", out="attn.proj",
    mlp="mlp.fc1 mlp.fc2", last="norm", heads="head head_dist", registers="reg_token",
    scales="ls1.gamma ls2.gamma", pre="norm_pre",
    pool="attn_pool.latent attn_pool.proj attn_pool.norm attn_pool.mlp.fc1 attn_pool.mlp.fc2",
    pool_qkv="attn_pool.q attn_pool.kv",
)  # fmt: skip
_DINO = replace(_TIMM, registers="register_tokens", heads="")
_TORCHVISION = ReferenceNames(
    patch="conv_proj", tokens="class_token", positions="encoder.pos_embedding",
    block="encoder.layers.encoder_layer_{}.", norms="ln_1 ln_2", qkv="self_attention.in_proj",
    out="self_attention.out_proj", mlp="mlp.0 mlp.3", last="encoder.ln", heads="heads.head",
    hidden="heads.pre_logits",
)  # fmt: skip
_CLIP = ReferenceNames(
    patch="visual.conv1", tokens="visual.class_embedding", positions="visual.positional_embedding",
    block="visual.transformer.resblocks.{}.", norms="ln_1 ln_2", qkv="attn.in_proj",
    out="attn.out_proj", mlp="mlp.c_fc mlp.c_proj", last="visual.ln_post", heads="visual.proj",
    scales="ls_1.gamma ls_2.gamma", pre="visual.ln_pre",
)  # fmt: skip
_HF_VIT = ReferenceNames(
    patch="embeddings.patch_embeddings.projection", positions="embeddings.position_embeddings",
    tokens="embeddings.cls_token embeddings.distillation_token", block="encoder.layer.{}.",
    norms="layernorm_before layernorm_after",
    qkv="attention.attention.query attention.attention.key attention.attention.value",
    out="attention.output.dense", mlp="intermediate.dense output.dense", last="layernorm",
    heads="classifier", hidden="pooler.dense",
)  # fmt: skip
_HF_CLIP = ReferenceNames(
    patch="embeddings.patch_embedding", positions="embeddings.position_embedding.weight",
    tokens="embeddings.class_embedding", block="encoder.layers.{}.",
    norms="layer_norm1 layer_norm2", qkv="self_attn.q_proj self_attn.k_proj self_attn.v_proj",
    out="self_attn.out_proj", mlp="mlp.fc1 mlp.fc2", last="post_layernorm",
    heads="visual_projection", pre="pre_layrnorm",
)  # fmt: skip
_ATTENTION = "{0}/query {0}/key {0}/value"
_MAP = "MAPHead_0/MultiHeadDotProductAttention_0"
_GOOGLE = ReferenceNames(
    patch="embedding", positions="Transformer/posembed_input/pos_embedding", tokens="cls",
    block="Transformer/encoderblock_{}/", norms="LayerNorm_0 LayerNorm_2",
    qkv=_ATTENTION.format("MultiHeadDotProductAttention_1"),
    out="MultiHeadDotProductAttention_1/out", mlp="MlpBlock_3/Dense_0 MlpBlock_3/Dense_1",
    last="Transformer/encoder_norm", heads="head", hidden="pre_logits",
)  # fmt: skip

PROJECTS = {
    "timm": _TIMM,
    "DINO": _DINO,
    "MAE": _DINO,
    "torchvision": _TORCHVISION,
    "CLIP": _CLIP,
    "google": _GOOGLE,
    "bigvision": replace(
        _GOOGLE, positions="pos_embedding", norms="LayerNorm_0 LayerNorm_1",
        qkv=_ATTENTION.format("MultiHeadDotProductAttention_0"),
        out="MultiHeadDotProductAttention_0/out", mlp="MlpBlock_0/Dense_0 MlpBlock_0/Dense_1",
        pool=f"MAPHead_0/probe {_MAP}/out MAPHead_0/LayerNorm_0 MAPHead_0/MlpBlock_0/Dense_0 "
        "MAPHead_0/MlpBlock_0/Dense_1",
        pool_qkv=_ATTENTION.format(_MAP),
    ),
    "transformers ViT": _HF_VIT,
    "transformers DeiT": replace(_HF_VIT, heads="cls_classifier distillation_classifier"),
    "transformers I-JEPA": replace(_HF_VIT, tokens="", hidden=""),
    "transformers DINOv2": replace(
        _HF_VIT, norms="norm1 norm2", mlp="mlp.fc1 mlp.fc2",
        registers="embeddings.register_tokens", scales="layer_scale1.lambda1 layer_scale2.lambda1",
    ),
    "transformers CLIP": _HF_CLIP,
    "transformers SigLIP": replace(
        _HF_CLIP, tokens="", heads="classifier", pre="", pool_qkv="head.attention.in_proj",
        pool="head.probe head.attention.out_proj head.layernorm head.mlp.fc1 head.mlp.fc2",
    ),
}  # fmt: skip
"""By the names of formats."""
GATED = {
    "DINO": "mlp.w12 mlp.w3",
    "transformers DINOv2": "mlp.weights_in mlp.weights_out",
}
"""Names of a gated MLP, where they are others than those of a plain one."""
ENDINGS = (".weight", "/kernel", "/scale", "_weight", "")
"""Of the names of weights: torch's, Flax's dense and norm, torch's packed attention, bare ones."""
UNDERSTOOD = {
    *("depth", "width", "heads", "mlp", "patch", "image", "channels", "classes", "pool"),
    *("representation", "distilled", "registers", "class_position", "patch_bias", "pre_norm"),
    *("activation", "qkv_bias", "head_bias", "qk_norm", "layer_scale", "norm_eps"),
    *("position_resize", "dropout", "attention_dropout", "stochastic_depth"),
}
"""Options of a spec that the pass obeys, or that do nothing in it."""
