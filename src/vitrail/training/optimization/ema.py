"""An exponential moving average of the weights (the paper's Polyak averaging, section 4.1)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from vitrail.training.checkpoints.dtensor import local_part, reshard


class EMA:
    """An exponential moving average of the trainable weights, in float32."""

    state: dict[str, Tensor]
    """The averages by parameter name, to save and to restore."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        """Start at the model's weights."""
        assert 0 <= decay < 1, decay
        self.decay = decay
        self.state = {
            name: parameter.detach().to(torch.float32, copy=True)
            for name, parameter in _trained(model).items()
        }

    @torch.no_grad()
    def update(self, model: nn.Module, held: Tensor | float = 0.0) -> None:
        """Update the averages after an optimizer step, unless it was held back: `held` is 1."""
        weights = _trained(model)
        rate = (1 - held) * (1 - self.decay)
        for name, average in self.state.items():
            local_part(average).lerp_(local_part(weights[name]).to(torch.float32), rate)

    @torch.no_grad()
    def load(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a saved `state`."""
        assert state.keys() == self.state.keys(), state.keys() ^ self.state.keys()
        for name, average in self.state.items():
            average.copy_(state[name])

    @contextmanager
    def applied(self, model: nn.Module) -> Iterator[None]:
        """Put the averages into the model, and its own weights back on exit."""
        reshard(model)
        weights = _trained(model)
        own = {name: weights[name].detach().clone() for name in self.state}
        try:
            _copy_into(weights, self.state)
            yield
        finally:
            reshard(model)
            _copy_into(weights, own)


def _trained(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


@torch.no_grad()
def _copy_into(weights: Mapping[str, Tensor], news: Mapping[str, Tensor]) -> None:
    for name, new in news.items():
        weights[name].copy_(new)
