"""What a model knows about its own mistakes, and how its folder keeps it.

The numbers for people are in model.json, the others in `uncertainty.safetensors` beside it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated

import torch
from torch import Tensor

from vitrail.config import InputError, NonNegativeInt, Range, UnitFloat
from vitrail.weights.files.tensor_files import open_weights, sha256_of
from vitrail.weights.files.write_safetensors import save_safetensors

FILE = "uncertainty.safetensors"


@dataclass(frozen=True, kw_only=True)
class UncertaintyFacts:
    """What model.json says of it."""

    temperature: Annotated[float, Range("[0.0001, 10000]")]
    """Probabilities are softmax(logits / temperature)."""
    ece_before: UnitFloat
    """Expected calibration error on the held-out images without a temperature."""
    ece_after: UnitFloat
    """The same with it, each fifth of the images by the temperature of the others."""
    images: NonNegativeInt
    """Held-out images that all this was evaluated on."""
    data: str
    """Where they are from."""
    why: str = ""
    """Why the temperature is 1, where it is."""
    sha256: str = ""
    """Hash of uncertainty.safetensors."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Uncertainty:
    """How sure a model was of images that it was not trained on, and how often it was right."""

    facts: UncertaintyFacts
    confidence: Tensor
    """(n) the largest softmax probability without temperature, float64."""
    correct: Tensor
    """(n) whether the most likely class was the image's own, uint8."""
    means: Tensor
    """(classes, width) the mean features of each class's training images, of length 1; (0, 0)
    where nobody knows them."""
    distances: Tensor
    """(n) cosine distance of the held-out images' features from the nearest mean; or (0)."""
    hashes: Tensor | None = None
    """Hashes of the held-out images (data/trained_on.py), int64; None where nobody kept them."""

    @property
    def temperature(self) -> float:
        """What logits are divided by."""
        return self.facts.temperature


_TENSORS = tuple(f.name for f in fields(Uncertainty) if f.name not in ("facts", "hashes"))


def write_uncertainty(uncertainty: Uncertainty, folder: Path) -> UncertaintyFacts:
    """Write the tensors into a folder; return the facts with their hash."""
    tensors = {name: getattr(uncertainty, name).contiguous() for name in _TENSORS}
    if uncertainty.hashes is not None:
        tensors["hashes"] = uncertainty.hashes
    save_safetensors(tensors, folder / FILE, {"format": "pt"})
    return replace(uncertainty.facts, sha256=sha256_of(folder / FILE))


def read_uncertainty(facts: UncertaintyFacts, folder: Path, classes: int) -> Uncertainty:
    """Read the tensors, whose checksum and shapes must be right."""
    path = folder / FILE
    if not path.exists():
        raise InputError(f"{path}: is missing; the folder is not whole")
    if sha256_of(path) != facts.sha256:
        raise InputError(f"{path}: is damaged (checksum): copy or download it again")
    tensors = open_weights(path).read()
    if set(tensors) - {"hashes"} != set(_TENSORS):
        raise InputError(f"{path}: expected the tensors {', '.join(_TENSORS)}")
    found = Uncertainty(facts=facts, **tensors)
    check_uncertainty(found, classes)
    return found


def check_uncertainty(found: Uncertainty, classes: int) -> None:
    """Refuse what does not belong to a model of so many classes."""
    n = len(found.confidence)
    known = found.means.ndim == 2 and len(found.means) in (0, classes)
    same = found.correct.shape == (n,) and found.distances.shape in ((n,), (0,))
    if not (known and same and n == found.facts.images):
        raise InputError("its uncertainty was measured on another model; calibrate it again")
    if not all(torch.isfinite(each).all() for each in (found.confidence, found.distances)):
        raise InputError("its uncertainty is not finite; calibrate it again")
