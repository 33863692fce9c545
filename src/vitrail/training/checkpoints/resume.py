"""Save and load a run: model, optimizer and EMA as tensors in one file, the rest as metadata."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrail.config import InputError
from vitrail.distributed import Processes
from vitrail.training.checkpoints.checkpoint_files import (
    SavedCheckpoint,
    latest_checkpoint,
    prune_checkpoints,
    write_checkpoint,
)
from vitrail.training.checkpoints.continuing import suggest_own_run
from vitrail.training.checkpoints.dtensor import is_sharded
from vitrail.training.checkpoints.run_folder import (
    CHECKPOINTS,
    CONFIG,
    RESTART_HINT,
    identify_run,
)
from vitrail.training.checkpoints.sharding import load_shards, save_shards
from vitrail.training.checkpoints.state_dicts import (
    flatten_state_dict,
    load_tensors,
    save_tensors,
    unflatten_state_dict,
)
from vitrail.training.loop import Trainer
from vitrail.training.optimization.precision import (
    LossScale,
    dtype_of,
    multiplies_bfloat16,
    name_precision,
)
from vitrail.training.parts import OwnState
from vitrail.training.train_config import TrainConfig

TENSORS = "tensors.safetensors"

log = logging.getLogger("vitrail")


def find_checkpoint(config: TrainConfig, data: Mapping[str, Any]) -> SavedCheckpoint | None:
    """Find the checkpoint that a run continues from; refuse one of another run, or other images."""
    saved = latest_checkpoint(config.out / CHECKPOINTS)
    if saved is None:
        return None
    noted, own = saved.metadata, identify_run(config)
    if noted["run"] != own["run"]:
        raise InputError(
            f"cannot resume: {saved.path} belongs to another run (id {noted['run']}, this one is "
            f"{own['run']}); remove it, or {RESTART_HINT}"
        )
    if noted["settings"] != own["settings"]:
        raise InputError(
            f"cannot resume: {saved.path} was saved with other settings than {CONFIG} has now; "
            f"put them back, or {RESTART_HINT}"
        )
    check_datasets(noted["data"], data, config)
    return saved


def save_checkpoint(
    folder: Path,
    step: int,
    trainer: Trainer,
    metadata: Callable[[], dict[str, Any]],
    processes: Processes,
    state: OwnState | None = None,
) -> None:
    """Save a run after a step, in all processes at once; keep the newest two checkpoints.

    `state` is what parts of the user's own keep: the first process's.
    """
    optimizer, plain = flatten_state_dict(trainer.optimizer.state_dict())
    average = trainer.ema.state if trainer.ema is not None else {}
    kept, plainly = ({}, None) if state is None else state.save()
    parts = {"model": trainer.model.state_dict(), "optimizer": optimizer, "ema": average}
    parts["own"] = kept
    tensors = {
        f"{part}:{name}": tensor for part, named in parts.items() for name, tensor in named.items()
    }
    own = {
        "optimizer": plain,
        "micro_batch": trainer.micro_batch,
        "precision": name_precision(trainer.autocast),
        "torch": torch.__version__,
    }
    if trainer.scale is not None:
        own["scale"] = trainer.scale.state()
    if plainly is not None:
        on_host = [name for name, tensor in kept.items() if tensor.device.type == "cpu"]
        own["own"] = {"state": plainly, "on_host": on_host}
    needs = sum(tensor.nbytes for tensor in tensors.values())

    def write(new: Path) -> None:
        if any(map(is_sharded, tensors.values())):
            write_part(processes.broadcast(new))
        else:
            save_tensors(new / TENSORS, tensors)

    def write_part(new: Path) -> None:
        save_shards(new, tensors)

    def save() -> None:
        write_checkpoint(folder / CHECKPOINTS, step, metadata() | own, write, needs=needs)
        prune_checkpoints(folder / CHECKPOINTS, keep=2, upto=step)

    processes.on_main(save, write_part)


def load_checkpoint(
    saved: SavedCheckpoint,
    trainer: Trainer,
    *,
    micro_batch: int | None,
    state: OwnState | None = None,
) -> None:
    """Load a checkpoint into a trainer; unless `micro_batch` is given, it is the saved one."""
    # What `auto` chose where the run began stays, so that another machine computes the same.
    dtype, device = dtype_of(saved.metadata["precision"]), next(trainer.model.parameters()).device
    asked = dtype == trainer.autocast  # or chosen here, too
    if dtype == torch.bfloat16 and not asked and not multiplies_bfloat16(device):
        raise InputError(
            f"cannot resume: {saved.path} was computed in bfloat16, which the {device.type} here "
            f"lacks; resume it where it began, or {RESTART_HINT}"
        )
    parts: dict[str, dict[str, Tensor]] = {"model": {}, "optimizer": {}, "ema": {}, "own": {}}
    path = saved.path / TENSORS
    whole = path.exists() and not any(map(is_sharded, trainer.model.parameters()))
    tensors = load_tensors(path) if whole else load_shards(saved.path, _places(trainer))
    for name, tensor in tensors.items():
        part, _, rest = name.partition(":")
        parts[part][rest] = tensor
    try:
        trainer.model.load_state_dict(parts["model"])
    except RuntimeError:
        raise InputError(
            f"cannot resume: {saved.path} holds another model; {RESTART_HINT}"
        ) from None
    trainer.optimizer.load_state_dict(
        unflatten_state_dict(parts["optimizer"], saved.metadata["optimizer"])
    )
    if trainer.ema is not None:
        trainer.ema.load(parts["ema"])
    if state is not None:
        own = saved.metadata.get("own", {"state": {"dict": []}, "on_host": ()})
        there = {
            name: tensor if name in own["on_host"] else tensor.to(trainer.task.device)
            for name, tensor in parts["own"].items()
        }
        state.load(unflatten_state_dict(there, own["state"]))
    trainer.compute_in(dtype)
    if trainer.scale is not None:
        trainer.scale = LossScale(**saved.metadata["scale"], device=trainer.scale.factor.device)
    if micro_batch is None:  # what memory is free now must not change what is computed
        trainer.micro_batch = saved.metadata["micro_batch"]
    if (version := saved.metadata["torch"]) != torch.__version__:
        log.warning("saved by torch %s, resumed by %s: bits may differ", version, torch.__version__)


def _places(trainer: Trainer) -> Callable[[str, torch.Size, torch.dtype], Tensor]:
    """Allocate a checkpoint's tensors, sharded like the parameters that they belong to."""
    average = trainer.ema.state if trainer.ema is not None else {}
    trained = [each for group in trainer.optimizer.param_groups for each in group["params"]]
    owners = {f"model:{name}": tensor for name, tensor in trainer.model.state_dict().items()}
    owners |= {f"ema:{name}": tensor for name, tensor in average.items()}
    owners |= {f"optimizer:state.{number}": each for number, each in enumerate(trained)}

    def place(name: str, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        owner = owners.get(name.rpartition(".")[0] if name.startswith("optimizer:") else name)
        if owner is None or owner.shape != shape:
            return torch.zeros(shape, dtype=dtype)
        return torch.zeros_like(owner, dtype=dtype)

    return place


def check_datasets(
    old: Mapping[str, Any], new: Mapping[str, Any], config: TrainConfig | None = None
) -> None:
    """Refuse to resume with other images; each split has its name, number and hash.

    Where `config` continues a finished run, say how another can go on from it.
    """
    road = f"put back what it had, or {RESTART_HINT}"
    if config is not None and config.more is not None:
        road = f"the finished run stays; another can go on from it: {suggest_own_run(config)}"
    for split, was in old.items():
        now = new[split]
        if was == now:
            continue
        change = now["images"] - was["images"]
        said = f"{-change:,} are gone" if change < 0 else f"{change:,} are new"
        raise InputError(
            f"cannot resume: {now['name']} had {was['images']:,} images when the run began and "
            f"has {now['images']:,} now ({said if change else 'others'}); {road}"
        )
