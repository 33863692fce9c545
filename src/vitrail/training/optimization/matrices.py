"""The dense layers inside a model's blocks; some stack several matrices (qkv)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from torch import Tensor, nn

from vitrail.models.convolution import StdConv
from vitrail.models.layers.mlp import MLP
from vitrail.models.layers.self_attention import SelfAttention
from vitrail.models.model import Model

Role = Literal["query", "key", "value", "attention-output", "mlp-hidden", "mlp-output"]


class Matrix(NamedTuple):
    """A dense layer and its role; with several roles its rows are a stack of equal matrices."""

    owner: nn.Module
    name: str
    roles: tuple[Role, ...]

    @property
    def layer(self) -> nn.Linear:
        """The dense layer that the model has now."""
        return getattr(self.owner, self.name)


def find_filters(model: Model) -> Iterator[Tensor]:
    """Find the filters of the convolutions in a ResNet's blocks; each filter is a row."""
    for name, module in model.named_modules():
        if isinstance(module, StdConv) and "blocks." in name:
            yield module.weight


def find_matrices(model: Model) -> Iterator[Matrix]:
    """Find the dense layers of a model's blocks, in pre-training of encoder and decoder.

    A ResNet without attention has none.
    """
    rooms = [room for name, room in model.named_modules() if name.rpartition(".")[2] == "blocks"]
    for module in (module for room in rooms for module in room.modules()):
        match module:
            case SelfAttention():
                if module.query is None:
                    yield Matrix(module, "qkv", ("query", "key", "value"))
                else:
                    yield Matrix(module, "query", ("query",))
                    yield Matrix(module, "key_value", ("key", "value"))
                yield Matrix(module, "output", ("attention-output",))
            case MLP():
                branches = 1 + module.gated
                yield Matrix(module, "hidden", ("mlp-hidden",) * branches)
                yield Matrix(module, "output", ("mlp-output",))
            case _:
                pass
