"""Fresh weights of a model that is spread over processes, the same as of a whole one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from vitrail.models.bit import BiT
from vitrail.models.vit import ViT


def fill_as_built(model: ViT | BiT) -> None:
    """Fill a model as `build` does with the same global generator, whatever it is spread over.

    What the constructors of layers draw before is drawn, too, and lost at once.
    """
    kind = BiT if isinstance(model, BiT) else ViT  # its class may be one that FSDP made
    unfilled: Any = type("Unfilled", (kind,), {"init_weights": lambda self: None})
    with _one_place(), torch.device("cpu"):
        unfilled(model.spec)
    model.init_weights()


@contextmanager
def _one_place() -> Iterator[None]:
    """Put all large new tensors into the same memory, where only what was drawn matters."""
    place = torch.empty(0)

    class OnePlace(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            nonlocal place
            made = func(*args, **(kwargs or {}))
            if func is not torch.ops.aten.empty.memory_format or made.dtype != torch.float32:
                return made
            if made.numel() > place.numel():
                place = made.flatten()
            return place[: made.numel()].view(made.shape)

    with OnePlace():
        yield
