"""Zero-shot classifiers: an image tower whose head is made of the embeddings of class names.

The result is an ordinary model: the image tower, its projection, features of length 1, and a linear
head of which each row is a class's text embedding times the model's scale.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.config import InputError
from vitrail.console import show_progress
from vitrail.download import fetch_from_hub
from vitrail.models.spec import ViTSpec
from vitrail.models.text.text_tower import TextTower
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.files.tensor_files import check_numbers, open_weights
from vitrail.weights.load import read_weights, unwrap_names
from vitrail.weights.loaded import LoadedModel, as_model
from vitrail.weights.sources.remote_sources import hub_repository
from vitrail.weights.sources.resolve import resolve
from vitrail.weights.sources.resolved import Resolved, read_json
from vitrail.weights.text.prompts import Texts, parse_classes, parse_templates
from vitrail.weights.text.text_formats import TextWeights, read_text_weights
from vitrail.weights.text.tokenizer import SETTINGS, TOKENIZER, TextTokenizer, load_tokenizer

BATCH = 64
"""Texts in a forward pass."""


@dataclass(frozen=True)
class TextEncoder:
    """A text tower with its tokenizer."""

    tower: TextTower
    tokenizer: TextTokenizer

    @torch.inference_mode()
    def embed(self, texts: Sequence[str]) -> Tensor:
        """Compute the embeddings of texts, of length 1 (texts, output)."""
        parts = []
        with show_progress("texts", len(texts)) if len(texts) > BATCH else nullcontext() as report:
            for start in range(0, len(texts), BATCH):
                batch = texts[start : start + BATCH]
                parts.append(self.tower(self.tokenizer.encode(batch)))
                if report is not None:
                    report(start + len(batch))
        return torch.cat(parts)

    def embed_classes(self, names: Sequence[str], templates: Sequence[str]) -> Tensor:
        """Compute an embedding per class: the mean over templates, brought to length 1 (CLIP)."""
        texts = [template.replace("{}", name) for name in names for template in templates]
        embedded = self.embed(texts).unflatten(0, (len(names), len(templates)))
        return F.normalize(embedded.mean(1), dim=-1).clone()


def load_text_encoder(source: str | os.PathLike[str]) -> TextEncoder:
    """Load the text tower of a source, which need not hold an image tower, and its tokenizer."""
    found = resolve(os.fspath(source))
    _refuse_folder(found)
    tensors = unwrap_names(open_weights(found.path).read())
    weights = read_text_weights(tensors, found.config, activation="quick-gelu", source=found.source)
    return _make_encoder(found, weights)


def zero_shot_model(
    source: str | os.PathLike[str], classes: Texts, *, templates: Texts | None = None
) -> LoadedModel:
    """Load a CLIP or SigLIP as a classifier of classes that are given as text.

    `classes` and `templates` are lists, or text as on the command line: "cat,dog" or a file with
    one per line; "a photo of a {}.", a file, or "clip-7".
    """
    names = parse_classes(classes)
    return as_model(zero_shot_checkpoint(os.fspath(source), names, names, templates=templates))


def zero_shot_checkpoint(
    source: str, classes: Sequence[str], words: Sequence[str], *, templates: Texts | None = None
) -> Checkpoint:
    """Read the two towers of a source and make a head of `words`, what the classes are in text."""
    prompts = parse_templates(templates)
    found = resolve(source)
    _refuse_folder(found)
    file = open_weights(found.path)
    checkpoint = read_weights(file, found, hashed=False)
    spec = checkpoint.spec
    if not isinstance(spec, ViTSpec):
        raise InputError(f"{source} is a {spec.family} model; only ViTs have text towers")
    weights = read_text_weights(
        unwrap_names(file.read()), found.config, activation=spec.activation, source=source
    )
    check_numbers(weights.tensors, source)
    if (size := spec.classes or spec.pooled) != weights.spec.output:
        raise InputError(
            f"{source} embeds images in {size} numbers and texts in {weights.spec.output}; "
            "expected the same space"
        )
    embedded = _make_encoder(found, weights).embed_classes(words, prompts)
    return _attach_head(checkpoint, spec, classes, embedded, weights, len(prompts))


def _attach_head(
    checkpoint: Checkpoint,
    spec: ViTSpec,
    classes: Sequence[str],
    embedded: Tensor,
    weights: TextWeights,
    templates: int,
) -> Checkpoint:
    """Turn the image tower's projection into the head's first layer, and add the last."""
    tensors = {name: tensor.float() for name, tensor in checkpoint.tensors.items()}
    projection = {}
    if spec.classes:
        for leaf in ("weight", "bias") if spec.head_bias else ("weight",):
            tensors[f"head.hidden.{leaf}"] = tensors.pop(f"head.output.{leaf}")
        projection = {"representation": spec.classes, "representation_bias": spec.head_bias}
        projection["representation_tanh"] = False
    tensors["head.output.weight"] = weights.scale * embedded
    if weights.bias is not None:
        tensors["head.output.bias"] = torch.full((len(classes),), weights.bias)
    changes = {"unit_features": True, "classes": len(classes)}
    changes["head_bias"] = weights.bias is not None
    said = f"zero-shot head: {len(classes)} classes, {templates} prompt templates"
    provenance = checkpoint.provenance
    return replace(
        checkpoint,
        spec=replace(spec, **projection, **changes),
        tensors=tensors,
        classes=tuple(classes),
        activation="softmax" if weights.bias is None else "sigmoid",
        provenance=provenance and replace(provenance, changes=(*provenance.changes, said)),
    )


def _refuse_folder(found: Resolved) -> None:
    if found.path.is_dir():
        raise InputError(
            f"{found.source} is a model folder of vitrail's, which holds no text tower; "
            "give the CLIP or SigLIP that it came from"
        )


def _make_encoder(found: Resolved, weights: TextWeights) -> TextEncoder:
    tokenizer = load_tokenizer(
        _find_beside(found, TOKENIZER),
        weights.spec,
        settings=read_json(_find_beside(found, SETTINGS)),
        config=found.config,
        source=found.source,
    )
    return TextEncoder(weights.build(), tokenizer)


def _find_beside(found: Resolved, name: str) -> Path | None:
    """Find a file that was published with the weights: in their folder, or on the hub."""
    path = found.path.parent / name
    hub = hub_repository(found.source)
    if path.is_file() or hub is None:
        return path if path.is_file() else None
    return fetch_from_hub(hub[0], name, revision=hub[1])
