"""A model sharded over processes by FSDP, and its tensors on disk, one file per process.

The files are torch's distributed checkpoints as safetensors: nothing in them is executed when they
are read, and any number of processes can read what another number wrote.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.distributed import broadcast

from vitrail.distributed import Processes
from vitrail.machine import return_freed_memory
from vitrail.models import BiT, ViT
from vitrail.models.filling import fill_as_built
from vitrail.models.init import seeded
from vitrail.models.model import Model
from vitrail.training.checkpoints.dtensor import is_sharded, reshard


def shard_model(model: Model, processes: Processes, seed: int = 0) -> None:
    """Shard the first process's weights over all processes, each block as a unit.

    Only the first one needs them: elsewhere the model may be on the meta device, and no process
    holds more than its shards and one whole tensor at a time. If the first one's is there too, all
    fill it with what `build` draws with the seed. Weights keep their dtype, so that autocast
    computes what it computes for an unsharded model.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    if processes.device.type == "cpu":
        return_freed_memory()
    given = dict(_all_tensors(model)) if processes.is_main else {}
    fresh = not processes.any(not all(tensor.is_meta for tensor in given.values()))
    model.to("meta")
    mesh = init_device_mesh(processes.device.type, (processes.count,))
    for module in list(model.modules()):
        for block in getattr(module, "blocks", ()):  # of the model, and of a hybrid's stem
            fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model.to_empty(device=processes.device)
    if fresh:
        assert isinstance(model, ViT | BiT)
        with seeded(seed):
            fill_as_built(model)
        return
    for name, tensor in _all_tensors(model):
        _fill(tensor, given.pop(name, None), processes.device)


def _all_tensors(model: Model) -> Iterator[tuple[str, Tensor]]:
    """Give weights and buffers, also those that no file has."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        yield name, tensor.detach()


def _fill(tensor: Tensor, given: Tensor | None, device: torch.device) -> None:
    """Fill a tensor of all processes, sharded or not, with what the first one has."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    if given is None:
        whole = torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
    else:
        whole = given.to(device).contiguous()
    if isinstance(tensor, DTensor):
        parts = distribute_tensor(whole, tensor.device_mesh, tensor.placements)
        tensor.to_local().copy_(parts.to_local())
    else:
        broadcast(whole, src=0)
        tensor.copy_(whole)


def full_state_dict(model: Model) -> dict[str, Tensor]:
    """Return a model's full state dict on the CPU.

    For a sharded model all processes must call it, and only the first gets it.
    """
    if not any(map(is_sharded, model.state_dict().values())):
        return {name: tensor.detach().cpu() for name, tensor in model.state_dict().items()}
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    reshard(model)
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    return dict(get_model_state_dict(model, options=options))  # pyright: ignore


@contextmanager
def unsharded(model: nn.Module) -> Iterator[None]:
    """Unshard a model, so that each process may run it on its own.

    All processes must enter; changes of the weights in the meantime have no effect.
    """
    if not hasattr(model, "unshard"):
        yield
        return
    from torch.distributed.fsdp import FSDPModule

    spread = [module for module in model.modules() if isinstance(module, FSDPModule)]
    try:
        for module in spread:
            module.set_reshard_after_forward(False, recurse=False)
            module.unshard()
        yield
    finally:
        reshard(model)
        for module in spread:
            module.set_reshard_after_forward(module is not model, recurse=False)


def save_shards(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors, each process its shards."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
    with _ordinary_errors():
        save(dict(tensors), storage_writer=writer)


def load_shards(
    folder: Path, place: Callable[[str, torch.Size, torch.dtype], Tensor]
) -> dict[str, Tensor]:
    """Read all tensors of a folder into what `place` returns for each name, shape and dtype.

    They may be whole or sharded, on disk and in memory. All processes must call it.
    """
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata
    from torch.distributed.checkpoint.state_dict_loader import load

    reader = HuggingFaceStorageReader(str(folder))
    with _ordinary_errors():
        found = reader.read_metadata().state_dict_metadata
        tensors = {
            name: place(name, data.size, data.properties.dtype)
            for name, data in found.items()
            if isinstance(data, TensorStorageMetadata)
        }
        load(tensors, storage_reader=reader)
    return tensors


@contextmanager
def _ordinary_errors() -> Iterator[None]:
    """Raise a process's failure as a RuntimeError; torch's own error is not an Exception."""
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        with warnings.catch_warnings(action="ignore", category=UserWarning):  # "… uninitialized"
            yield
    except CheckpointException as error:
        rank, (cause, _) = next(iter(error.failures.items()))
        raise RuntimeError(f"process {rank}: {cause}") from error
