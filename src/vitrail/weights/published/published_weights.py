"""One published checkpoint as a record. Torch is not imported."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vitrail.data.transforms.preprocess import Preprocess
from vitrail.models.cost.total import cost_of
from vitrail.models.names import parse
from vitrail.models.spec import Spec

Use = Literal["classify", "fine-tune", "features", "zero-shot"]
"""What a checkpoint is best for: its own classes; a new task; features without training (kNN, a
linear head); classes by their names, with its text tower."""


@dataclass(frozen=True, kw_only=True)
class PublishedWeights:
    """One checkpoint that somebody published."""

    source: str
    """Where `vitrail.weights.sources.resolve` finds it."""
    model: str
    """Its model in our grammar of names."""
    data: str
    """What it was trained on, in order."""
    top1: float | None
    """Published ImageNet top-1 accuracy in percent."""
    cited: str
    """Who published the accuracy, and what was measured; empty without one."""
    license: str
    preprocess: Preprocess
    use: Use
    """What it is recommended for."""
    access: str = ""
    """What has to be done before it can be downloaded; empty for nothing."""

    @property
    def spec(self) -> Spec:
        """The model's record."""
        return parse(self.model)

    @property
    def resolution(self) -> tuple[int, int]:
        """Height and width that the file's position embeddings are made for."""
        return self.spec.image

    @property
    def parameters(self) -> int:
        """Number of its parameters."""
        return cost_of(self.spec).parameters

    @property
    def megabytes(self) -> float:
        """Size of its parameters as float32, in millions of bytes; the file is hardly larger."""
        return cost_of(self.spec).parameter_bytes / 1e6


def published(
    source: str,
    model: str,
    data: str,
    preprocess: Preprocess,
    top1: float | None = None,
    cited: str = "",
    license: str = "Apache-2.0",
    use: Use | None = None,
    access: str = "",
) -> PublishedWeights:
    """Make a record; a head of ImageNet's classes is for them, any other is for fine-tuning."""
    own: Use = "classify" if parse(model).classes == 1000 else "fine-tune"
    return PublishedWeights(
        source=source,
        model=model,
        data=data,
        top1=top1,
        cited=cited if top1 is not None else "",
        license=license,
        preprocess=preprocess,
        use=use or own,
        access=access,
    )
