"""Which weights are trained: all, the head, the last blocks, or low-rank updates (LoRA)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from vitrail.config import InputError, PositiveFloat, PositiveInt, UsedIf, validate
from vitrail.models import build
from vitrail.models.layers.linear import Linear, linear
from vitrail.models.model import Model
from vitrail.models.spec import Spec
from vitrail.training.optimization.matrices import Role, find_matrices


@dataclass(frozen=True, kw_only=True)
class TuneConfig:
    """Which weights are trained; the head always is."""

    mode: Literal["all", "head", "last", "lora"] = "all"
    """`last`: the last blocks and everything after them; `lora`: updates of the matrices, whose
    factors decay only with `optim.decays` all: that pulls the update, not the weight, to 0."""
    blocks: Annotated[PositiveInt, UsedIf("mode", "last")] = 1
    """Number of blocks that `last` trains."""
    rank: Annotated[PositiveInt, UsedIf("mode", "lora")] = 8
    """Rank of each update (arXiv 2106.09685)."""
    alpha: Annotated[PositiveFloat, UsedIf("mode", "lora")] = 8.0
    """Scale of the updates: alpha / rank."""
    targets: Annotated[tuple[Role, ...], UsedIf("mode", "lora")] = ("query", "value")
    """Matrices that are updated (arXiv 2106.09685, section 7.1)."""
    head: Literal["replace", "probe", "keep-hidden"] = "replace"
    """Put a zero linear layer in the place of the pre-training head (section 3.2), a linear probe
    of the frozen features (arXiv 2202.10054), or a zero layer in the place of its last layer alone,
    which the paper found a little less robust."""

    def __post_init__(self) -> None:
        validate(self, "tune")
        if not self.targets:
            raise InputError("tune.targets is empty; name at least one, such as query")


class LowRankLinear(Linear):
    """A frozen dense layer with a trainable low-rank update of some of the matrices it stacks.

    Weight and bias keep their names. The update starts at zero.
    """

    def __init__(
        self, layer: nn.Linear, parts: tuple[int, ...], *, stack: int, rank: int, alpha: float
    ) -> None:
        """Update those `parts` of a layer whose rows are a stack of matrices."""
        inputs, outputs = layer.in_features, layer.out_features
        super().__init__(inputs, outputs, layer.bias is not None, device="meta")
        self.weight, self.bias = layer.weight, layer.bias
        self.parts = parts
        self.rows = outputs // stack
        self.scale = alpha / rank
        self.down = nn.Parameter(layer.weight.new_empty(len(parts), rank, inputs))
        self.up = nn.Parameter(layer.weight.new_zeros(len(parts), self.rows, rank))
        for matrix in self.down:
            nn.init.kaiming_uniform_(matrix, a=math.sqrt(5))  # as the paper's code does

    def forward(self, input: Tensor) -> Tensor:
        """Map the last axis of the input (…, inputs)."""
        output = super().forward(input)
        for part, down, up in zip(self.parts, self.down, self.up, strict=True):
            update = linear(linear(input, down), up)
            output.narrow(-1, part * self.rows, self.rows).add_(update, alpha=self.scale)
        return output

    @torch.no_grad()
    def merged(self) -> nn.Linear:
        """Return a plain layer with the same parameters, changed by the update."""
        for part, down, up in zip(self.parts, self.down, self.up, strict=True):
            self.weight.narrow(0, part * self.rows, self.rows).add_(up @ down, alpha=self.scale)
        biased = self.bias is not None
        layer = Linear(self.in_features, self.out_features, biased, device="meta")
        layer.weight, layer.bias = self.weight, self.bias
        return layer


def adapt(model: Model, config: TuneConfig) -> None:
    """Freeze what is not trained, and add the low-rank updates."""
    if config.mode != "all":
        model.requires_grad_(False)
    if config.mode == "lora":
        _add_updates(model, config)
    top = model.layer_of("head")
    if config.mode == "last" and config.blocks >= top:
        raise InputError(f"{model.spec.name} has {top - 1} blocks, not {config.blocks}")
    for name, parameter in model.named_parameters():
        last = config.mode == "last" and model.layer_of(name) >= top - config.blocks
        if last or name.startswith(("head.", "distillation_head.")):
            parameter.requires_grad_(True)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise InputError(f"{model.spec.name} has no head to train; give it classes")


def _add_updates(model: Model, config: TuneConfig) -> None:
    added = 0
    for matrix in list(find_matrices(model)):
        assert not isinstance(matrix.layer, LowRankLinear), "the model is adapted already"
        parts = tuple(i for i, role in enumerate(matrix.roles) if role in config.targets)
        if parts:
            shape = {"stack": len(matrix.roles), "rank": config.rank}
            layer = LowRankLinear(matrix.layer, parts, **shape, alpha=config.alpha)
            setattr(matrix.owner, matrix.name, layer)
            added += 1
    if not added:
        wanted = ", ".join(config.targets)
        raise InputError(f"{model.spec.name} has no {wanted} for lora; use --tune all or last")


def merge_lora(model: Model) -> None:
    """Merge the low-rank updates into the weights, which makes it an ordinary model again."""
    for parent in list(model.modules()):
        for name, layer in parent.named_children():
            if isinstance(layer, LowRankLinear):
                setattr(parent, name, layer.merged())
    model.requires_grad_(True)


def plain_state(spec: Spec, tensors: Mapping[str, Tensor], config: TuneConfig) -> dict[str, Tensor]:
    """Return the weights of an ordinary model, with the updates of an adapted one merged in."""
    if config.mode != "lora":
        return dict(tensors)
    model = build(spec, device="meta")
    adapt(model, config)
    copies = {name: tensor.clone() for name, tensor in tensors.items()}
    model.load_state_dict(copies, assign=True)
    merge_lora(model)
    return model.state_dict()
