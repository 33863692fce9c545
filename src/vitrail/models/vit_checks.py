"""What a ViT's spec refuses: options that contradict each other, or are out of range."""

from __future__ import annotations

from reprlib import repr as shorten
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

from vitrail.config import InputError, suggest

if TYPE_CHECKING:
    from vitrail.models.vit_spec import Size, ViTSpec

MOST_BLOCKS, LARGEST_NUMBER = 10_000, 2**24
"""Far more than any model has; without a limit, a name of one line costs hours or all memory."""

ROTARY_NOISE = ("rotary_shift", "rotary_jitter", "rotary_rescale")
"""Options that disturb rotary coordinates in training."""


def check_vit(spec: ViTSpec) -> None:
    """Refuse a ViT whose options contradict each other, or are out of range."""
    check_choices(spec)
    check_least(spec, 1, "depth", "width", "heads", "mlp", "channels", "patch", "image")
    check_least(spec, 0, "classes", "representation", "registers", "layer_scale", "norm_eps")
    check_least(spec, 0, "pool_heads", "pool_mlp", "rotary_grid", "key_heads", "key_heads_ends")
    check_least(spec, 1, "branches", "position_mlp")
    if spec.depth * spec.branches > MOST_BLOCKS:
        raise InputError(f"depth x branches must be at most {MOST_BLOCKS:_}")
    for rate in ("dropout", "attention_dropout", "stochastic_depth"):
        if not 0 <= getattr(spec, rate) < 1:
            raise InputError(f"{rate} must be in [0, 1), got {getattr(spec, rate)}")
    if spec.width % spec.heads:
        raise InputError(f"width {spec.width} is not a multiple of {spec.heads} heads")
    check_division(spec.image, spec.stride)
    _check_positions(spec)
    _check_tokens(spec)
    _check_blocks(spec)
    if spec.attention == "axial" and spec.prefix:
        raise InputError(
            "axial attention runs over rows and columns, without class or register tokens: "
            "choose pool=gap or pool=map, and registers=0"
        )


def _check_tokens(spec: ViTSpec) -> None:
    if spec.distilled and (spec.pool != "token" or spec.last_norm != "tokens"):
        raise InputError(
            f"distilled requires pool=token and last_norm=tokens, got pool={spec.pool} and "
            f"last_norm={spec.last_norm}"
        )
    if spec.reads_class_token and (spec.unpooled_class_token or spec.pool_prefix):
        raise InputError("unpooled_class_token and pool_prefix require pool=gap, map or probe")
    if spec.pool not in ("map", "probe") and spec.pool_heads:
        raise InputError("pool_heads requires pool=map or pool=probe")
    if spec.pool != "map" and spec.pool_mlp:
        raise InputError("pool_mlp requires pool=map")
    if spec.pool == "token-gap" and spec.last_norm == "pooled":
        raise InputError("pool=token-gap requires last_norm=tokens or none, got pooled")
    if spec.width % (spec.pool_heads or spec.heads):
        raise InputError(f"width {spec.width} is not a multiple of {spec.pool_heads} pool_heads")
    if spec.register_position and not (spec.registers and spec.position == "learned-1d"):
        raise InputError("register_position requires registers and position=learned-1d")
    if spec.register_position and spec.class_tokens and not spec.class_position:
        raise InputError("register_position requires class_position beside a class token")
    if not (spec.representation or (spec.representation_tanh and spec.representation_bias)):
        raise InputError("representation_tanh and representation_bias require representation")
    if not spec.key_bias and not spec.qkv_bias:
        raise InputError("key_bias=false requires qkv_bias=true")


def _check_blocks(spec: ViTSpec) -> None:
    shared = 0 < spec.key_heads != spec.heads
    if shared and (spec.heads % spec.key_heads or spec.attention != "full"):
        raise InputError(
            f"key_heads must divide the {spec.heads} heads of attention=full, got {spec.key_heads}"
        )
    if shared and (not spec.key_bias or spec.rotary == "mixed"):
        raise InputError("key_heads requires key_bias=true and rotary other than mixed")
    if spec.key_heads_ends and not shared:
        raise InputError("key_heads_ends requires key_heads, fewer than heads")
    if spec.attention == "differential" and not spec.key_bias:
        raise InputError("attention=differential requires key_bias=true")
    if spec.attention == "differential" and spec.width // spec.heads % 2:
        raise InputError(
            f"attention=differential needs heads of even size, got {spec.width // spec.heads}"
        )
    if spec.block == "parallel" and spec.norm_place == "post":
        raise InputError("block=parallel requires norm_place=pre")
    if (spec.block == "parallel" or spec.attention == "axial") and spec.branches > 1:
        raise InputError("branches requires block=sequential, and attention other than axial")
    if spec.block == "parallel" and spec.attention == "axial":
        raise InputError("block=parallel requires attention other than axial")
    if spec.layer_scale_at != "both" and (not spec.layer_scale or spec.block == "parallel"):
        raise InputError("layer_scale_at requires layer_scale and block=sequential")


def _check_rotary(spec: ViTSpec) -> None:
    if spec.rotary == "none":
        for field in ("rotary_theta", "rotary_grid", "rotary_offset", *ROTARY_NOISE):
            if getattr(spec, field) != getattr(type(spec), field):
                raise InputError(f"{field} requires rotary positions, such as rotary=axial")
        return
    if spec.attention != "full":
        raise InputError(f"{spec.attention} attention takes absolute positions, not rotary ones")
    if spec.width // spec.heads % 4:
        raise InputError(
            f"rotary positions need heads whose size 4 divides, got {spec.width // spec.heads}"
        )
    if spec.rotary in ("centered", "mixed") and (spec.rotary_grid or spec.rotary_offset):
        raise InputError("rotary_grid and rotary_offset require rotary=axial or axial-xy")
    if spec.rotary_noise and spec.rotary != "centered":
        raise InputError(f"{' and '.join(ROTARY_NOISE)} require rotary=centered")
    check_least(spec, 0, "rotary_shift")
    check_least(spec, 1, "rotary_jitter", "rotary_rescale")


def _check_positions(spec: ViTSpec) -> None:
    parts = {"learned-2d": 2, "sincos-2d": 4, "sincos-2d-mae": 4}.get(spec.position, 1)
    if spec.width % parts:
        raise InputError(
            f"{spec.position} positions: {parts} does not divide the width {spec.width}"
        )
    if spec.position == "sincos-2d" and spec.width < 8:
        raise InputError(f"sincos-2d positions need a width of at least 8, got {spec.width}")
    relative = spec.relative
    if relative and spec.position_at == "input":
        raise InputError(
            "relative positions act inside attention: choose position_at=every-layer (a table "
            "for each layer) or position_at=shared (one table)"
        )
    if relative and spec.attention != "full":
        kind = spec.attention
        raise InputError(f"{kind} attention takes absolute positions, not relative ones")
    if spec.position == "relative-2d" and (spec.registers or spec.distilled):
        raise InputError("relative-2d positions know one token beside the patches, the class's")
    if spec.position != "relative-mlp" and spec.position_mlp != type(spec).position_mlp:
        raise InputError("position_mlp requires position=relative-mlp")
    square = ("learned-1d", "factorized")
    if spec.position_resize == "timm-square" and spec.position not in square:
        raise InputError(f"position_resize=timm-square requires position={' or '.join(square)}")
    _check_rotary(spec)


def check_division(image: Size, stride: Size) -> None:
    """Refuse an image that does not split into whole patches."""
    if image[0] % stride[0] or image[1] % stride[1]:
        near = [max(round(side / step), 1) * step for side, step in zip(image, stride, strict=True)]
        raise InputError(
            f"a {image[0]}x{image[1]} image does not split into {stride[0]}x{stride[1]} patches; "
            f"the nearest size that does is {near[0]}x{near[1]}"
        )


def check_choices(spec: Any) -> None:
    """Refuse a value that its field's type does not list, and numbers that no model has."""
    for field, value in vars(spec).items():
        most = MOST_BLOCKS if field in ("depth", "branches", "stages") else LARGEST_NUMBER
        parts = value if isinstance(value, tuple) else (value,)
        if any(isinstance(part, int | float) and not abs(part) <= most for part in parts):
            raise InputError(f"{field} must be at most {most:_}, got {shorten(value)}")
    for field, kind in get_type_hints(type(spec)).items():
        if get_origin(kind) is Literal and getattr(spec, field) not in get_args(kind):
            value, known = getattr(spec, field), get_args(kind)
            hint = suggest(str(value), known)
            raise InputError(f"unknown {field} {value!r}; there are: {', '.join(known)}{hint}")


def check_least(spec: Any, least: int, *names: str) -> None:
    """Refuse fields below their least value."""
    for name in names:
        value = getattr(spec, name)
        parts = value if isinstance(value, tuple) else (value,)
        if not all(isinstance(part, int | float) and part >= least for part in parts):
            raise InputError(f"{name} must be at least {least}, got {value}")
