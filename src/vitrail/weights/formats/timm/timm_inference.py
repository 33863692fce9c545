"""The spec of a timm model: from its tensors, its config.json, and what its architecture has."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from typing import Any

from vitrail.config import InputError
from vitrail.models import HybridSpec, ViTSpec
from vitrail.models.spec import Activation, Size
from vitrail.weights.formats.conventions import known_heads
from vitrail.weights.formats.format import Shapes, count_layers, is_square, square_side
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
_EVA = {"blocks.0.attn.q_bias", "blocks.0.attn.q_proj.weight", "rope.freqs"}
_UNSHOWN = (  # arguments that change what is computed, and no tensor shows
    *("norm_layer", "embed_norm_layer", "block_fn", "attn_layer", "mlp_layer", "gated_attn"),
    "rel_pos_type",
)


def infer_encoder(shapes: Shapes, config: Mapping[str, Any]) -> ViTSpec:
    """Read a ViT's spec from tensors named as timm names them."""
    norms = r"blocks\.0\.branches\.\d+\.norm1\.weight"
    branches = sum(re.fullmatch(norms, key) is not None for key in shapes)
    shapes = {key.replace(".branches.0.", "."): shape for key, shape in shapes.items()}
    _check_places(shapes)
    width, channels, *patch = shapes["patch_embed.proj.weight"]
    block, mlp = "blocks.0", shapes["blocks.0.mlp.fc2.weight"][1]
    depth = min(count_layers(shapes, r"blocks\.(\d+)\."), len(shapes))  # whatever a name claims
    wide = shapes.get(f"{block}.mlp.fc1.weight", (2 * mlp,))[0]  # its absence: fc1_g and fc1_x
    size = shapes.get(f"{block}.attn.q_norm.weight", (0,))[0]
    arguments = {**entry_arguments(architecture_named(config)), **model_arguments(config)}
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
        "activation": "swiglu" if wide == 2 * mlp else _read_activation(config),
        "qk_norm": size > 0,
        "layer_scale": 1e-5 if f"{block}.ls1.gamma" in shapes else 0.0,
        # CLIP's, the ones with a norm before the first block, have an epsilon of their own.
        "norm_eps": 1e-5 if "norm_pre.weight" in shapes else 1e-6,
        "position_resize": RESIZED.get(architecture_named(config), "timm"),
        **_read_blocks(shapes),
        "branches": branches or 1,
        **_read_norms(shapes),
        **_read_biases(shapes),
        **_read_pool(shapes, config, arguments),
        **read_options(arguments, token="cls_token" in shapes),
    }
    stem = infer_stem(shapes)
    factor = (
        1 if stem is None else 8 if "stem" in stem else 4 * 2 ** max(len(stem["stages"]) - 1, 0)
    )
    stride = factor * patch[0], factor * patch[1]
    given |= _read_positions(shapes, stride, image_of(config))
    check_architecture(config, VITS)
    if not architecture_named(config) and (found := _EVA & shapes.keys()):
        raise InputError(
            f"{min(found)!r}: this model may have rotary positions, which no tensor shows: give "
            "its config.json"
        )
    size *= 2 if given.get("attention") == "differential" else 1
    given["heads"] = width // size if size else read_heads(depth, width, mlp, config)
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


def _read_pool(
    shapes: Shapes, config: Mapping[str, Any], arguments: Mapping[str, Any]
) -> dict[str, Any]:
    """Read what the head gets: as the config or the entry says, else what the tensors suggest."""
    token, mapped = "cls_token" in shapes, "attn_pool.latent" in shapes
    said = model_arguments(config).get("global_pool", config.get("global_pool"))
    said = said or arguments.get("global_pool")
    if said is None:
        pooled = mapped or not token or "fc_norm.weight" in shapes
        said = ("map" if mapped else "avg") if pooled else "token"
    pools = {"token": token and not mapped, "avg": not mapped, "map": mapped}
    if not pools.get(said):
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


def read_heads(depth: int, width: int, mlp: int, config: Mapping[str, Any]) -> int:
    """Say how many heads a model has: as its config, its architecture or its size's paper says."""
    heads = config.get("vitrail_heads") or model_arguments(config).get("num_heads")
    if isinstance(heads, int) and heads > 0:
        return heads
    entry = VITS.get(architecture_named(config))
    return entry[1] if entry else known_heads(config, depth, width, mlp)


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


def check_architecture(config: Mapping[str, Any], known: Container[str]) -> None:
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
