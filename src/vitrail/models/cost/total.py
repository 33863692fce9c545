"""A model's cost, in closed form from its spec: parameters, multiply-adds, activation memory.

Every total is a sum over rows, one per layer. Nothing is built or run, and torch is not imported.
Conventions: a multiply-add is one MAC
and two FLOPs; matrix products, convolutions and attention count, element-wise work does not; a
training step costs three forward passes (Table 6 of the paper fits this).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from vitrail.config import InputError
from vitrail.models.cost.resnet_rows import resnet_costs
from vitrail.models.cost.rows import ModelRows, Row
from vitrail.models.cost.vit_rows import vit_costs
from vitrail.models.names import NAMES, as_size, as_spec, parse
from vitrail.models.spec import BiTSpec, Size, Spec
from vitrail.result import Result, ResultTable

FLOAT = 4  # bytes of a float32


@dataclass(frozen=True, kw_only=True)
class Cost(Result):
    """A model's cost in float32: activations of the whole batch, everything else per image."""

    name: str
    classes: int
    image: Size
    batch: int
    tokens: int
    parameters: int
    macs: int
    flops: int
    training_flops: int
    """Operations of one image's forward and backward pass."""
    parameter_bytes: int
    training_state_bytes: int
    """Weights, gradients and Adam's two moments."""
    activation_bytes: int
    """What one training step keeps for its backward pass."""
    checkpointed_bytes: int
    """The same with gradient checkpointing: the blocks' inputs, and the insides of one."""
    rows: tuple[Row, ...]

    def summary(self) -> Iterator[ResultTable | str]:
        """Show the layers, then the totals."""
        rows = []
        for row in self.rows:
            layer = row.layer if row.repeats == 1 else f"{row.layer} x {row.repeats}"
            kept = FLOAT * (self.batch * row.kept + row.kept_once) / 2**20
            numbers = f"{row.parameters:,}", f"{row.macs / 1e6:,.1f}", f"{kept:,.1f}"
            rows.append((layer, " x ".join(map(str, row.output)), *numbers))
        yield ResultTable(("layer", "output", "parameters", "MMACs", "kept MiB"), rows)
        height, width = self.image
        yield f"{self.name}, {self.classes} classes, {height}x{width} images, {self.tokens} tokens"
        yield f"parameters  {self.parameters:,} ({_bytes(self.parameter_bytes)} as float32)"
        yield f"forward     {self.macs / 1e9:.3f} GMACs per image ({self.flops / 1e9:.3f} GFLOPs)"
        yield f"training    {self.training_flops / 1e9:.3f} GFLOPs per image, forward and backward"
        state, kept = _bytes(self.training_state_bytes), _bytes(self.activation_bytes)
        less = _bytes(self.checkpointed_bytes)
        yield (
            f"memory      {state} weights, gradients and Adam; {kept} activations at batch "
            f"{self.batch} ({less} with checkpointing)"
        )


@dataclass(frozen=True)
class ModelList(Result):
    """The models that have a name of their own."""

    models: tuple[Cost, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain data: one row per model."""
        keys = ("name", "parameters", "macs", "tokens")
        return {"models": [{key: getattr(cost, key) for key in keys} for cost in self.models]}

    def summary(self) -> Iterator[ResultTable]:
        """Give one row per model."""
        rows = [
            (cost.name, f"{cost.parameters:,}", f"{cost.macs / 1e9:.3f}", str(cost.tokens))
            for cost in self.models
        ]
        yield ResultTable(("model", "parameters", "GMACs", "tokens"), rows)


def list_models() -> ModelList:
    """List the models of the paper and its successors; the grammar of names knows many more."""
    return ModelList(tuple(cost_of(parse(name)) for name in NAMES))


def describe(
    model: str | Spec,
    *,
    classes: int | None = None,
    image: str | int | Size | None = None,
    batch: int = 1,
) -> Cost:
    """Compute a model's cost, layer by layer, without building it.

    `image` is another size than the name's, 384 or "384x512"; `batch` counts for the memory.
    """
    if batch < 1:
        raise InputError(f"--batch must be at least 1, got {batch}")
    spec = as_spec(model)
    spec = spec if classes is None else replace(spec, classes=classes)
    size = as_size(image)
    return cost_of(spec, image=size, batch=batch)


def cost_of(spec: Spec, *, image: Size | None = None, batch: int = 1) -> Cost:
    """Sum up a model's cost for images of a size (the spec's by default)."""
    at = spec if image is None else replace(spec, image=image)
    rows = tuple(chain(*model_rows(at)))
    if at != spec:  # position tables keep their trained size; only the work changes
        pairs = zip(rows, chain(*model_rows(spec)), strict=True)
        rows = tuple(replace(row, parameters=own.parameters) for row, own in pairs)
    parameters = sum(row.parameters for row in rows)
    macs = sum(row.macs for row in rows)
    return Cost(
        name=spec.name,
        classes=spec.classes,
        image=at.image,
        batch=batch,
        tokens=at.tokens,
        parameters=parameters,
        macs=macs,
        flops=2 * macs,
        training_flops=6 * macs,
        parameter_bytes=FLOAT * parameters,
        training_state_bytes=4 * FLOAT * parameters,
        activation_bytes=FLOAT * count_kept(rows, batch),
        checkpointed_bytes=FLOAT * count_kept(rows, batch, checkpointing=1),
        rows=rows,
    )


def training_exaflops(spec: Spec, *, images: int, epochs: float) -> float:
    """Return the compute of a training run in exaFLOPs, as Table 6 of the paper counts it."""
    return cost_of(spec).training_flops * images * epochs / 1e18


def _bytes(count: int) -> str:
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def model_rows(spec: Spec) -> ModelRows:
    """List a model's layers from the input to the head."""
    return resnet_costs(spec) if isinstance(spec, BiTSpec) else vit_costs(spec)


def count_kept(rows: Sequence[Row], batch: int, *, checkpointing: int = 0) -> int:
    """Count the numbers that a batch keeps for its backward pass.

    With checkpointing they are, of every so many-th block, its input and, while it is computed
    again, its inside.
    """
    total = inside = 0
    for row, again in zip(rows, count_recomputed(rows, checkpointing), strict=True):
        each = (batch * row.kept + row.kept_once) // row.repeats
        total += batch * row.kept + row.kept_once
        if again:
            total += again * (batch * row.block_input // row.repeats - each)
            inside = max(inside, each)
    return total + inside


def count_recomputed(rows: Sequence[Row], checkpointing: int) -> list[int]:
    """Count how many blocks of each row are computed again, if every so many-th of all is."""
    found, before = list[int](), 0
    for row in rows:
        count = row.repeats if checkpointing and row.block_input else 0
        every = max(checkpointing, 1)
        found.append(-(-(before + count) // every) + -before // every)
        before += count
    return found
