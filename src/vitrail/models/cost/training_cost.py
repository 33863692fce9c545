"""The cost of training in closed form: by task, by what is trained, with a teacher or without.

A product costs its multiply-adds once more for the gradient of its input, where anything before it
is trained, and once more for the gradient of its weights, where they are trained.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, Protocol

from vitrail.models.cost.rows import ModelRows, Row, dense_row
from vitrail.models.cost.total import FLOAT, cost_of, count_kept, count_recomputed, model_rows
from vitrail.models.cost.vit_rows import block_row, embedding_rows, norm_row
from vitrail.models.pretraining.mim import (
    MIMConfig,
    count_chosen,
    decoder_spec,
    encoder_spec,
    target_size,
)
from vitrail.models.spec import Spec

TaskName = Literal["classification", "regression", "masked-patches", "mae"]


class Tuning(Protocol):
    """Which weights are trained; `TuneConfig` is one."""

    @property
    def mode(self) -> Literal["all", "head", "last", "lora"]: ...  # noqa: D102
    @property
    def blocks(self) -> int: ...  # noqa: D102
    @property
    def rank(self) -> int: ...  # noqa: D102
    @property
    def targets(self) -> Sequence[str]: ...  # noqa: D102


@dataclass(frozen=True, kw_only=True)
class TrainingCost:
    """The cost of a training step: operations per image, activations of the whole batch."""

    macs: int
    """Multiply-adds of the model's forward pass."""
    flops: int
    """Operations of forward, backward, recomputation by checkpointing, and the teacher."""
    activation_bytes: int
    """What is kept for the backward pass, as float32."""


def training_cost(
    spec: Spec,
    *,
    task: TaskName = "classification",
    mim: MIMConfig | None = None,
    tune: Tuning | None = None,
    teacher: Spec | None = None,
    checkpointing: int = 0,
    batch: int = 1,
) -> TrainingCost:
    """Compute the cost of training a model, without building it.

    `mim` is for `masked-patches` and `mae`; `tune` says what is trained, all weights unless given;
    a `teacher` answers for each image of the spec's size, without gradients; `checkpointing` is a
    model's.
    """
    labeled = task in ("classification", "regression")
    rows = model_rows(spec) if labeled else _mim_rows(spec, task, mim)
    macs = flops = 0
    kept: list[Row] = []
    flows = False  # whether the layer's input has a gradient
    layers = list(_layers(rows, tune))
    recomputed = count_recomputed([layer.row for layer in layers], checkpointing)
    for layer, again in zip(layers, recomputed, strict=True):
        row, passed = layer.row, _pass(layer, flows)
        macs += passed.forward
        flops += 2 * (passed.forward + passed.backward)
        flows = passed.flows
        if flows:
            kept.append(replace(row, kept=passed.kept))
            each = 2 * (passed.forward - passed.last * row.ends_in_product) // row.repeats
            flops += each * again
    if teacher is not None:
        flops += cost_of(teacher, image=spec.image).flops
    numbers = count_kept(kept, batch, checkpointing=checkpointing)
    return TrainingCost(macs=macs, flops=flops, activation_bytes=FLOAT * numbers)


class _Layer(NamedTuple):
    row: Row
    trained: bool
    positions_trained: bool
    """Whether the position tables are, which are the embedding's."""
    rank: int = 0
    targets: Sequence[str] = ()
    """Roles of the matrices that have low-rank updates."""


class _Pass(NamedTuple):
    forward: int
    last: int
    """Multiply-adds of the last product of the forward pass."""
    backward: int
    kept: int
    flows: bool
    """Whether the layer's output has a gradient."""


def _layers(rows: ModelRows, tune: Tuning | None) -> Iterator[_Layer]:
    """List the layers one by one, with what is trained of each."""
    mode = "all" if tune is None else tune.mode
    blocks = [row.one() for row in rows.blocks for _ in range(row.repeats)]
    every = mode == "all"
    for row in rows.embedding:
        yield from [_Layer(row.one(), every, every)] * row.repeats
    for number, row in enumerate(blocks):
        if tune is not None and mode == "lora":
            yield _Layer(row, False, False, tune.rank, tune.targets)
        else:
            last = tune is not None and mode == "last" and number >= len(blocks) - tune.blocks
            yield _Layer(row, every or last, every)
    for row in rows.late:
        yield from [_Layer(row.one(), mode in ("all", "last"), every)] * row.repeats
    for row in rows.head:
        yield _Layer(row, True, every)


def _pass(layer: _Layer, flows: bool) -> _Pass:
    """Follow a layer's products forward and backward; `flows` says if its input has a gradient."""
    row, trained, _, rank, targets = layer
    forward, last, backward, kept = 0, 0, 0, row.kept
    flows = flows or (trained and row.starts_with_norm)
    for product in row.products:
        last = macs = product.macs
        forward += macs
        if product.operand == "activations":
            backward += 2 * macs * flows
            continue
        own = layer.positions_trained if product.operand == "positions" else trained
        parts = sum(role in targets for role in product.roles)
        backward += macs * (flows + own)
        if product.input_kept and not own and not parts:
            kept -= product.rows * product.inputs
        if parts:
            down = product.rows * rank * product.inputs
            last = up = product.rows * rank * (product.outputs // len(product.roles))
            forward += parts * (down + up)
            backward += parts * (down * (1 + flows) + 2 * up)
            kept += parts * product.rows * rank
        flows = flows or own or parts > 0
    return _Pass(forward, last, backward, kept, flows or trained)


def _mim_rows(spec: Spec, task: TaskName, mim: MIMConfig | None) -> ModelRows:
    """List the layers of an encoder in pre-training, and of what predicts the chosen patches."""
    mim, encoder = mim or MIMConfig(), encoder_spec(spec)
    chosen = count_chosen(encoder.grid, mim.mask)
    outputs = target_size(mim.target, encoder.stride, encoder.channels)
    embedding, late = tuple(embedding_rows(encoder)), []
    seen, last = encoder.tokens, encoder
    if task == "mae":
        light = decoder_spec(encoder, mim.decoder)
        seen -= chosen
        enter = dense_row("decoder, input", seen, encoder.width, light.width)
        late = [norm_row(encoder, seen, seen), enter, block_row(light)]
        last = light
    prediction = dense_row("prediction", chosen, last.width, outputs)
    # The loss keeps the predictions, or their softmax.
    prediction = replace(prediction, kept=prediction.kept + chosen * outputs)
    late += [norm_row(last, chosen, chosen), prediction]
    return ModelRows(embedding, (block_row(encoder, seen),), tuple(late), ())
