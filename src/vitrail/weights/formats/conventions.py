"""What the formats share: published models' heads, required shapes, options that are refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vitrail.config import InputError
from vitrail.models import Spec, ViTSpec
from vitrail.models.names import SIZES
from vitrail.models.spec import Size
from vitrail.weights.formats.format import FileFacts, Shapes, count_layers, square_side
from vitrail.weights.formats.keymap import Shape

_USUAL_SIDE = 224
UNGATED = ("gelu", "gelu-tanh", "quick-gelu")
"""Activations of an MLP of two layers, without a gate."""


def heads_of(sizes: str) -> dict[tuple[int, int, int], int]:
    """Return the heads of sizes ("B L H") by depth, width and MLP size."""
    shapes = (SIZES[size] for size in sizes.split())
    return {(s["depth"], s["width"], s["mlp"]): s["heads"] for s in shapes}


def find_heads(
    facts: FileFacts, shape: tuple[int, int, int], published: Mapping[tuple[int, int, int], int]
) -> int:
    """Return the heads that a model's name says, else those of the project's own models.

    `shape` is depth, width and MLP size. A shape that the project has not published is refused.
    """
    if "heads" in facts.said and isinstance(facts.named, ViTSpec):
        return facts.named.heads
    text = "depth={},width={},mlp={}".format(*shape)
    if shape not in published:
        raise InputError(
            f"the file does not say how many heads a model of {text} has: add its config.json, or "
            f"name the model, as in --model ViT/16,{text},heads=16"
        )
    facts.notes.append(
        f"the file does not say the number of heads: {published[shape]}, as in its project's "
        f"models of {text}"
    )
    return published[shape]


def find_image(facts: FileFacts, stride: Size, patches: int | None) -> Size:
    """Return the resolution of a number of patches: the named model's, else a square's.

    Without a number, where the file holds no positions, it is the size nearest 224.
    """
    if facts.named is not None:
        named = facts.named.image
        counts = [side // max(step, 1) for side, step in zip(named, stride, strict=True)]
        if patches in (None, counts[0] * counts[1]):
            return named
    if patches is None:
        height, width = (max(round(_USUAL_SIDE / max(step, 1)), 1) * step for step in stride)
        return height, width
    side = square_side(max(patches, 0))
    return side * stride[0], side * stride[1]


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
        raise InputError(f"{project} does not support {', '.join(wrong)}, of {spec}")


def require_vit(spec: Spec, project: str, **options: Any) -> ViTSpec:
    """Refuse all but plain ViTs with learned positions at the input; `options` may allow more."""
    if type(spec) is not ViTSpec:
        raise InputError(f"{project} does not support {spec}, a {spec.family} model: only ViTs")
    usual: dict[str, Any] = {"attention": "full", "position": "learned-1d", "position_at": "input"}
    usual |= {"patch_bias": True, "qkv_bias": True, "class_position": True}
    require(spec, project, **{**usual, **options})
    return spec


def count_depth(shapes: Shapes, pattern: str) -> int:
    """Count layers by their numbers; a file can't have more layers than tensors."""
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


def count_outputs(shapes: Shapes, key: str) -> int:
    """Count the outputs of a layer by its weight; 0 where there is none."""
    return shape_of(shapes, key, 2)[0] if key in shapes else 0


def section(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Give a part of a config that has keys of its own; nothing where there is none."""
    value = config.get(key) or {}
    if not isinstance(value, Mapping):
        raise InputError(f"config.json: expected keys and values in {key}, got {value!r}")
    return value
