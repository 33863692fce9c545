"""Text towers in files of transformers (CLIP, SigLIP, SigLIP 2), OpenAI CLIP and open_clip."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vitrail.config import InputError
from vitrail.models.spec import Activation
from vitrail.models.text.text_tower import TextPool, TextSpec, TextTower
from vitrail.weights.formats.clip import clip_block_rows
from vitrail.weights.formats.conventions import count_depth, section, shape_of
from vitrail.weights.formats.format import Shapes
from vitrail.weights.formats.huggingface.huggingface_inference import ACTIVATIONS
from vitrail.weights.formats.keymap import (
    Part,
    Row,
    Table,
    Tensors,
    fill_rows,
    linear_rows,
    read_table,
)

HEAD_SIZE = 64
"""Of every text tower of OpenAI's; other files say how many heads they have."""


@dataclass(frozen=True)
class TextWeights:
    """A text tower's weights, and how its embeddings are compared with an image's."""

    spec: TextSpec
    tensors: Tensors
    scale: float
    """What the cosine of an image's and a text's embedding is multiplied by."""
    bias: float | None
    """What is added then, by models trained with the sigmoid loss (SigLIP)."""

    def build(self) -> TextTower:
        """Build the tower around the tensors, in float32 and eval mode."""
        with torch.device("meta"):
            tower = TextTower(self.spec)
        tower.load_state_dict({k: t.float() for k, t in self.tensors.items()}, assign=True)
        return tower.eval()


@dataclass(frozen=True)
class _TextFormat:
    mark: str
    """A tensor that only such files hold."""
    infer: Callable[[Shapes, Mapping[str, Any], Activation], TextSpec]
    rows: Callable[[TextSpec, Shapes], Iterator[Row]]


def read_text_weights(
    tensors: Mapping[str, Tensor], config: Mapping[str, Any], *, activation: Activation, source: str
) -> TextWeights:
    """Read the text tower of a file; `activation` is the image tower's, where no config says one.

    A file without a text tower, or with one of another kind, is refused.
    """
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    format = next((each for each in _FORMATS if each.mark in shapes), None)
    if format is None:
        raise InputError(_explain_missing(source, shapes, config))
    try:
        spec = format.infer(shapes, config, activation)
        table = _make_table(spec, format.rows(spec, shapes))
        found, _ = read_table(table, tensors, lambda key: "not of the text tower")
    except InputError as error:
        said = "; ".join(map(str, error.args[:10]))
        raise InputError(f"the text tower of {source}: {said}") from None
    bias = tensors.get("logit_bias")
    scale = _number(tensors.get("logit_scale", torch.tensor(0.0)), "logit_scale")
    return TextWeights(
        spec,
        found,
        scale=float(torch.tensor(scale, dtype=torch.float64).exp()),
        bias=None if bias is None else _number(bias, "logit_bias"),
    )


def _number(tensor: Tensor, name: str) -> float:
    if tensor.numel() != 1 or not bool(tensor.isfinite().all()):
        raise InputError(f"{name} must be one finite number, got shape {tuple(tensor.shape)}")
    return float(tensor.double().reshape(()))


def _explain_missing(source: str, shapes: Shapes, config: Mapping[str, Any]) -> str:
    """Say whether there is no text tower or one that we don't read."""
    text = section(section(config, "model_cfg") or config, "text_cfg")
    kind = text.get("hf_model_name") or section(config, "text_config").get("model_type")
    if any(key.startswith(("text.", "text_model.")) for key in shapes):
        return (
            f"{source} has a text tower of another kind ({kind or 'unknown'}); vitrail reads those "
            "of CLIP, open_clip and SigLIP"
        )
    return (
        f"{source} has no text tower, so its classes can't be given as text; use a CLIP or SigLIP, "
        "such as hf:openai/clip-vit-base-patch32 or hf:google/siglip2-base-patch16-224"
    )


def _make_table(spec: TextSpec, rows: Iterator[Row]) -> Table:
    with torch.device("meta"):
        shapes = {name: tuple(p.shape) for name, p in TextTower(spec).named_parameters()}
    return fill_rows(rows, shapes, "the file has no {}")


_HF = "text_model."
_HF_LAYER = f"{_HF}encoder.layers"
_HF_NAMES = {"attention.norm": "layer_norm1", "attention.output": "self_attn.out_proj"}
_HF_NAMES |= {"mlp.norm": "layer_norm2", "mlp.hidden": "mlp.fc1", "mlp.output": "mlp.fc2"}


def _infer_hf(shapes: Shapes, config: Mapping[str, Any], activation: Activation) -> TextSpec:
    siglip = f"{_HF}head.weight" in shapes
    text: Mapping[str, Any] = section(config, "text_config") or config
    head = f"{_HF}head.weight" if siglip else "text_projection.weight"
    vocabulary, width = shape_of(shapes, f"{_HF}embeddings.token_embedding.weight", 2)
    kind = text.get("hidden_act", "gelu_pytorch_tanh" if siglip else "quick_gelu")
    if kind not in ACTIVATIONS:
        raise InputError(f"unknown hidden_act {kind!r}; there are: {', '.join(ACTIVATIONS)}")
    end = text.get("eos_token_id", 49407)
    usual = {"num_attention_heads": 12 if siglip else 8} if config else {}
    return TextSpec(
        depth=count_depth(shapes, r"text_model\.encoder\.layers\.(\d+)\."),
        width=width,
        heads=_heads({**usual, **text}, "num_attention_heads", width),
        mlp=shape_of(shapes, f"{_HF_LAYER}.0.mlp.fc1.weight", 2)[0],
        vocabulary=vocabulary,
        context=shape_of(shapes, f"{_HF}embeddings.position_embedding.weight", 2)[0],
        output=shape_of(shapes, head, 2)[0],
        causal=not siglip,
        pool="last" if siglip else "end",
        end=None if siglip or end == 2 else int(end),  # transformers' 2 stands for the largest ID
        projection_bias=siglip,
        activation=ACTIVATIONS[kind],
        norm_eps=float(text.get("layer_norm_eps", 1e-6 if siglip else 1e-5)),
    )


def _hf_rows(spec: TextSpec, shapes: Shapes) -> Iterator[Row]:
    yield "embedding.weight", f"{_HF}embeddings.token_embedding.weight"
    yield "positions", f"{_HF}embeddings.position_embedding.weight"
    for layer in range(spec.depth):
        ours, theirs = f"blocks.{layer}", f"{_HF_LAYER}.{layer}"
        for name, other in _HF_NAMES.items():
            yield from linear_rows(f"{ours}.{name}", f"{theirs}.{other}")
        for leaf in ("weight", "bias"):
            parts = (f"{theirs}.self_attn.{part}_proj.{leaf}" for part in "qkv")
            yield f"{ours}.attention.qkv.{leaf}", *parts
    yield from linear_rows("norm", f"{_HF}final_layer_norm")
    yield from linear_rows("projection", f"{_HF}head" if spec.projection_bias else _PROJECTION)


_PROJECTION = "text_projection"
_POOLS: dict[str, TextPool] = {"argmax": "end", "eos": "end", "last": "last", "first": "first"}


def _clip(root: str) -> _TextFormat:
    """Describe open_clip's text tower, whose names begin with `root`; OpenAI's begin bare."""

    def infer(shapes: Shapes, config: Mapping[str, Any], activation: Activation) -> TextSpec:
        model = section(config, "model_cfg") or config
        text = section(model, "text_cfg")
        if root and not text:
            raise InputError("it needs its open_clip_config.json beside it, which says its pooling")
        if text.get("embed_cls"):
            raise InputError("a token for the text (embed_cls), as in CoCa, is not supported")
        pool = str(text.get("pool_type", "argmax"))
        if pool not in _POOLS:
            raise InputError(f"unknown pool_type {pool!r}; there are: {', '.join(_POOLS)}")
        width = shape_of(shapes, f"{root}token_embedding.weight", 2)[1]
        block = f"{root}transformer.resblocks.0"
        dense = f"{root}{_PROJECTION}.weight"
        bare = shapes.get(f"{root}{_PROJECTION}", (0, width))[1]
        if text:
            activation = "quick-gelu" if model.get("quick_gelu") else "gelu"
            if section(text, "act_kwargs").get("approximate") == "tanh":
                activation = "gelu-tanh"
        return TextSpec(
            depth=count_depth(shapes, rf"{root}transformer\.resblocks\.(\d+)\."),
            width=width,
            heads=_heads(text, "heads", width),
            mlp=shape_of(shapes, f"{block}.mlp.c_fc.weight", 2)[0],
            vocabulary=shape_of(shapes, f"{root}token_embedding.weight", 2)[0],
            context=shape_of(shapes, f"{root}positional_embedding", 2)[0],
            output=shapes[dense][0] if dense in shapes else bare,
            causal=not text.get("no_causal_mask", False),
            pool=_POOLS[pool],
            end=int(text["eos_id"]) if pool == "eos" and "eos_id" in text else None,
            projection=dense in shapes or f"{root}{_PROJECTION}" in shapes,
            projection_bias=f"{root}{_PROJECTION}.bias" in shapes,
            activation=activation,
            norm_eps=float(section(text, "norm_kwargs").get("eps", 1e-5)),
            layer_scale=1e-5 if f"{block}.ls_1.gamma" in shapes else 0.0,
        )

    def rows(spec: TextSpec, shapes: Shapes) -> Iterator[Row]:
        yield "embedding.weight", f"{root}token_embedding.weight"
        yield "positions", f"{root}positional_embedding"
        yield from clip_block_rows(spec.depth, root)
        yield from linear_rows("norm", f"{root}ln_final")
        if f"{root}{_PROJECTION}.weight" in shapes:
            yield from linear_rows("projection", f"{root}{_PROJECTION}")
        else:  # theirs multiplies from the right
            part = Part(f"{root}{_PROJECTION}", (spec.width, spec.output), axes=(1, 0))
            yield "projection.weight", part

    return _TextFormat(f"{root}token_embedding.weight", infer, rows)


def _heads(config: Mapping[str, Any], key: str, width: int) -> int:
    heads = config.get(key, width // HEAD_SIZE)
    if not isinstance(heads, int) or heads < 1 or width % heads:
        raise InputError(f"a width of {width} does not split into {heads!r} heads")
    return heads


_FORMATS = (
    _TextFormat(f"{_HF}embeddings.token_embedding.weight", _infer_hf, _hf_rows),
    _clip("text."),
    _clip(""),
)
