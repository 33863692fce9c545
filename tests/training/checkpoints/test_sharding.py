"""A model that FSDP spreads over processes computes, and is saved and read, as a whole one."""

import errno
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import Shard, distribute_tensor

from tests.forks import Ended, in_processes
from tests.vit_kinds import KINDS
from vitrail.data.datasets.builtin.digits import open_digits
from vitrail.distributed import process_group
from vitrail.models import Model, build
from vitrail.tasks import make_task
from vitrail.training.checkpoints.dtensor import gather, is_sharded
from vitrail.training.checkpoints.sharding import (
    full_state_dict,
    load_shards,
    save_shards,
    shard_model,
    unsharded,
)
from vitrail.training.parts import gather_parts
from vitrail.training.peft import TuneConfig, adapt
from vitrail.training.train_config import TrainConfig
from vitrail.training.trainer_setup import build_model
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.model_folder import save_folder

VIT = "ViT/4@8,depth=2,width=12,heads=3,mlp=20,classes=5"
HYBRID = "R+ViT/4@32,stages=1-1,stem_width=32,depth=1,width=12,heads=3,mlp=20,classes=5"
BIT = "BiT@32,stages=1-1,width=32,classes=5"


def make(name: str, *, lora: bool = False) -> tuple[Model, Tensor]:
    """Make a model whose every weight matters, in float64, and a batch of four images."""
    draw = torch.Generator().manual_seed(1)
    model = build(name).double()
    if lora:
        adapt(model, TuneConfig(mode="lora", rank=2))
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3, generator=draw)
    images = torch.randn(4, 3, *model.spec.image, generator=draw, dtype=torch.float64)
    return model, images


def gradients(model: Model) -> dict[str, Tensor]:
    return {n: gather(p.grad) for n, p in model.named_parameters() if p.grad is not None}


def values(ended: list[Ended]) -> list[object]:
    assert all(each.code == 0 for each in ended), ended
    return [each.value for each in ended]


@pytest.mark.parametrize(
    ("name", "lora", "checkpointing"),
    [
        *((VIT, False, False), (VIT, True, False), (VIT, False, True)),
        *((HYBRID, False, True), (BIT, False, False)),
    ],
)
def test_gradients_are_those_of_the_whole(name: str, lora: bool, checkpointing: bool) -> None:
    def compute() -> float:
        model, images = make(name, lora=lora)
        whole = deepcopy(model)
        model.checkpointing = checkpointing
        whole(images).square().mean().backward()
        with process_group("cpu") as processes:
            shard_model(model, processes)
            assert all(map(is_sharded, model.parameters()))
            assert any(isinstance(each, FSDPModule) for each in [*model.modules()][1:])
            part = images[processes.rank :: processes.count]
            for half in part.split(1):  # gradients add up over micro-batches
                (model(half).square().mean() / 2).backward()
            theirs, ours = gradients(whole), gradients(model)
            assert theirs.keys() == ours.keys()
            return max(float((theirs[name] - ours[name]).abs().max()) for name in theirs)

    for error in values(in_processes(compute)):
        assert isinstance(error, float)
        assert error < 1e-12


def test_every_kind_of_vit_has_the_gradients_of_the_whole() -> None:
    def compute() -> dict[str, float]:
        errors: dict[str, float] = {}
        with process_group("cpu") as processes:
            for number, name in enumerate(KINDS):
                model, images = make(name)
                whole = deepcopy(model)
                model.checkpointing = number % 2 == 0
                whole(images).square().mean().backward()
                shard_model(model, processes)
                model(images[processes.rank :: processes.count]).square().mean().backward()
                theirs, ours = gradients(whole), gradients(model)
                assert theirs.keys() == ours.keys() == dict(whole.named_parameters()).keys()
                largest = max(each.abs().max() for each in theirs.values())
                gaps = [(theirs[key] - ours[key]).abs().max() for key in theirs]
                errors[name] = float(max(gaps) / largest)
        return errors

    for errors in values(in_processes(compute)):
        assert isinstance(errors, dict)
        assert max(errors.values()) < 1e-8, errors  # rotary angles are computed in float32


@pytest.mark.parametrize("checkpointing", [False, True])
def test_products_in_bfloat16_are_those_of_autocast(checkpointing: bool) -> None:
    def compute() -> float:
        model, images = make(VIT)
        model, images = model.float(), images.float()
        whole = deepcopy(model)
        model.checkpointing = checkpointing
        with process_group("cpu") as processes:
            shard_model(model, processes)
            for each in (whole, model):
                with torch.autocast("cpu", torch.bfloat16):
                    loss = each(images).float().square().sum()
                loss.backward()
            theirs, ours = gradients(whole), gradients(model)
            assert theirs.keys() == ours.keys()
            assert {each.dtype for each in ours.values()} == {torch.float32}
            assert {each.dtype for each in model.parameters()} == {torch.float32}
            ratios = [(theirs[n] - ours[n]).norm() / theirs[n].norm() for n in theirs]
            return float(max(ratios))

    for error in values(in_processes(compute)):
        assert isinstance(error, float)
        assert error < 1e-6


@pytest.mark.parametrize("name", [VIT, HYBRID, BIT])
def test_only_the_first_process_needs_the_weights(name: str) -> None:
    def compute() -> bool:
        model, _ = make(name)
        expected = {key: tensor.clone() for key, tensor in model.state_dict().items()}
        with process_group("cpu") as processes:
            if not processes.is_main:
                model = build(name, device="meta").double()
            shard_model(model, processes)
            return all(torch.equal(gather(t), expected[n]) for n, t in model.state_dict().items())

    assert values(in_processes(compute, 3)) == [True] * 3


@pytest.mark.parametrize("tune", ["all", "lora"])
def test_only_the_first_process_reads_pretrained_weights(tmp_path: Path, tune: str) -> None:
    draw = torch.Generator().manual_seed(1)
    given = build("ViT/4@8,depth=2,width=12,heads=3,mlp=20,channels=1,classes=10")
    for parameter in given.parameters():
        nn.init.normal_(parameter, std=0.3, generator=draw)
    save_folder(Checkpoint(spec=given.spec, tensors=dict(given.state_dict())), tmp_path / "model")
    config = TrainConfig(
        data="digits",
        model=given.spec.name,
        weights=str(tmp_path / "model"),
        out=tmp_path / "run",
        sharding="full",
        tune=TuneConfig(mode=tune),  # pyright: ignore[reportArgumentType],
    )

    def compute() -> tuple[bool, bool]:
        parts = gather_parts(config)[1]
        task = make_task(config, open_digits("train"))
        with process_group("cpu") as processes:
            model, start = build_model(config, task, parts, processes)
            empty = all(tensor.is_meta for tensor in (*model.parameters(), *start.tensors.values()))
            shard_model(model, processes)
            expected = given.state_dict()
            same = [
                torch.equal(gather(tensor), expected[name])
                for name, tensor in model.state_dict().items()
                if name in expected and not name.startswith("head.")
            ]
            return empty, all(same) and len(same) > 10

    assert values(in_processes(compute, 3)) == [(False, True), (True, True), (True, True)]


def test_processes_run_a_gathered_model_each_for_itself() -> None:
    def compute() -> bool:
        model, images = make(VIT)
        with torch.no_grad():
            expected = model(images)
        with process_group("cpu") as processes:
            shard_model(model, processes)
            with unsharded(model), torch.inference_mode():
                outputs = [model(images) for _ in range(processes.rank)]
            same = all(torch.equal(output, expected) for output in outputs)
            assert all(map(is_sharded, model.parameters()))
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.mul_(2)
            again = model(images)  # with the new weights, and all processes
            again.sum().backward()
            return same and not torch.allclose(again, expected)

    assert values(in_processes(compute, 3)) == [True] * 3


def test_a_whole_model_is_left_as_it_is() -> None:
    model, images = make(VIT)
    with unsharded(model):
        model(images)
    assert all(torch.equal(t, model.state_dict()[n]) for n, t in full_state_dict(model).items())


def test_the_first_process_gets_the_whole_state() -> None:
    def compute() -> dict[str, Tensor]:
        model, images = make(VIT)
        with process_group("cpu") as processes:
            shard_model(model, processes)
            model(images)  # leaves FSDP with unsharded weights
            return {name: tensor.clone() for name, tensor in full_state_dict(model).items()}

    first, second = values(in_processes(compute))
    expected = make(VIT)[0].state_dict()
    assert isinstance(first, dict)
    assert list(first) == list(expected)
    assert all(torch.equal(first[name], tensor) for name, tensor in expected.items())
    assert second == {}


def test_all_processes_start_from_the_first_ones_weights() -> None:
    def compute() -> dict[str, Tensor]:
        model, _ = make(VIT)
        with process_group("cpu") as processes:
            with torch.no_grad():
                model.get_parameter("head.output.bias").fill_(processes.rank + 1)
            shard_model(model, processes)
            return {name: gather(p.detach()).clone() for name, p in model.named_parameters()}

    for found in values(in_processes(compute)):
        assert isinstance(found, dict)
        assert found["head.output.bias"].tolist() == [1] * 5


def tensors() -> dict[str, Tensor]:
    """Make tensors that are spread unevenly, in part to no numbers at all, or not spread."""
    draw = torch.Generator().manual_seed(2)
    shapes = {"one row": (1, 1, 5), "rows": (5, 4), "one": (1,)}
    made = {name: torch.randn(shape, generator=draw) for name, shape in shapes.items()}
    return made | {"half": made["rows"].bfloat16(), "step": torch.tensor(7.0)}


def spread(whole: Tensor) -> Tensor:
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    return distribute_tensor(whole, mesh, [Shard(0)]) if whole.ndim else whole


@pytest.mark.parametrize(("writers", "readers"), [(2, 3), (3, 1), (1, 2)])
def test_any_number_of_processes_reads_what_any_wrote(
    writers: int, readers: int, tmp_path: Path
) -> None:
    def write() -> None:
        with process_group("cpu") as processes:
            many = processes.count > 1
            save_shards(tmp_path, {n: spread(t) if many else t for n, t in tensors().items()})

    def read() -> dict[str, Tensor]:
        with process_group("cpu") as processes:

            def place(_name: str, shape: torch.Size, dtype: torch.dtype) -> Tensor:
                blank = torch.zeros(shape, dtype=dtype)
                return spread(blank) if processes.count > 1 else blank

            found = load_shards(tmp_path, place)
            return {name: gather(tensor).clone() for name, tensor in found.items()}

    values(in_processes(write, writers))
    assert len(list(tmp_path.iterdir())) == writers
    for found in values(in_processes(read, readers)):
        assert isinstance(found, dict)
        assert found.keys() == tensors().keys()
        assert all(torch.equal(found[name], tensor) for name, tensor in tensors().items())


def test_all_processes_learn_that_one_could_not_write(tmp_path: Path) -> None:
    def write() -> None:
        with process_group("cpu") as processes, pytest.MonkeyPatch.context() as patch:
            if processes.rank == 1:
                patch.setattr(HuggingFaceStorageWriter, "write_data", fail)
            save_shards(tmp_path, {name: spread(tensor) for name, tensor in tensors().items()})

    for each in in_processes(write):
        assert each.error == f"RuntimeError: process 1: {OSError(errno.ENOSPC, 'disk full')}"


def fail(*_: object) -> None:
    raise OSError(errno.ENOSPC, "disk full")
