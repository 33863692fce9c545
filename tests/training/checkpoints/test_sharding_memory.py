"""What a process holds of a model that four share: never the whole."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.forks import Ended, in_processes
from tests.training.tasks_of import config_of
from vitrail.data.batches import TrainBatches
from vitrail.data.datasets.builtin.digits import open_digits
from vitrail.distributed import Processes, process_group
from vitrail.signals import Signals
from vitrail.tasks import make_task
from vitrail.training.checkpoints.dtensor import gather
from vitrail.training.checkpoints.sharding import shard_model
from vitrail.training.parts import gather_parts
from vitrail.training.train_config import TrainConfig
from vitrail.training.trainer_setup import build_model, make_trainer

VIT = "ViT/4@8,depth=2,width=12,heads=3,mlp=20,channels=1,registers=2"
HYBRID = "R+ViT/4@32,stages=1-1,stem_width=32,depth=1,width=12,heads=3,mlp=20,channels=1"
BIT = "BiT@32,stages=1-1,width=32,channels=1"
LARGE = "ViT/4@8,depth=6,width=512,heads=4,mlp=2048,channels=1"
WEIGHTS = 72.2
"""MiB of its weights. With gradients and Adam's two averages, four times as much."""


def values(ended: list[Ended]) -> list[object]:
    assert all(each.code == 0 for each in ended), ended
    return [each.value for each in ended]


@pytest.mark.parametrize("name", [VIT, HYBRID, BIT])
def test_fresh_weights_are_drawn_where_they_are_to_be(name: str) -> None:
    """The same as those of one process, which draws what layers' constructors draw, too."""
    settings = {"seed": 5, "sharding": "full"}

    def compute() -> tuple[bool, bool]:
        task = make_task(config_of(name), open_digits("train"))
        alone = Processes(0, 1, torch.device("cpu"))
        config = config_of(name, **settings)
        parts = gather_parts(config)[1]
        expected = build_model(config, task, parts, alone)[0].state_dict()
        with process_group("cpu") as processes:
            state = torch.get_rng_state()
            model, _ = build_model(config, task, parts, processes)
            empty = all(parameter.is_meta for parameter in model.parameters())
            shard_model(model, processes, config.seed)
            same = [torch.equal(gather(t), expected[n]) for n, t in model.state_dict().items()]
            assert torch.equal(torch.get_rng_state(), state)
            return empty, all(same) and len(same) == len(expected)

    assert values(in_processes(compute, 3)) == [(True, True)] * 3


def held(name: str) -> float:
    """Give MiB that this process holds (VmRSS), or held at most (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024


def peaks(config: TrainConfig, processes: Processes) -> tuple[float, float]:
    """Measure the peak of building a trainer, and of it and a step, over what was held before."""
    data, parts = open_digits("train"), gather_parts(config)[1]
    task = make_task(config, data)
    before = held("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    model, _ = build_model(config, task, parts, processes)
    trainer = make_trainer(config, model, task, len(data), processes, parts)
    built = held("VmHWM") - before
    batches = TrainBatches(
        data, config.augment, task.preprocess, batch=8, seed=0, shard=processes.shard, mixed=False
    )
    trainer.step(0, batches[0], Signals())
    return built, held("VmHWM") - before


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux counts pages")
def test_no_process_holds_a_whole_copy() -> None:
    shared = config_of(LARGE, sharding="full", precision="float32", batch=8, micro_batch=2)

    def compute() -> tuple[float, float]:
        with process_group("cpu") as processes:
            peaks(replace(shared, model=VIT), processes)  # what is loaded once
            return peaks(shared, processes)

    for found in values(in_processes(compute, 4)):
        assert isinstance(found, tuple)
        built, stepped = found
        assert built < 0.6 * WEIGHTS  # a quarter, and a tensor at a time
        assert stepped < 2 * WEIGHTS  # a quarter of four times as much, and a block at a time
