"""timm's names: VisionTransformer (also DeiT and hybrids) and ResNetV2 (BiT).

DINO's and MAE's encoders descend from the same code, so their formats share this one's rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from math import isqrt

from torch import Tensor

from vitrail.config import InputError
from vitrail.models import BiTSpec, HybridSpec, Spec, ViTSpec
from vitrail.weights.formats.conventions import UNGATED, require
from vitrail.weights.formats.format import FileFacts, Format, Shapes
from vitrail.weights.formats.keymap import Part, Row, Table, linear_rows, make_table
from vitrail.weights.formats.timm.timm_architectures import RESNETS
from vitrail.weights.formats.timm.timm_config import (
    architecture_named,
    image_of,
    model_arguments,
)
from vitrail.weights.formats.timm.timm_eva import (
    has_split_gate,
    has_split_qkv,
    is_eva,
    is_sapiens,
)
from vitrail.weights.formats.timm.timm_inference import check_architecture, infer_encoder
from vitrail.weights.formats.timm.timm_parallel import read_parallel, write_parallel
from vitrail.weights.formats.timm.timm_relative import check_relative, offset_rows
from vitrail.weights.formats.timm.timm_resnet import (
    infer_bit,
    is_bit,
    read_patch_stem,
    timm_bit_rows,
    timm_stem_rows,
    write_patch_stem,
)

_FOREIGN = {  # what marks tensors as DINO's or MAE's, which are formats of their own
    r"register_tokens|mask_token",
    r"blocks\.0\.mlp\.w12\.weight",
    r"(head\.(mlp|last_layer)|dino_head|ibot_head|decoder_\w+)(\..+)?",
}


def _table(spec: Spec) -> Table:
    if isinstance(spec, BiTSpec):
        require(spec, "timm", heads=0, pool_padding="zeros")
        return make_table(spec, timm_bit_rows(spec), "timm")
    beit, relative = spec.position == "relative-2d", spec.position == "relative-mlp"
    if relative:
        check_relative(spec)
    else:
        require(spec, "timm", position_at="every-layer" if beit else "input")
    require(spec, "timm", head_bias=True)
    require(spec, "timm", representation=0, attention=("full", "differential"))
    require(spec, "timm", patch_bias=not spec.pre_norm)
    if spec.block == "parallel":
        require(spec, "timm's parallel block", sub_norm="none", activation=UNGATED, dense_bias=True)
        require(spec, "timm's parallel block", rotary="none", key_bias=True, distilled=False)
    if spec.attention == "differential" or spec.branches > 1:
        require(spec, "timm", rotary="none", key_bias=True)
    if beit:
        plain = {"key_bias": False, "norm": "layer", "norm_eps": 1e-6, "norm_place": "pre"}
        require(spec, "timm's BEiT", **plain, unpooled_class_token=spec.pool != "token")
    if spec.patch_norm or not spec.dense_bias:
        aim = {"patch_norm": True, "norm": "rms", "norm_eps": 1e-5, "activation": "swiglu"}
        require(spec, "timm's AIMv2", **aim)
    if spec.position not in ("none", "learned-1d", "factorized", "relative-2d", "relative-mlp"):
        raise InputError(f"timm does not support position={spec.position}")
    if spec.distilled:
        require(spec, "timm's distilled ViT", registers=0, class_position=True)
    if spec.registers and spec.class_tokens and spec.position != "none":
        require(spec, "timm's ViT with registers", class_position=spec.register_position)
    if is_eva(spec):
        require(spec, "timm's EVA", activation=("gelu", "swiglu"), distilled=False)
        require(spec, "timm's EVA", norm="rms" if is_sapiens(spec) else "layer")
    if spec.pool == "map" and spec.activation == "swiglu":
        raise InputError("timm does not support activation=swiglu with pool=map")
    return make_table(spec, _rows(spec), "timm")


def _rows(spec: ViTSpec) -> Iterator[Row]:
    if isinstance(spec, HybridSpec):
        yield from timm_stem_rows(spec)
    yield from encoder_rows(spec)
    yield "distillation_token", "dist_token"
    yield "registers", "reg_token"
    yield "rotary.frequencies", "rope.freqs"
    yield from linear_rows("pre_norm", "norm_pre")
    yield from linear_rows("pooled_norm", "fc_norm")
    yield "pooling.probe", "attn_pool.latent"
    yield from linear_rows("pooling.query", "attn_pool.q")
    yield from linear_rows("pooling.key_value", "attn_pool.kv")
    yield from linear_rows("pooling.output", "attn_pool.proj")
    yield from linear_rows("pooling.mlp.norm", "attn_pool.norm")
    yield from linear_rows("pooling.mlp.hidden", "attn_pool.mlp.fc1")
    yield from linear_rows("pooling.mlp.output", "attn_pool.mlp.fc2")
    yield from linear_rows("head.output", "head")
    yield from linear_rows("distillation_head.output", "head_dist")


def _differential_rows(spec: ViTSpec, attention: str, theirs: str) -> Iterator[Row]:
    half = (spec.width // spec.heads // 2,)
    lambdas = (Part(f"{theirs}.lambda_{name}", half) for name in ("q1", "k1", "q2", "k2"))
    yield f"{attention}.mix.lambdas", *lambdas
    yield f"{attention}.head_norm.weight", f"{theirs}.sub_norm.weight"


def _layers(spec: ViTSpec) -> Iterator[tuple[int, str]]:
    """Give each block's number and name, or those of its branches."""
    for layer in range(spec.depth):
        names = (f"blocks.{layer}.branches.{branch}" for branch in range(spec.branches))
        yield from ((layer, name) for name in (names if spec.branches > 1 else [f"blocks.{layer}"]))


def encoder_rows(spec: ViTSpec, hidden: str = "fc1", output: str = "fc2") -> Iterator[Row]:
    """Give the rows of an encoder, which differ between projects in the MLP's names only."""
    positions = spec.positioned + spec.grid[0] * spec.grid[1]
    yield "class_token", "cls_token"
    yield "positions.0.table", Part("pos_embed", (1, positions, spec.width))
    for axis, side in zip("yx", spec.grid, strict=True):
        yield f"positions.0.{axis}", Part(f"pos_embed_{axis}", (1, side, spec.width))
    yield from offset_rows(spec)
    yield from linear_rows("embedding", "patch_embed.proj")
    yield from linear_rows("patch_norm", "patch_embed.norm")
    for layer, block in _layers(spec):
        attention = f"{block}.attention"
        if spec.position == "relative-2d":
            yield f"positions.{layer}.table", f"{block}.attn.relative_position_bias_table"
        for norm in (f"{attention}.norm", f"{block}.after1.norm", f"{block}.norm"):
            yield from linear_rows(norm, f"{block}.norm1")
        if has_split_qkv(spec):
            yield f"{attention}.qkv.weight", *(f"{block}.attn.{x}_proj.weight" for x in "qkv")
            yield f"{attention}.qkv.bias", *(f"{block}.attn.{x}_proj.bias" for x in "qkv")
            yield f"{attention}.qkv_bias.bias", *(f"{block}.attn.{x}_proj.bias" for x in "qv")
            yield from linear_rows(f"{attention}.query", f"{block}.attn.q_proj")
            for kind in ("weight", "bias"):
                yield (
                    f"{attention}.key_value.{kind}",
                    *(f"{block}.attn.{x}_proj.{kind}" for x in "kv"),
                )
        else:
            yield from linear_rows(f"{attention}.qkv", f"{block}.attn.qkv")
            yield f"{attention}.qkv_bias.bias", f"{block}.attn.q_bias", f"{block}.attn.v_bias"
        yield from linear_rows(f"{attention}.query_norm", f"{block}.attn.q_norm")
        yield from linear_rows(f"{attention}.key_norm", f"{block}.attn.k_norm")
        yield from linear_rows(f"{attention}.sub_norm", f"{block}.attn.norm")
        yield from _differential_rows(spec, attention, f"{block}.attn")
        yield from linear_rows(f"{attention}.output", f"{block}.attn.proj")
        for after in (f"{block}.after1", f"{block}.after"):
            yield f"{after}.scale.factor", f"{block}.ls1.gamma"
        for norm in (f"{block}.mlp.norm", f"{block}.after2.norm"):
            yield from linear_rows(norm, f"{block}.norm2")
        if has_split_gate(spec):
            for kind in ("weight", "bias"):
                branches = (f"{block}.mlp.fc1_{branch}.{kind}" for branch in "gx")
                yield f"{block}.mlp.hidden.{kind}", *branches
        else:
            yield from linear_rows(f"{block}.mlp.hidden", f"{block}.mlp.{hidden}")
        yield from linear_rows(f"{block}.mlp.sub_norm", f"{block}.mlp.norm")
        yield from linear_rows(f"{block}.mlp.output", f"{block}.mlp.{output}")
        yield f"{block}.after2.scale.factor", f"{block}.ls2.gamma"
    yield from linear_rows("norm", "norm")


def is_encoder(shapes: Shapes) -> bool:
    """Say whether tensors are an encoder's by timm's names, whoever's it is."""
    layers = ("attn.qkv", "attn.q_proj", "branches.0.attn.qkv")
    qkv = {f"blocks.0.{layer}.weight" for layer in layers}
    return "patch_embed.proj.weight" in shapes and not qkv.isdisjoint(shapes)


def _recognizes(shapes: Shapes) -> bool:
    foreign = any(re.fullmatch(pattern, key) for pattern in _FOREIGN for key in shapes)
    return is_bit(shapes) or (is_encoder(shapes) and not foreign)


def _infer(shapes: Shapes, facts: FileFacts) -> Spec:
    if not is_bit(shapes):
        return infer_encoder(shapes, facts)
    spec = infer_bit(shapes, image_of(facts))
    check_architecture(facts, RESNETS)
    if not architecture_named(facts.config) and facts.named is None:
        raise InputError(
            "the file does not say which of timm's architectures it is: add its config.json, or "
            "name it, as in --model resnetv2_50x1_bit"
        )
    said = {facts.config.get("global_pool"), model_arguments(facts.config).get("global_pool")}
    if unknown := said - {None, "avg"}:
        raise InputError(f"config.json: a BiT has global_pool 'avg', not {unknown.pop()!r}")
    return spec


def _normalize(theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename what DeiT's own code and timm's `Eva` and `NaFlexVit` name otherwise."""
    if "embeds.proj.weight" in theirs:
        theirs = _read_naflex(theirs)
    if "patch_embed.backbone.2.conv.weight" in theirs:
        theirs = read_patch_stem(theirs)
    if any(".in_proj." in key or ".attns." in key for key in theirs):
        theirs = read_parallel(theirs)
    return {re.sub(r"\.gamma_([12])$", r".ls\1.gamma", key): theirs[key] for key in theirs}


def _read_naflex(theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Bring NaFlexVit's embedding to VisionTransformer's: flat patches have their channels last."""
    tensors = {key.removeprefix("embeds."): theirs[key] for key in theirs}
    weight, positions = tensors.pop("proj.weight"), tensors.get("pos_embed")
    side = isqrt(weight.shape[-1] // 3)
    if weight.ndim != 2 or weight.shape[-1] != 3 * side * side:
        raise InputError(f"'embeds.proj.weight' {tuple(weight.shape)} is not of square RGB patches")
    tensors["patch_embed.proj.weight"] = weight.view(-1, side, side, 3).permute(0, 3, 1, 2)
    tensors["patch_embed.proj.bias"] = tensors.pop("proj.bias")
    if positions is not None and positions.ndim == 4:
        tensors["pos_embed"] = positions.flatten(1, 2)
    return tensors


def _denormalize(ours: Mapping[str, Tensor], spec: Spec) -> dict[str, Tensor]:
    if isinstance(spec, BiTSpec):
        return dict(ours)
    if spec.position == "factorized":
        raise InputError("timm's NaFlexVit, which has position=factorized, is read, not written")
    if spec.block == "parallel" or spec.branches > 1:
        return write_parallel(ours, spec)
    if isinstance(spec, HybridSpec) and spec.stem == "mobileclip":
        return write_patch_stem(ours)
    if not is_eva(spec):
        return dict(ours)
    return {re.sub(r"\.ls([12])\.gamma$", r".gamma_\1", key): ours[key] for key in ours}


TIMM = Format("timm", _recognizes, _infer, _table, normalize=_normalize, denormalize=_denormalize)
