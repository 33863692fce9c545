"""Losses of a classifier: how far its logits are from labels, and from a teacher's logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch.nn.functional as F
from torch import Tensor

from vitrail.config import PositiveFloat, Range, UnitFloat, UsedIf, validate

ClassLoss = Literal["softmax", "sigmoid"]
Reduction = Literal["sum", "mean"]
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
    reduction: Annotated[Reduction, UsedIf("kind", "sigmoid")] = "sum"
    """Whether a `sigmoid` loss is summed over classes (big_vision, AugReg) or their mean (torch's
    BCEWithLogitsLoss, timm, DeiT III)."""
    head_bias: Annotated[float, Range("[-100, 100]"), UsedIf("kind", "sigmoid")] = 0.0
    """First bias of a fresh head; -6.9 makes a `sigmoid` begin with 1 in 1,000 (big_vision)."""

    def __post_init__(self) -> None:
        validate(self, "loss")


@dataclass(frozen=True, kw_only=True)
class DistillConfig:
    """A teacher, whose answers are learned besides the labels: class by class with a sigmoid."""

    teacher: str
    """Its source of weights; it sees the same pixels, with its own mean and std."""
    alpha: UnitFloat = 0.5
    """Fraction of the loss that is the distance from the teacher's answers."""
    temperature: Annotated[PositiveFloat, UsedIf("hard", False)] = (
        3.0  # DeiT's (arXiv 2012.12877, section 4)
    )
    """What logits are divided by before they are compared; the higher, the softer."""
    hard: bool = False
    """Learn the teacher's most likely class (DeiT's hard form), which has no temperature; with
    several labels, those that it finds more likely than not."""
    reduction: Annotated[Reduction, UsedIf("hard", False)] = "sum"
    """Whether the distance from the teacher's answers is summed over classes, as a divergence is,
    or their mean (DeiT's code)."""

    def __post_init__(self) -> None:
        validate(self, "distill")


def label_loss(
    logits: Tensor,
    targets: Tensor,
    kind: ClassLoss,
    weights: Tensor | None = None,
    *,
    reduction: Reduction = "sum",
) -> Tensor:
    """Return each row's cross-entropy with soft targets, in float32, summed over classes.

    That of sigmoids may be the mean over classes.

    `weights` (classes) multiply what each class has of the targets, as torch's `weight` of softmax
    and `pos_weight` of sigmoid.
    """
    logits = logits.float()
    if kind == "softmax":
        targets = targets if weights is None else targets * weights
        return -(targets * F.log_softmax(logits, dim=-1)).sum(-1)
    each = F.binary_cross_entropy_with_logits(logits, targets, pos_weight=weights, reduction="none")
    return each.mean(-1) if reduction == "mean" else each.sum(-1)


def teacher_loss(
    logits: Tensor, taught: Tensor, config: DistillConfig, kind: ClassLoss = "softmax"
) -> Tensor:
    """Return each row's distance from a teacher's logits (arXiv 1503.02531).

    With a sigmoid each class is a question of its own: binary distances, summed over classes.
    """
    heat = config.temperature
    if kind == "sigmoid":
        if config.hard:
            return label_loss(logits, (taught > 0).to(logits.dtype), kind)
        theirs, own = taught / heat, logits / heat
        there = theirs.sigmoid() * (F.logsigmoid(theirs) - F.logsigmoid(own))
        gone = (-theirs).sigmoid() * (F.logsigmoid(-theirs) - F.logsigmoid(-own))
        each = there + gone
        return (each.mean(-1) if config.reduction == "mean" else each.sum(-1)) * heat**2
    if config.hard:
        return F.cross_entropy(logits, taught.argmax(-1), reduction="none")
    theirs, own = (F.log_softmax(each / heat, -1) for each in (taught, logits))
    # The square keeps the gradient's size at any temperature.
    each = theirs.exp() * (theirs - own)
    return (each.mean(-1) if config.reduction == "mean" else each.sum(-1)) * heat**2
