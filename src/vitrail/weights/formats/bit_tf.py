"""The names of the published BiT files, which big_transfer's TensorFlow code wrote."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from torch import Tensor

from vitrail.config import InputError
from vitrail.models import BiTSpec, Spec
from vitrail.weights.formats.conventions import find_image
from vitrail.weights.formats.flax import check_axes, conv
from vitrail.weights.formats.format import FileFacts, Format, Shapes, count_stages
from vitrail.weights.formats.google import units
from vitrail.weights.formats.keymap import Part, Row, Table, Tensors, make_table

_CONV = "standardized_conv2d"
_ROOT = f"resnet/root_block/{_CONV}/kernel"
_HEAD = "resnet/head/conv2d/kernel"


def _normalize(tensors: Mapping[str, Tensor]) -> Tensors:
    """Take off the number that some files' convolutions have, unless the name is taken."""
    spelled: Tensors = {}
    for key, tensor in tensors.items():
        new = re.sub(rf"/{_CONV}_\d+/", f"/{_CONV}/", key)
        spelled[key if new in tensors or new in spelled else new] = tensor
    return spelled


def _table(spec: Spec) -> Table:
    if not isinstance(spec, BiTSpec):
        raise InputError(f"BiT's TensorFlow files hold ResNets, not {spec}; choose another format")
    return make_table(spec, _rows(spec), "BiT's TensorFlow code")


def _rows(spec: BiTSpec) -> Iterator[Row]:
    yield conv("root", f"resnet/root_block/{_CONV}", (7, 7, spec.channels, spec.width))
    for number, stage, unit, shapes in units(spec.stages, spec.width):
        ours, theirs = f"blocks.{number}", f"resnet/block{stage}/unit{unit:02}"
        for layer, (room, shape) in enumerate(zip("abc", shapes, strict=False), 1):
            yield from _norm(f"{ours}.norm{layer}", f"{theirs}/{room}/group_norm")
            yield conv(f"{ours}.conv{layer}", f"{theirs}/{room}/{_CONV}", shape)
        yield conv(f"{ours}.shortcut", f"{theirs}/a/proj/{_CONV}", shapes[3])
    yield from _norm("norm", "resnet/group_norm")
    yield "head.output.weight", Part(_HEAD, (1, 1, spec.pooled, spec.classes), (3, 2, 0, 1))
    yield "head.output.bias", "resnet/head/conv2d/bias"


def _norm(ours: str, theirs: str) -> Iterator[Row]:
    yield f"{ours}.weight", f"{theirs}/gamma"
    yield f"{ours}.bias", f"{theirs}/beta"


def _recognizes(shapes: Shapes) -> bool:
    return _ROOT in shapes


def _infer(shapes: Shapes, facts: FileFacts) -> Spec:
    """Read a BiT's spec; no file says its resolution, and this code's max-pool saw zeros."""
    check_axes(shapes, {_ROOT: 4}, {_HEAD: 4})
    return BiTSpec(
        stages=count_stages(shapes, rf"resnet/block(\d)/unit(\d{{2,3}})/a/{_CONV}/kernel"),
        width=shapes[_ROOT][3],
        channels=shapes[_ROOT][2],
        classes=shapes.get(_HEAD, (0,))[-1],
        image=find_image(facts, (1, 1), None),
        pool_padding="zeros",
    )


def _left_out(key: str) -> str | None:
    return None


BIT_TF = Format("bit-tf", _recognizes, _infer, _table, _left_out, _normalize)
