"""Golden files as published ones are spelled, prefixed and stacked, and how tests read them."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.golden.reader import FOLDER
from tests.golden.reader import arrays as read_arrays
from vitrail.models import Spec, parse
from vitrail.weights.formats.bigvision import BIGVISION
from vitrail.weights.formats.bit_tf import BIT_TF
from vitrail.weights.formats.format import FileFacts, Format
from vitrail.weights.formats.google import GOOGLE
from vitrail.weights.formats.keymap import Tensors, read_table
from vitrail.weights.formats.timm.timm import TIMM

FORMATS = (GOOGLE, BIGVISION, BIT_TF, TIMM)
MODELS = sorted(path.stem for path in FOLDER.glob("*.json"))
OLDER = [
    (r"(block_\d+/)LayerNorm_1/", r"\1LayerNorm_2/"),
    (r"(block_\d+/)MlpBlock_0/", r"\1MlpBlock_3/"),
    (r"(block_\d+/)(MultiHeadDotProductAttention)_0/", r"\1\2_1/"),
]


def golden(name: str) -> Tensors:
    """Give a golden file's tensors without a prefix."""
    return {key: torch.from_numpy(value) for key, value in read_arrays(name).items()}


def home(name: str) -> Format:
    return BIGVISION if name.startswith("bigvision-vit") else GOOGLE


def older(tensors: Tensors) -> Tensors:
    """Spell as the published files do."""
    for pattern, new in OLDER:
        tensors = {re.sub(pattern, new, key): value for key, value in tensors.items()}
    return tensors


def written(name: str) -> Tensors:
    """Give what writing a golden model must give: Google's have the published spelling."""
    return older(golden(name)) if home(name) is GOOGLE else golden(name)


def identify(tensors: Tensors, image: tuple[int, int] | None = None) -> tuple[Format, Spec]:
    """Find the one format that knows the tensors, by their shapes alone."""
    empty = {key: value.to("meta") for key, value in tensors.items()}
    known = []
    model = None if image is None else replace(parse("ViT-B/1"), image=image)
    facts = FileFacts(named=model)
    for format in FORMATS:
        shapes = {key: tuple(value.shape) for key, value in format.normalize(empty).items()}
        if format.recognizes(shapes):
            known.append((format, format.infer(shapes, facts)))
    assert len(known) == 1, [format.name for format, _ in known]
    return known[0]


def read(format: Format, spec: Spec, tensors: Tensors) -> tuple[Tensors, dict[str, str]]:
    return read_table(format.table(spec), format.normalize(tensors), format.left_out)


def assert_same(ours: Tensors, theirs: Tensors) -> None:
    assert ours.keys() == theirs.keys(), sorted(ours.keys() ^ theirs.keys())
    for key, wanted in theirs.items():
        assert ours[key].shape == wanted.shape, key
        assert torch.equal(ours[key], wanted), key


def published(tensors: Tensors) -> Tensors:
    """Spell as the published files do, whose hybrids' norms have four axes."""
    return {
        key: value[None, None, None] if re.search(r"(^|/)gn(\d|_\w+)/", key) else value
        for key, value in older(tensors).items()
    }


def scanned(tensors: Tensors) -> Tensors:
    """Stack the blocks' tensors as a scan does."""
    stacked: Tensors = {key: value for key, value in tensors.items() if "block_" not in key}
    for key in tensors:
        if "block_0/" in key:
            layers = [tensors[key.replace("block_0/", f"block_{i}/")] for i in range(2)]
            stacked[key.replace("block_0/", "block/")] = torch.stack(layers)
    return stacked


def rooted(tensors: Tensors, root: str) -> Tensors:
    return {f"{root}{key}": value for key, value in tensors.items()}


def tensorflow(tensors: Tensors) -> Tensors:
    """Name a bit_paper file's tensors as the published BiT files do."""
    conv = "standardized_conv2d/kernel"
    rules = [
        (r"root_block/conv_root/kernel", f"root_block/{conv}"),
        (r"norm-pre-head/(\w+)", r"group_norm/\1"),
        (r"head/(\w+)", r"head/conv2d/\1"),
        (r"(block\d/unit\d\d)/conv_proj/kernel", rf"\1/a/proj/{conv}"),
        *((rf"(.+)/conv{i}/kernel", rf"\1/{x}/{conv}") for i, x in enumerate("abc", 1)),
        *((rf"(.+)/gn{i}/(\w+)", rf"\1/{x}/group_norm/\2") for i, x in enumerate("abc", 1)),
    ]
    renamed: Tensors = {}
    for key, value in tensors.items():
        old, new = next(rule for rule in rules if re.fullmatch(rule[0], key))
        name = "resnet/" + re.sub(old, new, key)
        if "group_norm" in name:
            name = name.replace("/scale", "/gamma").replace("/bias", "/beta")
            value = value.reshape(-1)
        renamed[name] = value[None, None] if name.endswith("head/conv2d/kernel") else value
    return renamed


def numbered(tensors: Tensors) -> Tensors:
    """Give the convolutions numbers, as some published files do."""
    return {
        key.replace("conv2d/kernel", f"conv2d_{i}/kernel") if "standard" in key else key: value
        for i, (key, value) in enumerate(tensors.items())
    }


def save(folder: Path, tensors: Tensors) -> str:
    arrays: dict[str, Any] = {key: value.numpy() for key, value in tensors.items()}
    np.savez(folder / "weights.npz", **arrays)
    return str(folder / "weights.npz")
