"""Losses of a classifier: how far its logits are from labels, and from a teacher's logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch.nn.functional as F
from torch import Tensor

from vitrail.config import PositiveFloat, Range, UnitFloat, UsedIf, validate

ClassLoss = Literal["softmax", "sigmoid"]
LossKind = Literal["softmax", "sigmoid", "l1", "l2", "huber"]


@dataclass(frozen=True, kw_only=True)
class LossConfig:
    """How far a prediction is from its label."""

    kind: LossKind | None = None
    """`softmax` for one label per image, `sigmoid` for several or none (the paper, on JFT); what
    the data has, unless given. For regression `l2`, unless given `l1` or `huber`, of numbers that
    are scaled to a std of 1."""
    smoothing: Annotated[float, Range("[0, 1)")] = 0.0
    """Fraction of each label that is spread over all classes."""

    def __post_init__(self) -> None:
        validate(self, "loss")


@dataclass(frozen=True, kw_only=True)
class DistillConfig:
    """A teacher, whose answers are learned besides the labels."""

    teacher: str
    """Its source of weights; it sees the same pixels, with its own mean and std."""
    alpha: UnitFloat = 0.5
    """Fraction of the loss that is the distance from the teacher's answers."""
    temperature: Annotated[PositiveFloat, UsedIf("hard", False)] = (
        3.0  # DeiT's (arXiv 2012.12877, section 4)
    )
    """What logits are divided by before they are compared; the higher, the softer."""
    hard: bool = False
    """Learn the teacher's most likely class (DeiT's hard form), which has no temperature."""

    def __post_init__(self) -> None:
        validate(self, "distill")


def label_loss(
    logits: Tensor, targets: Tensor, kind: ClassLoss, weights: Tensor | None = None
) -> Tensor:
    """Return each row's cross-entropy with soft targets, in float32, summed over classes.

    `weights` (classes) multiply what each class has of the targets, as torch's `weight` of softmax
    and `pos_weight` of sigmoid.
    """
    logits = logits.float()
    if kind == "softmax":
        targets = targets if weights is None else targets * weights
        return -(targets * F.log_softmax(logits, dim=-1)).sum(-1)
    return F.binary_cross_entropy_with_logits(
        logits, targets, pos_weight=weights, reduction="none"
    ).sum(-1)


def teacher_loss(logits: Tensor, taught: Tensor, config: DistillConfig) -> Tensor:
    """Return each row's distance from a teacher's logits (arXiv 1503.02531)."""
    if config.hard:
        return F.cross_entropy(logits, taught.argmax(-1), reduction="none")
    heat = config.temperature
    theirs, own = (F.log_softmax(each / heat, -1) for each in (taught, logits))
    # The square keeps the gradient's size at any temperature.
    return (theirs.exp() * (theirs - own)).sum(-1) * heat**2
