"""MAE's decoder, which goes with an encoder's weights: transformers' and facebookresearch's names.

Its positions are fixed, so that a file's are kept only where they are others than MAE's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.config import InputError
from vitrail.models import ViT
from vitrail.models.positions.absolute import sincos_2d
from vitrail.models.positions.grid_resizing import resize_positions
from vitrail.models.pretraining.masked import MaskedAutoencoder
from vitrail.models.pretraining.mim import DecoderConfig, Pixels, Target, decoder_spec
from vitrail.models.spec import Spec, ViTSpec
from vitrail.weights.formats.format import count_layers
from vitrail.weights.formats.huggingface.huggingface_names import VIT, normalize_names
from vitrail.weights.formats.huggingface.huggingface_tables import hf_encoder_rows
from vitrail.weights.formats.keymap import (
    Part,
    Row,
    Table,
    Tensors,
    fill_rows,
    linear_rows,
    read_table,
    write_table,
)
from vitrail.weights.formats.timm.timm import encoder_rows

_HF = "decoder.decoder_"
_FACEBOOK = "decoder_"


@dataclass(frozen=True, kw_only=True)
class DecoderFacts:
    """What a decoder's tensors do not say."""

    config: DecoderConfig
    target: Target
    pixels: Pixels = "raw"
    """What a published decoder predicts is of the model's input."""


@dataclass(frozen=True, kw_only=True)
class Decoder:
    """The decoder that MAE pre-trained an encoder with."""

    facts: DecoderFacts
    tensors: Tensors
    """All but the encoder's parameters of a `MaskedAutoencoder`, under our names."""

    def build(self, encoder: ViT) -> MaskedAutoencoder:
        """Put the decoder beside its encoder, in eval mode."""
        with torch.device("meta"):
            model = MaskedAutoencoder(encoder, self.facts.target, self.facts.config)
        model.table = self.tensors.get("table")
        model.load_state_dict(self.tensors, strict=False, assign=True)
        return model.eval()


def find_decoder(
    theirs: Mapping[str, Tensor], spec: Spec, config: Mapping[str, Any]
) -> tuple[Decoder | None, str | None]:
    """Read the decoder beside an encoder's tensors; or say why it can't be used, where one is."""
    root = next((root for root in (_HF, _FACEBOOK) if f"{root}embed.weight" in theirs), None)
    if root is None or not isinstance(spec, ViTSpec):
        return None, None
    tensors = {key: theirs[key] for key in theirs if is_decoders(key)}
    try:
        return _read_decoder(_rename(tensors) if root == _HF else tensors, spec, config, root), None
    except InputError as error:
        return None, f"left out the decoder: {error}"


def is_decoders(key: str) -> bool:
    """Say whether a tensor beside an encoder's is its decoder's, by either project's names."""
    return key == "mask_token" or key.startswith(("decoder.", _FACEBOOK))


def _read_decoder(
    tensors: Mapping[str, Tensor], spec: ViTSpec, config: Mapping[str, Any], root: str
) -> Decoder:
    layer = f"{root}{'layers' if root == _HF else 'blocks'}"
    width = len(tensors[f"{root}embed.weight"])
    depth = min(count_layers(dict.fromkeys(tensors, ()), rf"{re.escape(layer)}\.(\d+)\."), 1000)
    heads = config.get("decoder_num_attention_heads", DecoderConfig.heads)
    made = DecoderConfig(depth=depth, width=width, heads=heads)
    normalized = config.get("norm_pix_loss", root == _FACEBOOK)
    target = "normalized-pixels" if normalized else "pixels"
    facts = DecoderFacts(config=made, target=target, pixels="input")
    positions = f"{root}pos_embed"
    ours, _ = read_table(
        _table(spec, facts, root), tensors, lambda key: "fixed" if key == positions else None
    )
    if (table := tensors.get(positions)) is not None:
        fixed = _positions(spec, width).to(table.dtype)
        if table.shape != fixed.shape:
            raise InputError(f"{positions} has shape {table.shape}, expected {fixed.shape}")
        if not torch.allclose(table, fixed, rtol=0, atol=1e-5):
            ours["table"] = table[0]
    return Decoder(facts=facts, tensors=ours)


def _rename(tensors: Mapping[str, Tensor]) -> Tensors:
    """Name transformers' tensors as it published them, whatever version wrote them."""
    layers = r"^decoder\.decoder_(encoder\.layer|layers)\."
    inner = {re.sub(layers, "layers.", key): value for key, value in tensors.items()}
    return {
        re.sub(r"^encoder\.layer\.", f"{_HF}layers.", key): value
        for key, value in normalize_names(inner).items()
    }


def _positions(spec: ViTSpec, width: int) -> Tensor:
    patches = sincos_2d(spec.grid, width, torch.empty(0), mae=True)
    return F.pad(patches, (0, 0, spec.prefix, 0))[None]


def check_decoder(decoder: Decoder, spec: Spec) -> None:
    """Refuse a decoder whose tensors are not those that its facts say."""
    wanted = decoder_shapes(spec, decoder.facts) if isinstance(spec, ViTSpec) else {}
    if "table" in decoder.tensors:
        wanted["table"] = (spec.tokens, decoder.facts.config.width)
    if wanted != {name: tuple(tensor.shape) for name, tensor in decoder.tensors.items()}:
        raise InputError(f"the decoder's weights do not fit {decoder.facts.config} of {spec}")


def fit_decoder(decoder: Decoder | None, old: Spec, new: Spec) -> Decoder | None:
    """Fit a decoder to another resolution; for other patches there is none."""
    if decoder is None or not (isinstance(old, ViTSpec) and isinstance(new, ViTSpec)):
        return None
    if (old.patch, old.channels) != (new.patch, new.channels):
        return None
    if "table" not in decoder.tensors:
        return decoder
    rule = old.position_resize
    table = resize_positions(decoder.tensors["table"], old.grid, new.grid, rule, old.prefix)
    return replace(decoder, tensors={**decoder.tensors, "table": table})


def decoder_shapes(spec: ViTSpec, facts: DecoderFacts) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a decoder's parameters."""
    with torch.device("meta"):
        model = MaskedAutoencoder(ViT(replace(spec, classes=0)), facts.target, facts.config)
    parameters = model.named_parameters()
    return {n: tuple(p.shape) for n, p in parameters if n.split(".")[0] not in ("encoder", "head")}


def _table(spec: ViTSpec, facts: DecoderFacts, root: str) -> Table:
    shapes = decoder_shapes(spec, facts)
    light = decoder_spec(spec, facts.config)
    return fill_rows(_rows(light, root), shapes, f"MAE's decoder does not support {{}} of {spec}")


def _rows(light: ViTSpec, root: str) -> Iterator[Row]:
    mask = "decoder.mask_token" if root == _HF else "mask_token"
    yield "mask", Part(mask, (1, 1, light.width))
    yield from linear_rows("enter", f"{root}embed")
    yield from linear_rows("predict", f"{root}pred")
    if root == _HF:
        names = replace(VIT, layer=f"{_HF}layers", last=f"{_HF}norm")
        yield from hf_encoder_rows(light, names, "")
        return
    for ours, *parts in encoder_rows(light):
        named = (f"{root}{part}" for part in parts if isinstance(part, str))
        yield ours, *named


def write_decoder(
    decoder: Decoder, spec: ViTSpec, encoder: Mapping[str, Tensor]
) -> tuple[Tensors, dict[str, Any]]:
    """Give the tensors of transformers' ViTMAE, and what its config says beside the encoder's.

    A decoder that predicts other than pixels has no place there, so that the encoder goes alone.
    """
    if "pixels" not in decoder.facts.target:
        return dict(encoder), {}
    tensors = {f"vit.{key}": value for key, value in encoder.items()}
    tensors |= write_table(_table(spec, decoder.facts, _HF), decoder.tensors)
    made = decoder.facts.config
    like = tensors[f"{_HF}embed.weight"]
    table = decoder.tensors.get("table")
    positions = _positions(spec, made.width) if table is None else table[None]
    tensors[f"{_HF}pos_embed"] = positions.to(like)
    return tensors, {
        "architectures": ["ViTMAEForPreTraining"],
        "model_type": "vit_mae",
        "decoder_hidden_size": made.width,
        "decoder_num_hidden_layers": made.depth,
        "decoder_num_attention_heads": made.heads,
        "decoder_intermediate_size": 4 * made.width,
        "norm_pix_loss": decoder.facts.target == "normalized-pixels",
    }
