"""A plain reader of the golden files' keys, enough for these tests."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrail.models import BiTSpec, HybridSpec, Spec, ViTSpec

FOLDER = Path(__file__).parent
Arrays = dict[str, np.ndarray]


def arrays(name: str) -> Arrays:
    """Read a golden .npz file."""
    with np.load(FOLDER / f"{name}.npz", allow_pickle=False) as file:
        return {key.removeprefix("params/"): file[key] for key in file.files}


def images(name: str) -> tuple[Tensor, dict[str, Tensor]]:
    """Give a golden file's images, channels first, and its recorded outputs."""
    outputs = {key: torch.from_numpy(value) for key, value in arrays(f"{name}.io").items()}
    return outputs.pop("x").permute(0, 3, 1, 2).contiguous(), outputs


def spec(name: str) -> Spec:
    """Give the spec that a golden file's .json describes in its project's words."""
    record = json.loads((FOLDER / f"{name}.json").read_text())
    config, image = record["config"], (record["image"],) * 2
    if "bit_paper" in record["source"]:
        width = int(64 * config["width"])
        stages = tuple(config["depth"])
        return BiTSpec(stages=stages, width=width, image=image, classes=config["num_classes"])
    if "big_vision" in record["source"]:
        return ViTSpec(
            **shape(config["depth"], config["width"], config["num_heads"], config["mlp_dim"]),
            patch=tuple(config["patch_size"]),
            image=image,
            classes=config["num_classes"],
            pool="token" if config["pool_type"] == "tok" else config["pool_type"],
            position="sincos-2d" if config["posemb"] == "sincos2d" else "learned-1d",
            class_position=False,
            representation=config.get("rep_size", 0),
        )
    inner = config["transformer"]
    sizes = shape(inner["num_layers"], config["hidden_size"], inner["num_heads"], inner["mlp_dim"])
    rest: dict[str, Any] = {
        "patch": tuple(config["patches"]["size"]),
        "image": image,
        "classes": config["num_classes"],
        "pool": config.get("classifier", "token"),
        "representation": config.get("representation_size", 0),
    }
    if "resnet" not in config:
        return ViTSpec(**sizes, **rest)
    stem = config["resnet"]
    width = int(64 * stem["width_factor"])
    return HybridSpec(**sizes, **rest, stages=tuple(stem["num_layers"]), stem_width=width)


def shape(depth: int, width: int, heads: int, mlp: int) -> dict[str, Any]:
    return {"depth": depth, "width": width, "heads": heads, "mlp": mlp}


def state(name: str, stages: tuple[int, ...] = ()) -> dict[str, Tensor]:
    """Read a golden file's parameters under our names."""
    read = {**dict(_simple(arrays(name), stages)), **_joined(arrays(name))}
    return {key: torch.from_numpy(np.ascontiguousarray(value)) for key, value in read.items()}


_RULES: list[tuple[str, str]] = [
    (r"cls", "class_token"),
    (r"(?:Transformer/posembed_input/)?pos_embedding", "positions.0.table"),
    (r"embedding/(\w+)", r"embedding.\1"),
    (r"Transformer/encoder_norm/(\w+)", r"norm.\1"),
    (r"Transformer/encoderblock_(\d+)/LayerNorm_0/(\w+)", r"blocks.\1.attention.norm.\2"),
    (r"Transformer/encoderblock_(\d+)/LayerNorm_[12]/(\w+)", r"blocks.\1.mlp.norm.\2"),
    (r"Transformer/encoderblock_(\d+)/MlpBlock_\d/Dense_0/(\w+)", r"blocks.\1.mlp.hidden.\2"),
    (r"Transformer/encoderblock_(\d+)/MlpBlock_\d/Dense_1/(\w+)", r"blocks.\1.mlp.output.\2"),
    (r"Transformer/encoderblock_(\d+)/Multi\w+/out/(\w+)", r"blocks.\1.attention.output.\2"),
    (r"MAPHead_0/probe", "pooling.probe"),
    (r"MAPHead_0/LayerNorm_0/(\w+)", r"pooling.mlp.norm.\1"),
    (r"MAPHead_0/MlpBlock_0/Dense_0/(\w+)", r"pooling.mlp.hidden.\1"),
    (r"MAPHead_0/MlpBlock_0/Dense_1/(\w+)", r"pooling.mlp.output.\1"),
    (r"MAPHead_0/Multi\w+/(query)/(\w+)", r"pooling.\1.\2"),
    (r"MAPHead_0/Multi\w+/out/(\w+)", r"pooling.output.\1"),
    (r"pre_logits/(\w+)", r"head.hidden.\1"),
    (r"head/(\w+)", r"head.output.\1"),
    (r"conv_root/kernel", "stem.conv.kernel"),
    (r"gn_root/(\w+)", r"stem.norm.\1"),
    (r"root_block/conv_root/kernel", "root.kernel"),
    (r"norm-pre-head/(\w+)", r"norm.\1"),
]


def _simple(source: Arrays, stages: tuple[int, ...]) -> Iterator[tuple[str, np.ndarray]]:
    for key, value in source.items():
        if re.search(r"/(key|value)/|encoderblock_\d+/Multi\w+/query/", key):
            continue
        name = _block(key, stages) or next(
            (re.sub(pattern, ours, key) for pattern, ours in _RULES if re.fullmatch(pattern, key)),
            None,
        )
        assert name is not None, f"no rule for {key}"
        leaf = name.rpartition(".")[2]
        name = re.sub(r"\.(kernel|scale)$", ".weight", name)
        yield name, _value(name, leaf, value)


def _block(key: str, stages: tuple[int, ...]) -> str | None:
    """Name a ResNet block's parameter; BiT and stem both count their blocks through."""
    match = re.fullmatch(r"block(\d)/unit(\d+)/(conv|gn)(_proj|\d)/(\w+)", key)
    if match is None:
        return None
    stage, unit = int(match[1]) - 1, int(match[2]) - 1
    if len(match[2]) == 2:  # BiT
        layer = "shortcut" if match[4] == "_proj" else f"{_kind(match[3])}{match[4]}"
        return f"blocks.{sum(stages[:stage]) + unit}.{layer}.{match[5]}"
    part = f"shortcut.{'01'[match[3] == 'gn']}" if match[4] == "_proj" else None
    number = sum(stages[:stage]) + unit
    return f"stem.blocks.{number}.{part or _kind(match[3]) + match[4]}.{match[5]}"


def _kind(kind: str) -> str:
    return {"conv": "conv", "gn": "norm"}[kind]


def _value(name: str, leaf: str, value: np.ndarray) -> np.ndarray:
    if name == "positions.0.table":
        return value[0]
    if leaf == "kernel" and value.ndim == 4:
        return value.transpose(3, 2, 0, 1)
    if leaf == "kernel":  # dense: (…, width) with heads folded in
        return (value.reshape(-1, value.shape[-1]) if "output" in name else _wide(value)).T
    return value.reshape(-1) if name not in ("class_token", "pooling.probe") else value


def _wide(value: np.ndarray) -> np.ndarray:
    return value.reshape(value.shape[0], -1)


def _joined(source: Arrays) -> Arrays:
    """Stack query, key and value as our dense layers hold them."""
    joined: Arrays = {}
    for key in source:
        if not (match := re.fullmatch(r"(.*Multi\w+)/value/(kernel|bias)", key)):
            continue
        room, leaf = match[1], match[2]
        if block := re.search(r"encoderblock_(\d+)", room):
            name, parts = f"blocks.{block[1]}.attention.qkv", ["query", "key", "value"]
        else:
            name, parts = "pooling.key_value", ["key", "value"]
        values = [source[f"{room}/{part}/{leaf}"] for part in parts]
        flat = [_wide(v).T if leaf == "kernel" else v.reshape(-1) for v in values]
        joined[f"{name}.{'weight' if leaf == 'kernel' else 'bias'}"] = np.concatenate(flat)
    return joined
