"""Writers of other projects' formats: each puts a model into a file or folder."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrail.config import InputError, suggest
from vitrail.models import BiT, BiTSpec, ViT, ViTSpec, spec_to_dict
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.files.write_safetensors import save_safetensors
from vitrail.weights.formats.bigvision import BIGVISION
from vitrail.weights.formats.bit_tf import BIT_TF
from vitrail.weights.formats.format import Format
from vitrail.weights.formats.google import GOOGLE
from vitrail.weights.formats.huggingface.huggingface import format_for
from vitrail.weights.formats.huggingface.huggingface_config import (
    write_hf_config,
    write_hf_preprocess,
)
from vitrail.weights.formats.keymap import Tensors, write_table
from vitrail.weights.formats.mae_decoder import write_decoder
from vitrail.weights.formats.timm.timm import TIMM
from vitrail.weights.formats.timm.timm_config import write_timm_config
from vitrail.weights.formats.torchvision import TORCHVISION
from vitrail.weights.identify import SPEC_KEY
from vitrail.weights.loaded import LoadedModel, as_checkpoint
from vitrail.weights.model_folder import save_folder
from vitrail.weights.multilabel import MULTI_LABEL, REGRESSION, multilabel_metadata


def to_state_dict(model: LoadedModel | ViT | BiT, format: str) -> Tensors:
    """Give a model's weights under another project's names: timm, hf, torchvision or google."""
    checkpoint = as_checkpoint(model)
    theirs = {
        "timm": TIMM,
        "hf": format_for(checkpoint.spec),
        "torchvision": TORCHVISION,
        "google": GOOGLE,
    }
    if format not in theirs:
        hint = suggest(format, theirs)
        raise InputError(f"no format {format!r}; there are: {', '.join(theirs)}{hint}")
    return _tensors(checkpoint, theirs[format])


def _tensors(checkpoint: Checkpoint, format: Format) -> Tensors:
    spec = checkpoint.spec
    return format.denormalize(write_table(format.table(spec), checkpoint.tensors), spec)


def _write_npz(checkpoint: Checkpoint, out: Path, format: Format, prefix: str = "") -> None:
    theirs = _tensors(checkpoint, format)
    arrays = {f"{prefix}{key}": _array(value) for key, value in theirs.items()}
    with out.open("wb") as file:
        np.savez(file, **arrays)  # pyright: ignore[reportArgumentType]
    with zipfile.ZipFile(out, "a") as archive:  # where no other reader looks
        said = {SPEC_KEY: spec_to_dict(checkpoint.spec), **multilabel_metadata(checkpoint)}
        archive.comment = json.dumps(said).encode()


def _array(tensor: Tensor) -> np.ndarray:
    """Give a numpy array; bfloat16, which numpy lacks, becomes float32 and loses nothing."""
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()


def _write_google(checkpoint: Checkpoint, out: Path) -> None:
    published = isinstance(checkpoint.spec, BiTSpec) and checkpoint.spec.pool_padding == "zeros"
    _write_npz(checkpoint, out, BIT_TF if published else GOOGLE)


def _write_bigvision(checkpoint: Checkpoint, out: Path) -> None:
    _write_npz(_fold_class_position(checkpoint), out, BIGVISION, prefix="params/")


def _fold_class_position(checkpoint: Checkpoint) -> Checkpoint:
    """Add the class token's position to the token itself, as big_vision does with old files."""
    spec = checkpoint.spec
    if not isinstance(spec, ViTSpec) or spec.position != "learned-1d" or spec.positioned != 1:
        return checkpoint
    table = checkpoint.tensors["positions.0.table"]
    folded = {"class_token": checkpoint.tensors["class_token"] + table[0]}
    folded["positions.0.table"] = table[1:]
    tensors = {**checkpoint.tensors, **folded}
    return replace(checkpoint, spec=replace(spec, class_position=False), tensors=tensors)


def _write_timm(checkpoint: Checkpoint, out: Path) -> None:
    config = write_timm_config(checkpoint.spec, checkpoint.preprocess, checkpoint.classes)
    tensors = _tensors(checkpoint, TIMM)
    _write_hub_folder(checkpoint, out, tensors, {"config.json": config})


def _write_hf(checkpoint: Checkpoint, out: Path) -> None:
    config = write_hf_config(checkpoint.spec, checkpoint.classes)
    if checkpoint.activation == "sigmoid":
        config |= MULTI_LABEL
    elif checkpoint.activation == "none":
        config |= REGRESSION
    spec, tensors = checkpoint.spec, _tensors(checkpoint, format_for(checkpoint.spec))
    if checkpoint.decoder is not None and isinstance(spec, ViTSpec):
        tensors, said = write_decoder(checkpoint.decoder, spec, tensors)
        config |= said
    extra = {"config.json": config}
    if checkpoint.preprocess is not None:
        extra["preprocessor_config.json"] = write_hf_preprocess(checkpoint.preprocess)
    _write_hub_folder(checkpoint, out, tensors, extra)


def _write_hub_folder(
    checkpoint: Checkpoint, out: Path, tensors: Tensors, extra: dict[str, dict[str, Any]]
) -> None:
    out.mkdir()
    spec = json.dumps(spec_to_dict(checkpoint.spec))
    metadata = {"format": "pt", SPEC_KEY: spec, **multilabel_metadata(checkpoint)}
    save_safetensors(tensors, out / "model.safetensors", metadata)
    for name, data in extra.items():
        (out / name).write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")


def _write_torchvision(checkpoint: Checkpoint, out: Path) -> None:
    torch.save(_tensors(checkpoint, TORCHVISION), out)


WRITERS: dict[str, Callable[[Checkpoint, Path], None]] = {
    "vitrail": save_folder,
    "npz": _write_google,
    "bigvision": _write_bigvision,
    "timm": _write_timm,
    "hf": _write_hf,
    "torchvision": _write_torchvision,
}
"""The formats that a model can be written in, by the word that `--to` takes."""
