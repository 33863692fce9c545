"""Tiny checkpoints, and whether two are the same."""

from dataclasses import replace

import torch
from torch import Tensor

from vitrail.data.transforms.preprocess import Preprocess
from vitrail.models import Spec, ViTSpec, build
from vitrail.weights.checkpoint import Checkpoint, Provenance

SMALL = ViTSpec(depth=1, width=8, heads=2, mlp=16, patch=(8, 8), image=(16, 16), classes=2)


def make_checkpoint(
    spec: Spec = SMALL, seed: int = 0, dtype: torch.dtype = torch.float32
) -> Checkpoint:
    """Make a model of random numbers, with all that belongs to it."""
    torch.manual_seed(seed)
    state = build(spec).state_dict()
    tensors = {name: torch.randn(tensor.shape).to(dtype) for name, tensor in state.items()}
    size = Preprocess(
        size=spec.image, mean=(0.5,) * 3, std=(0.1, 0.2, 1 / 3), interpolation="bicubic",
        fit="crop", crop=0.875,
    )  # fmt: skip
    source = Provenance(source="timm:x", sha256="0" * 64, format="timm", changes=("a", "b"))
    names = tuple(f'class "{i}" é猫\n' for i in range(spec.classes))
    return Checkpoint(spec=spec, tensors=tensors, classes=names, preprocess=size, provenance=source)


def same(one: Checkpoint, two: Checkpoint) -> bool:
    rest = replace(one, tensors={}) == replace(two, tensors={})
    return rest and equal(one.tensors, two.tensors)


def equal(one: dict[str, Tensor], two: dict[str, Tensor]) -> bool:
    return one.keys() == two.keys() and all(
        one[name].dtype == two[name].dtype and torch.equal(one[name], two[name]) for name in one
    )
