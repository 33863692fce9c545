"""timm's names: VisionTransformer (also DeiT and hybrids) and ResNetV2 (BiT).

DINO's and MAE's encoders descend from the same code, so their formats share this one's rows.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping
from typing import Any

from torch import Tensor

from vitrail.config import InputError
from vitrail.models import BiTSpec, HybridSpec, Spec, ViTSpec
from vitrail.models.spec import Activation, Size
from vitrail.weights.formats.conventions import known_heads, require
from vitrail.weights.formats.format import Format, Shapes, count_layers, is_square, square_side
from vitrail.weights.formats.keymap import Part, Row, Table, dense, make_table
from vitrail.weights.formats.timm.timm_architectures import RESNETS, VITS
from vitrail.weights.formats.timm.timm_config import (
    ACTIVATIONS,
    architecture_named,
    architecture_of,
    image_of,
    model_arguments,
    read_classes,
    read_preprocess,
    write_config,
)
from vitrail.weights.formats.timm.timm_resnet import (
    bit_rows,
    infer_bit,
    infer_stem,
    is_bit,
    stem_rows,
)

__all__ = ["TIMM", "architecture_of", "read_classes", "read_preprocess", "write_config"]

_FOREIGN = {  # what marks tensors as DINO's or MAE's, which are formats of their own
    r"register_tokens|mask_token",
    r"blocks\.0\.mlp\.w12\.weight",
    r"(head\.(mlp|last_layer)|dino_head|ibot_head|decoder_\w+)(\..+)?",
}
_NO_PLACE = {  # tensors of timm's options that no model of ours has
    r"fc_norm\..+": "a norm after pooling (fc_norm)",
    r"blocks\.\d+\.attn\.norm\..+": "a norm inside attention (scale_attn_norm)",
    r"blocks\.\d+\.mlp\.norm\..+": "a norm inside the MLP (scale_mlp_norm)",
    r"blocks\.\d+\.mlp\.fc1_[gx]\..+": "an unpacked SwiGLU",
    r"blocks\.\d+\.(attns|ffns|in_proj)\..+": "parallel blocks",
    r"attn_pool\.(q_norm|k_norm)\..+": "a norm inside attention pooling",
    r"pre_logits\..+": "a pre-logits layer, which timm itself has given up",
}
_AXES = {  # of the tensors that a spec is read from
    "patch_embed.proj.weight": 4,
    "pos_embed": 3,
    "reg_token": 3,
    "blocks.0.norm1.bias": 1,
    "blocks.0.mlp.fc1.weight": 2,
    "blocks.0.mlp.fc2.weight": 2,
    "norm.weight": 1,
    "norm.bias": 1,
    "blocks.0.attn.q_norm.weight": 1,
    "head.weight": 2,
}
_OPTIONAL = ("pos_embed", "reg_token", "blocks.0.attn.q_norm.weight", "head.weight")
_OTHERS = {  # why timm's others are refused, by words of their names
    r"rope|eva|dinov3|lingbot|sapiens|_pe_": ": it has rotary positions, which no tensor shows",
    r"relpos": ": it has relative positions of another kind",
}
_UNSHOWN = (  # arguments that change what is computed, and no tensor shows
    *("norm_layer", "embed_norm_layer", "block_fn", "attn_layer", "mlp_layer", "rope_type"),
    *("use_rot_pos_emb", "pool_include_prefix", "final_norm"),
)


def _table(spec: Spec) -> Table:
    if isinstance(spec, BiTSpec):
        require(spec, "timm", heads=0, pool_padding="zeros")
        return make_table(spec, bit_rows(spec), "timm")
    require(spec, "timm", position_at="input", head_bias=True, patch_bias=not spec.pre_norm)
    require(spec, "timm", representation=0, attention="full")
    if spec.position not in ("none", "learned-1d"):
        raise InputError(f"timm has no place for position={spec.position}")
    if spec.distilled:
        require(spec, "timm's distilled ViT", registers=0, class_position=True)
    if spec.registers and spec.pool == "token":
        require(spec, "timm's ViT with registers", class_position=False)
    if spec.pool == "map" and spec.activation == "swiglu":
        raise InputError("timm has no place for activation=swiglu with pool=map")
    return make_table(spec, _rows(spec), "timm")


def _rows(spec: ViTSpec) -> Iterator[Row]:
    if isinstance(spec, HybridSpec):
        yield from stem_rows(spec)
    yield from encoder_rows(spec)
    yield "distillation_token", "dist_token"
    yield "registers", "reg_token"
    yield from dense("pre_norm", "norm_pre")
    yield "pooling.probe", "attn_pool.latent"
    yield from dense("pooling.query", "attn_pool.q")
    yield from dense("pooling.key_value", "attn_pool.kv")
    yield from dense("pooling.output", "attn_pool.proj")
    yield from dense("pooling.mlp.norm", "attn_pool.norm")
    yield from dense("pooling.mlp.hidden", "attn_pool.mlp.fc1")
    yield from dense("pooling.mlp.output", "attn_pool.mlp.fc2")
    yield from dense("head.output", "head")
    yield from dense("distillation_head.output", "head_dist")


def encoder_rows(spec: ViTSpec, hidden: str = "fc1", output: str = "fc2") -> Iterator[Row]:
    """Give the rows of an encoder, which differ between projects in the MLP's names only."""
    positions = spec.positioned + spec.grid[0] * spec.grid[1]
    yield "class_token", "cls_token"
    yield "positions.0.table", Part("pos_embed", (1, positions, spec.width))
    yield from dense("embedding", "patch_embed.proj")
    for block in (f"blocks.{layer}" for layer in range(spec.depth)):
        yield from dense(f"{block}.attention.norm", f"{block}.norm1")
        yield from dense(f"{block}.attention.qkv", f"{block}.attn.qkv")
        yield from dense(f"{block}.attention.query_norm", f"{block}.attn.q_norm")
        yield from dense(f"{block}.attention.key_norm", f"{block}.attn.k_norm")
        yield from dense(f"{block}.attention.output", f"{block}.attn.proj")
        yield f"{block}.after1.scale.factor", f"{block}.ls1.gamma"
        yield from dense(f"{block}.mlp.norm", f"{block}.norm2")
        yield from dense(f"{block}.mlp.hidden", f"{block}.mlp.{hidden}")
        yield from dense(f"{block}.mlp.output", f"{block}.mlp.{output}")
        yield f"{block}.after2.scale.factor", f"{block}.ls2.gamma"
    yield from dense("norm", "norm")


def is_encoder(shapes: Shapes) -> bool:
    """Say whether tensors are an encoder's by timm's names, whoever's it is."""
    return {"patch_embed.proj.weight", "blocks.0.attn.qkv.weight"} <= shapes.keys()


def _recognizes(shapes: Shapes) -> bool:
    foreign = any(re.fullmatch(pattern, key) for pattern in _FOREIGN for key in shapes)
    return is_bit(shapes) or (is_encoder(shapes) and not foreign)


def _infer(shapes: Shapes, config: Mapping[str, Any]) -> Spec:
    if is_bit(shapes):
        spec = infer_bit(shapes, image_of(config))
        _check_architecture(config, RESNETS)
        return spec
    return infer_encoder(shapes, config)


def infer_encoder(shapes: Shapes, config: Mapping[str, Any]) -> ViTSpec:
    """Read a ViT's spec from tensors named as timm names them."""
    _check_places(shapes, config)
    width, channels, *patch = shapes["patch_embed.proj.weight"]
    block, mlp = "blocks.0", shapes["blocks.0.mlp.fc2.weight"][1]
    depth = min(count_layers(shapes, r"blocks\.(\d+)\."), len(shapes))  # whatever a name claims
    gated = shapes[f"{block}.mlp.fc1.weight"][0] == 2 * mlp
    size = shapes.get(f"{block}.attn.q_norm.weight", (0,))[0]
    pool = "token" if "cls_token" in shapes else "map" if "attn_pool.latent" in shapes else "gap"
    given: dict[str, Any] = {
        "depth": depth,
        "width": width,
        "heads": width // size if size else read_heads(depth, width, mlp, config),
        "mlp": mlp,
        "patch": (patch[0], patch[1]),
        "channels": channels,
        "classes": shapes.get("head.weight", (0,))[0],
        "pool": pool,
        "distilled": "dist_token" in shapes,
        "registers": shapes.get("reg_token", (1, 0))[1],
        "position": "learned-1d" if "pos_embed" in shapes else "none",
        "patch_bias": "patch_embed.proj.bias" in shapes,
        "pre_norm": "norm_pre.weight" in shapes,
        "activation": "swiglu" if gated else _read_activation(config),
        "qkv_bias": f"{block}.attn.qkv.bias" in shapes,
        "qk_norm": size > 0,
        "layer_scale": 1e-5 if f"{block}.ls1.gamma" in shapes else 0.0,
        # CLIP's, the ones with a norm before the first block, have an epsilon of their own.
        "norm_eps": 1e-5 if "norm_pre.weight" in shapes else 1e-6,
        "position_resize": "timm",
    }
    stem = infer_stem(shapes)
    factor = 1 if stem is None else 4 * 2 ** max(len(stem["stages"]) - 1, 0)
    stride = factor * patch[0], factor * patch[1]
    given |= _read_positions(shapes, stride, image_of(config))
    _check_architecture(config, VITS)
    return ViTSpec(**given) if stem is None else HybridSpec(**{**given, **stem})


def _check_places(shapes: Shapes, config: Mapping[str, Any]) -> None:
    """Refuse what no model of ours has, and tensors without which nothing can be read."""
    for pattern, what in _NO_PLACE.items():
        if found := next((key for key in shapes if re.fullmatch(pattern, key)), None):
            raise InputError(f"{found!r}: this model has {what}; vitrail's models have none")
    missing = [key for key in _AXES if key not in shapes and key not in _OPTIONAL]
    if missing:
        raise InputError(
            f"no {', '.join(map(repr, missing))}: vitrail's models have a LayerNorm before each "
            "branch and one at the end, and an MLP of two layers"
        )
    for key, axes in _AXES.items():
        shape = tuple(shapes.get(key, (1,) * axes))
        if len(shape) != axes or 0 in shape:
            raise InputError(f"{key!r} has shape {shape}, expected {axes} axes, none of them empty")
    pool = model_arguments(config).get("global_pool", config.get("global_pool"))
    pools = ("token",) if "cls_token" in shapes else ("avg", "map")
    if pool is not None and pool not in pools:
        beside = "beside" if "cls_token" in shapes else "without"
        raise InputError(
            f"config.json: global_pool={pool!r} {beside} a class token; vitrail has {pools}"
        )


def read_heads(depth: int, width: int, mlp: int, config: Mapping[str, Any]) -> int:
    """Say how many heads a model has: as its config, its architecture or its size's paper says."""
    heads = config.get("vitrail_heads") or model_arguments(config).get("num_heads")
    if isinstance(heads, int) and heads > 0:
        return heads
    entry = VITS.get(architecture_named(config))
    return entry[1] if entry else known_heads(depth, width, mlp)


def _read_activation(config: Mapping[str, Any]) -> Activation:
    """Read the non-linearity, which tensors do not show; timm's ViTs have exact GELU."""
    entry = VITS.get(architecture_named(config))
    said = model_arguments(config).get("act_layer")
    if said is None:
        return entry[0] if entry else "gelu"
    if said not in list(ACTIVATIONS):
        known = ", ".join(ACTIVATIONS)
        raise InputError(f"config.json: unknown act_layer {said!r}; vitrail has {known}")
    return ACTIVATIONS[said]


def _check_architecture(config: Mapping[str, Any], known: Container[str]) -> None:
    """Refuse an architecture that may compute something else with the very same tensors."""
    name = architecture_named(config)
    if name and name not in known:
        why = next((why for words, why in _OTHERS.items() if re.search(words, name)), "")
        raise InputError(
            f"config.json: timm's {name[:80]!r} is not among the architectures that vitrail "
            f"reproduces{why}"
        )
    if found := [key for key in _UNSHOWN if model_arguments(config).get(key)]:
        raise InputError(f"config.json: vitrail has no {found[0]} as in model_args")


def _read_positions(shapes: Shapes, stride: Size, image: Size | None) -> dict[str, Any]:
    """Read the grid and which tokens have a position; a grid that no config tells is square."""
    grid = None if image is None else (image[0] // stride[0], image[1] // stride[1])
    tokens = ("cls_token" in shapes) + ("dist_token" in shapes)
    if "pos_embed" not in shapes:
        if grid is None:
            raise InputError("no 'pos_embed', no config.json: name the model, with its size")
        return {"image": image}
    rows = shapes["pos_embed"][1]
    registers = shapes.get("reg_token", (1, 0))[1]
    # How many rows may stand before the patches': one a token, none, and one a register as well.
    extras = (tokens, 0, tokens + registers)
    fits = [extra for extra in extras if grid and rows - extra == grid[0] * grid[1]]
    fits += [extra for extra in extras if rows > extra and is_square(rows - extra)]
    extra = fits[0] if fits else tokens
    if extra > tokens:
        raise InputError("'pos_embed' has rows for the registers; vitrail's have no position")
    if grid is None or rows - extra != grid[0] * grid[1]:
        grid = (square_side(max(rows - extra, 0)),) * 2
    return {
        "image": (grid[0] * stride[0], grid[1] * stride[1]),
        "class_position": extra == tokens,
    }


def _left_out(key: str) -> str | None:
    return None  # timm saves nothing but what it uses


def _normalize(theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename what DeiT's own code names otherwise."""
    return {re.sub(r"\.gamma_([12])$", r".ls\1.gamma", key): theirs[key] for key in theirs}


TIMM = Format("timm", _recognizes, _infer, _table, _left_out, _normalize)
