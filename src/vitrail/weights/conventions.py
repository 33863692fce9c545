"""What the formats share: published models' heads, shapes that must be there, options refused."""

from __future__ import annotations

from typing import Any

from vitrail.config import InputError
from vitrail.models import Spec, ViTSpec
from vitrail.weights.format import Shapes, count_layers
from vitrail.weights.keymap import Shape

_WIDE_HEADS = {1152: 16, 1280: 16, 1408: 16, 1664: 16, 1792: 16}


def count_heads(width: int) -> int:
    """Give a published ViT's heads by its width: of 64, but 16 of them in So400m, H, g, G, e."""
    if width % 64:
        raise InputError(f"a width of {width} says no number of heads: give the file's config.json")
    return _WIDE_HEADS.get(width, width // 64)


def require(spec: Spec, project: str, **options: Any) -> None:
    """Refuse a spec with other options than a project's models have: a value, or a tuple of them.

    Options that leave a parameter over are refused by the table; these leave none.
    """
    choices = {name: only if isinstance(only, tuple) else (only,) for name, only in options.items()}
    wrong = [
        f"{name}={getattr(spec, name)} (only {' or '.join(map(str, only))})"
        for name, only in choices.items()
        if getattr(spec, name) not in only
    ]
    if wrong:
        raise InputError(f"{project} has no place for {', '.join(wrong)}, of {spec}")


def require_vit(spec: Spec, project: str, **options: Any) -> ViTSpec:
    """Refuse what is no plain ViT with learned positions at its input; `options` may allow more."""
    if type(spec) is not ViTSpec:
        raise InputError(f"{project} has no place for a {spec.family} model, {spec}: only for ViTs")
    usual: dict[str, Any] = {"attention": "full", "position": "learned-1d", "position_at": "input"}
    usual |= {"patch_bias": True, "qkv_bias": True, "class_position": True}
    require(spec, project, **{**usual, **options})
    return spec


def count_depth(shapes: Shapes, pattern: str) -> int:
    """Count layers by their numbers, of which a file can't have more than tensors."""
    depth = count_layers(shapes, pattern)
    if depth > len(shapes):
        raise InputError(f"a layer has number {depth - 1} in a file of {len(shapes)} tensors")
    return depth


def shape_of(shapes: Shapes, key: str, axes: int) -> Shape:
    """Give the shape of a tensor that a spec is inferred from; refuse a file without it."""
    if key not in shapes:
        raise InputError(f"missing {key!r}")
    if len(shapes[key]) != axes or not all(shapes[key]):
        raise InputError(f"{key!r} has shape {shapes[key]}, expected {axes} axes and no empty one")
    return shapes[key]
