"""Tensors spread over processes (FSDP's DTensor), for code that needs the whole of one."""

from __future__ import annotations

from torch import Tensor, nn


def is_sharded(tensor: Tensor) -> bool:
    """Tell whether a tensor is spread over processes, without the 1.4 s of importing its class."""
    return hasattr(tensor, "full_tensor")


def gather(tensor: Tensor) -> Tensor:
    """Collect a spread tensor from all processes; give any other as it is."""
    collect = getattr(tensor, "full_tensor", None)
    return tensor if collect is None else collect()


def local_part(tensor: Tensor) -> Tensor:
    """Return this process's part of a spread tensor, which shares its memory."""
    take = getattr(tensor, "to_local", None)
    return tensor if take is None else take()


def shard_like(whole: Tensor, like: Tensor) -> Tensor:
    """Keep this process's part of what all processes hold, if `like` is spread."""
    if not is_sharded(like):
        return whole
    from torch.distributed.tensor import DTensor, Replicate

    assert isinstance(like, DTensor)
    everywhere = [Replicate()] * like.device_mesh.ndim
    replicated = DTensor.from_local(whole, like.device_mesh, everywhere, run_check=False)
    return replicated.redistribute(placements=like.placements)


def reshard(model: nn.Module) -> None:
    """Let FSDP forget weights that it unsharded for a forward pass; it would use them again.

    After a forward pass without a backward pass it holds the outermost ones, and then parameters
    that are changed have no effect.
    """
    for module in model.modules():
        reshard = getattr(module, "reshard", None)
        if reshard is not None:
            reshard()
