"""The spec of a timm model: from its tensors, its config.json, and what its architecture has."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from typing import Any

from vitrail.config import InputError
from vitrail.models import HybridSpec, ViTSpec
from vitrail.models.spec import Activation, Size
from vitrail.weights.formats.conventions import find_heads
from vitrail.weights.formats.format import FileFacts, Shapes, count_layers, is_square, square_side
from vitrail.weights.formats.keymap import cut_name
from vitrail.weights.formats.timm.timm_architectures import RESIZED, VITS
from vitrail.weights.formats.timm.timm_config import (
    ACTIVATIONS,
    architecture_named,
    image_of,
    model_arguments,
)
from vitrail.weights.formats.timm.timm_eva import entry_arguments, read_options
from vitrail.weights.formats.timm.timm_relative import read_offsets
from vitrail.weights.formats.timm.timm_resnet import infer_stem

_NO_PLACE = {  # tensors of timm's options that no model of ours has
    r"attn_pool\.(q_norm|k_norm)\..+": "a norm inside attention pooling",
    r"pre_logits\..+": "a pre-logits layer, which timm itself has given up",
}
_AXES = {  # of the tensors that a spec is read from
    "patch_embed.proj.weight": 4,
    "pos_embed": 3,
    "reg_token": 3,
    "blocks.0.norm1.weight": 1,
    "blocks.0.mlp.fc2.weight": 2,
    "norm.weight": 1,
    "fc_norm.weight": 1,
    "blocks.0.attn.q_norm.weight": 1,
    "head.weight": 2,
}
_OPTIONAL = (
    *("pos_embed", "reg_token", "norm.weight", "fc_norm.weight", "blocks.0.attn.q_norm.weight"),
    "head.weight",
)
_OTHERS = {  # why timm's others are refused, by words of their names
    r"_resnet\d+d": ": its stem is a ResNet-D with BatchNorm",
}
_USUAL_EPS = 1e-6
_EVA = {"blocks.0.attn.q_bias", "blocks.0.attn.q_proj.weight", "rope.freqs"}
_READ = """
    img_size patch_size in_chans num_classes global_pool embed_dim depth num_heads mlp_ratio
    qkv_bias qk_norm scale_attn_norm scale_mlp_norm proj_bias init_values class_token pos_embed
    no_embed_class reg_tokens pre_norm final_norm fc_norm pool_include_prefix act_layer
    num_kv_heads qkv_fused swiglu_mlp swiglu_align_to scale_mlp scale_attn_inner attn_type
    attn_only_layer_scale num_reg_tokens use_abs_pos_emb use_rot_pos_emb use_post_norm
    use_pre_transformer_norm use_post_transformer_norm use_fc_norm ref_feat_shape
    attn_pool_num_heads attn_pool_mlp_ratio rope_type rope_temperature rope_grid_indexing
    rope_grid_offset rope_rotate_half use_rel_pos_bias use_shared_rel_pos_bias rel_pos_dim
    shared_rel_pos layers channels width_factor stem_chs
"""
"""Arguments of timm's classes that tensors show, or that are read below."""
_TRAINING = """
    drop_rate pos_drop_rate patch_drop_rate proj_drop_rate attn_drop_rate drop_path_rate
    rope_shift_coords rope_jitter_coords rope_rescale_coords weight_init fix_init
    head_init_scale zero_init_last dynamic_img_size dynamic_img_pad device dtype
"""
"""Arguments that change nothing of a trained model's answers."""
_MARKS = {"norm_pre.weight", "patch_embed.norm.weight", "blocks.0.attn.norm.weight"}
"""Tensors of architectures whose epsilon is not timm's usual one."""


def infer_encoder(
    shapes: Shapes,
    facts: FileFacts,
    published: Mapping[tuple[int, int, int], int] | None = None,
) -> ViTSpec:
    """Read a ViT's spec from tensors named as timm names them.

    `published` has the heads of a project that has no configs, and timm's usual numbers.
    """
    config, named = facts.config, architecture_named(facts.config)
    norms = r"blocks\.0\.branches\.\d+\.norm1\.weight"
    branches = sum(re.fullmatch(norms, key) is not None for key in shapes)
    shapes = {key.replace(".branches.0.", "."): shape for key, shape in shapes.items()}
    _check_places(shapes)
    width, channels, *patch = shapes["patch_embed.proj.weight"]
    block, mlp = "blocks.0", shapes["blocks.0.mlp.fc2.weight"][1]
    depth = min(count_layers(shapes, r"blocks\.(\d+)\."), len(shapes))  # whatever a name claims
    wide = shapes.get(f"{block}.mlp.fc1.weight", (2 * mlp,))[0]  # its absence: fc1_g and fc1_x
    size = shapes.get(f"{block}.attn.q_norm.weight", (0,))[0]
    arguments = {**entry_arguments(named), **model_arguments(config)}
    given: dict[str, Any] = {
        "depth": depth,
        "width": width,
        "mlp": mlp,
        "patch": (patch[0], patch[1]),
        "channels": channels,
        "classes": shapes.get("head.weight", (0,))[0],
        "distilled": "dist_token" in shapes,
        "registers": shapes.get("reg_token", (1, 0))[1],
        "position": "learned-1d" if "pos_embed" in shapes else "none",
        "patch_bias": "patch_embed.proj.bias" in shapes,
        "patch_norm": "patch_embed.norm.weight" in shapes,
        "pre_norm": "norm_pre.weight" in shapes,
        "activation": _read_activation(facts, gated=wide == 2 * mlp),
        "qk_norm": size > 0,
        "layer_scale": 1e-5 if f"{block}.ls1.gamma" in shapes else 0.0,
        "norm_eps": _USUAL_EPS if named else facts.told("norm_eps", _USUAL_EPS),
        "position_resize": RESIZED.get(named, "timm"),
        **_read_blocks(shapes),
        "branches": branches or 1,
        **_read_norms(shapes),
        **_read_biases(shapes),
        **_read_pool(shapes, facts, arguments),
        **read_options(arguments, token="cls_token" in shapes),
    }
    stem = infer_stem(shapes)
    factor = (
        1 if stem is None else 8 if "stem" in stem else 4 * 2 ** max(len(stem["stages"]) - 1, 0)
    )
    stride = factor * patch[0], factor * patch[1]
    given |= _read_positions(shapes, stride, facts)
    check_architecture(facts, VITS)
    if published is None:
        _check_named(shapes, facts)
    size *= 2 if given.get("attention") == "differential" else 1
    shape = depth, width, mlp
    given["heads"] = width // size if size else _read_heads(facts, shape, published or {})
    given |= _read_key_heads(shapes, depth, given["heads"])
    return ViTSpec(**given) if stem is None else HybridSpec(**{**given, **stem})


def _read_blocks(shapes: Shapes) -> dict[str, Any]:
    """Read the kinds of blocks and of attention."""
    block, options = "blocks.0", {}
    if f"{block}.norm2.weight" not in shapes:
        options["block"] = "parallel"
    elif f"{block}.ls1.gamma" in shapes and f"{block}.ls2.gamma" not in shapes:
        options["layer_scale_at"] = "attention"
    if f"{block}.attn.lambda_q1" in shapes:
        options["attention"] = "differential"
    return options


def _read_key_heads(shapes: Shapes, depth: int, heads: int) -> dict[str, int]:
    """Read how many heads of keys there are, which may be fewer in the middle blocks."""
    width = shapes["patch_embed.proj.weight"][0]
    rows = [shapes.get(f"blocks.{n}.attn.k_proj.weight", (width,))[0] for n in range(depth)]
    ends = next((n for n, count in enumerate(rows) if count != width), 0)
    shared = rows[ends] * heads // width
    given = {"key_heads": shared, "key_heads_ends": ends} if shared != heads else {}
    wanted = [width if n < ends or n >= depth - ends else rows[ends] for n in range(depth)]
    if rows != wanted:
        raise InputError("k_proj: expected as many heads of keys in all blocks between the ends")
    return given


def _read_norms(shapes: Shapes) -> dict[str, Any]:
    """Read which norms there are, and of which kind."""
    block = "blocks.0"
    if f"{block}.attn.norm.weight" in shapes:
        sub_norm = "both"
    else:
        sub_norm = "mlp" if f"{block}.mlp.norm.weight" in shapes else "none"
    last = {"tokens": "norm.weight", "pooled": "fc_norm.weight"}
    found = [place for place, key in last.items() if key in shapes]
    if len(found) > 1:
        raise InputError("'norm.weight' and 'fc_norm.weight': vitrail's models have one of them")
    return {
        "norm": "layer" if f"{block}.norm1.bias" in shapes else "rms",
        "sub_norm": sub_norm,
        "last_norm": found[0] if found else "none",
    }


def _read_biases(shapes: Shapes) -> dict[str, bool]:
    """Read whether queries and values have biases, and keys too."""
    attention = "blocks.0.attn"
    split = f"{attention}.q_bias" in shapes or f"{attention}.q_proj.bias" in shapes
    return {
        "dense_bias": "blocks.0.mlp.fc2.bias" in shapes,
        "qkv_bias": split or f"{attention}.qkv.bias" in shapes,
        "key_bias": not split or f"{attention}.k_proj.bias" in shapes,
    }


def _read_pool(shapes: Shapes, facts: FileFacts, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Read what the head gets: as the config, the entry or the name says, else as timm's classes.

    Their default is the class token, and with a norm of what was pooled, the mean.
    """
    config = facts.config
    token, mapped = "cls_token" in shapes, "attn_pool.latent" in shapes
    said = model_arguments(config).get("global_pool", config.get("global_pool"))
    said = said or arguments.get("global_pool")
    if said is None:
        pooled = mapped or not token or "fc_norm.weight" in shapes
        said = ("map" if mapped else "avg") if pooled else "token"
        if not architecture_named(config):
            usual = {"avg": "gap"}.get(said, said)
            told = facts.told("pool", usual)
            said = {"gap": "avg"}.get(told, told)
    pools = {"token": token and not mapped, "avg": not mapped, "map": mapped}
    if not pools.get(said := str(said)):
        there = [pool for pool, possible in pools.items() if possible]
        raise InputError(
            f"config.json: global_pool={said!r} does not go with the tensors; expected "
            f"{' or '.join(map(repr, there))}"
        )
    pool = {"token": "token", "avg": "gap", "map": "map"}[said]
    options: dict[str, Any] = {"pool": pool}
    if token and pool != "token":
        options["unpooled_class_token"] = True
    if mapped:
        hidden = shapes.get("attn_pool.mlp.fc1.weight", (0,))[0]
        if hidden != shapes["blocks.0.mlp.fc2.weight"][1]:
            options["pool_mlp"] = hidden
    return options


def _check_places(shapes: Shapes) -> None:
    """Refuse what no model of ours has, and tensors without which nothing can be read."""
    for pattern, what in _NO_PLACE.items():
        if found := next((key for key in shapes if re.fullmatch(pattern, key)), None):
            raise InputError(
                f"{cut_name(found)}: this model has {what}; vitrail's models have none"
            )
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


def _check_named(shapes: Shapes, facts: FileFacts) -> None:
    """Refuse a file of which nothing says what its tensors don't show."""
    if architecture_named(facts.config):
        return
    answer = "add its config.json, or name timm's architecture, as in --model vit_base_patch16_224"
    if facts.named is None and "num_heads" not in model_arguments(facts.config):
        raise InputError(
            "the file does not say which of timm's architectures it is, which decides its heads, "
            f"epsilon and activation: {answer}"
        )
    if not _MARKS.isdisjoint(shapes) and "norm_eps" not in facts.said:
        raise InputError(f"the file does not say its epsilon: {answer}; or add norm_eps= to a name")
    found = min(_EVA & shapes.keys(), default=None)
    shown = ("pos_embed", "rel_pos", "relative_position")
    if not any(part in key for key in shapes for part in shown) and "position" not in facts.said:
        found = found or "no positions"
    if found:
        raise InputError(
            f"{found}: this model may have rotary positions, which no tensor shows: {answer}"
        )


def _read_heads(
    facts: FileFacts,
    shape: tuple[int, int, int],
    published: Mapping[tuple[int, int, int], int],
) -> int:
    """Return the heads: as the config, the architecture or the model's name says."""
    heads = model_arguments(facts.config).get("num_heads")
    if isinstance(heads, int) and heads > 0:
        return heads
    entry = VITS.get(architecture_named(facts.config))
    return entry[1] if entry else find_heads(facts, shape, published)


def _read_activation(facts: FileFacts, *, gated: bool) -> Activation:
    """Read the non-linearity, which tensors do not show; timm's usual one is the exact GELU."""
    name = architecture_named(facts.config)
    usual: Activation = VITS[name][0] if name in VITS else "gelu"
    said: Any = model_arguments(facts.config).get("act_layer")
    if gated:
        if said not in (None, "silu", "swish"):
            raise InputError(f"config.json: vitrail has no gated MLP with act_layer {said!r}")
        return "swiglu"
    if said is None:
        if usual == "swiglu":
            raise InputError(
                f"config.json: timm's {name!r} has a gated MLP, but the tensors are of a plain one"
            )
        return usual if name else facts.told("activation", usual)
    if said not in list(ACTIVATIONS):
        known = ", ".join(ACTIVATIONS)
        raise InputError(f"config.json: unknown act_layer {said!r}; vitrail has {known}")
    return ACTIVATIONS[said]


def check_architecture(facts: FileFacts, known: Container[str]) -> None:
    """Refuse an architecture that may compute something else with the very same tensors."""
    name = architecture_named(facts.config)
    if name and name not in known:
        why = next((why for words, why in _OTHERS.items() if re.search(words, name)), "")
        raise InputError(
            f"config.json: timm's {name[:80]!r} is not among the architectures that vitrail "
            f"reproduces{why}"
        )
    arguments = model_arguments(facts.config)
    harmless = {*_READ.split(), *_TRAINING.split()}
    if found := [key for key in arguments if arguments[key] and key not in harmless]:
        raise InputError(f"config.json: vitrail has no {found[0]} as in model_args")


def _read_positions(shapes: Shapes, stride: Size, facts: FileFacts) -> dict[str, Any]:
    """Read the grid and which tokens have a position; a grid that nothing tells is square."""
    image = image_of(facts)
    grid = None if image is None else (image[0] // stride[0], image[1] // stride[1])
    tokens = ("cls_token" in shapes) + ("dist_token" in shapes)
    if "pos_embed_y" in shapes:
        rows, columns = (shapes[f"pos_embed_{axis}"][1] for axis in "yx")
        image = rows * stride[0], columns * stride[1]
        return {"image": image, "position": "factorized", "class_position": False}
    if "pos_embed" not in shapes:
        if grid is None:
            raise InputError("no 'pos_embed', no config.json: name the model, with its size")
        if "blocks.0.attn.relative_position_bias_table" in shapes:
            return {"image": image, "position": "relative-2d", "position_at": "every-layer"}
        return {"image": image, **read_offsets(shapes)}
    rows = shapes["pos_embed"][1]
    registers = shapes.get("reg_token", (1, 0))[1]
    # How many rows may come before the patches': one per token, none, or one per register too.
    extras = (tokens, 0, tokens + registers)
    fits = [extra for extra in extras if grid and rows - extra == grid[0] * grid[1]]
    fits += [extra for extra in extras if rows > extra and is_square(rows - extra)]
    extra = fits[0] if fits else tokens
    if grid is None or rows - extra != grid[0] * grid[1]:
        grid = (square_side(max(rows - extra, 0)),) * 2
    return {
        "image": (grid[0] * stride[0], grid[1] * stride[1]),
        "class_position": extra >= tokens,
        "register_position": extra > tokens,
    }
