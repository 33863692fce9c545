"""The hidden matrices of a model: dense weights inside the blocks, of which some are stacked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from torch import nn

from vitrail.models.layers import MLP, SelfAttention
from vitrail.models.model import Model

Role = Literal["query", "key", "value", "attention-output", "mlp-hidden", "mlp-output"]


class Matrix(NamedTuple):
    """A dense layer and what it does; several roles are equal parts of its rows."""

    owner: nn.Module
    name: str
    roles: tuple[Role, ...]

    @property
    def layer(self) -> nn.Linear:
        """The dense layer as it is in the model now."""
        return getattr(self.owner, self.name)


def find_matrices(model: Model) -> Iterator[Matrix]:
    """Find the dense layers of a model's blocks; a ResNet without attention has none.

    In pre-training they are those of the encoder's blocks and of the decoder's.
    """
    rooms = [room for name, room in model.named_modules() if name.rpartition(".")[2] == "blocks"]
    for module in (module for room in rooms for module in room.modules()):
        match module:
            case SelfAttention():
                yield Matrix(module, "qkv", ("query", "key", "value"))
                yield Matrix(module, "output", ("attention-output",))
            case MLP():
                branches = 2 if module.activation == "swiglu" else 1
                yield Matrix(module, "hidden", ("mlp-hidden",) * branches)
                yield Matrix(module, "output", ("mlp-output",))
            case _:
                pass
