"""A teacher: a trained model that answers for the inputs of another one."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch
from torch import Tensor

from vitrail.config import InputError
from vitrail.data.transforms.preprocess import Preprocess
from vitrail.training.losses import ClassLoss
from vitrail.weights.load import load
from vitrail.weights.trained_on_record import lineage

log = logging.getLogger("vitrail")


class Teacher:
    """A frozen model that takes a student's inputs and gives logits of the student's classes."""

    def __init__(
        self,
        source: str,
        *,
        classes: Sequence[str],
        preprocess: Preprocess,
        device: torch.device,
        loss: ClassLoss = "softmax",
    ) -> None:
        """Load it at the student's resolution; refuse one that does not know its classes.

        A student whose `loss` is binary needs a teacher that answers for each class by itself.
        """
        loaded = load(source, image=preprocess.size)
        if loss == "sigmoid" and loaded.activation != "sigmoid":
            raise InputError(
                f"the teacher {source} chooses one class among all (softmax), and the student "
                "learns each by itself (sigmoid); take a teacher of several labels, or "
                "--loss.kind softmax"
            )
        model, own = loaded.model, loaded.preprocess or preprocess
        if model.spec.channels != preprocess.channels:
            said = f"takes {model.spec.channels} channels, the student {preprocess.channels}"
            raise InputError(f"the teacher {source} {said}; take one of the same kind")
        self._order = _find_classes(source, loaded.classes, model.spec.classes, classes)
        self._model = model.to(device).eval().requires_grad_(False)
        self.spec = model.spec
        self.trained_on = lineage(loaded.trained_on, loaded.provenance)
        # The student's x is (pixel - mean) / std; the teacher wants the same pixel, its own way.
        ours, theirs = (
            torch.tensor([each.mean, each.std], device=device)[:, None, :, None, None]
            for each in (preprocess, own)
        )
        self._scale = ours[1] / theirs[1]
        self._shift = (ours[0] - theirs[0]) / theirs[1]
        if loaded.provenance is not None:
            for change in loaded.provenance.changes:
                log.info("teacher: %s", change)

    def __call__(self, inputs: Tensor) -> Tensor:
        """Answer for a batch of the student's inputs."""
        logits = self._model(inputs * self._scale + self._shift)
        return logits if self._order is None else logits[:, self._order]


def _find_classes(
    source: str, named: Sequence[str] | None, count: int, wanted: Sequence[str]
) -> list[int] | None:
    """Say which of a teacher's outputs are the student's classes; None for all in their order.

    One that does not name its classes is believed to have the same, if it has as many.
    """
    if named is None and count == len(wanted):
        log.warning("the teacher %s does not name its %d classes; they are taken as the data's, "
                    "in their order", source, count)  # fmt: skip
        return None
    missing = [name for name in wanted if name not in (named or ())]
    if missing:
        said = f"tells {count:,} classes apart, but not {missing[0]!r}"
        raise InputError(
            f"the teacher {source} {said}; fine-tune it on the data first (vitrail finetune)"
        )
    assert named is not None
    return None if tuple(named) == tuple(wanted) else [list(named).index(name) for name in wanted]
