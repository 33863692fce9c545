"""The operations that an estimate gives, against torch's counter over a real training step."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from tests.run.own_parts import Contrastive
from tests.runs import train
from vitrail.config import Duration
from vitrail.data.loader import LoaderConfig
from vitrail.data.transforms.augment import Augment
from vitrail.distributed import process_group
from vitrail.models.pretraining.mim import DecoderConfig, MaskConfig, MIMConfig
from vitrail.run import TrainConfig
from vitrail.run_estimate import estimate
from vitrail.signals import Signals
from vitrail.training.losses import DistillConfig
from vitrail.training.optimization.optim import OptimConfig
from vitrail.training.peft import TuneConfig
from vitrail.training_run import TrainingRun

MODEL = "ViT/4@16,depth=3,width=32,heads=2,mlp=48"
MAE = MIMConfig(
    mask=MaskConfig(ratio=0.75), target="pixels", decoder=DecoderConfig(depth=2, width=16, heads=2)
)
CASES: dict[str, dict[str, Any]] = {
    "all": {},
    "checkpointed": {"checkpointing": True},
    "every second checkpointed": {"checkpointing": True, "checkpoint_every": 2},
    "head": {"tune": TuneConfig(mode="head")},
    "last": {"tune": TuneConfig(mode="last")},
    "lora": {"tune": TuneConfig(mode="lora")},
    "masked-patches": {"task": "masked-patches"},
    "mae": {"task": "mae", "mim": MAE},
    "mae, checkpointed": {"task": "mae", "mim": MAE, "checkpointing": True},
    "distilled": {"distill": DistillConfig(teacher="")},
    "hybrid": {"model": "R+ViT/2@16,depth=2,width=32,heads=2,mlp=48"},
    "bit": {"model": "BiT@16,stages=1-1,width=32"},
}


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> str:
    out = tmp_path_factory.mktemp("teacher") / "run"
    config = configure(out, model="ViT/8@16,depth=2,width=16,heads=2,mlp=24", length="1 steps")
    train(config)
    return f"run:{out}"


def configure(out: Path, length: str = "4 steps", **changes: Any) -> TrainConfig:
    config = TrainConfig(
        data="digits",
        model=MODEL,
        out=out,
        length=Duration.parse(length),
        batch=8,
        augment=Augment(crop="pad"),
        optim=OptimConfig(lr=1e-3),
        loader=LoaderConfig(workers=0),
    )
    return replace(config, **changes)


def test_operations_of_a_task_of_your_own_are_unknown(tmp_path: Path) -> None:
    found = estimate(configure(tmp_path / "run", repeats=2, val_split=""), task=Contrastive)
    assert found.flops is None
    assert not any(str(line).startswith("work") for line in found.summary())


@pytest.mark.parametrize("case", CASES)
def test_flops_are_those_of_a_real_step(case: str, tmp_path: Path, teacher: str) -> None:
    changes = dict(CASES[case])
    if case == "distilled":
        changes["distill"] = DistillConfig(teacher=teacher)
    config = configure(tmp_path / "run", **changes)
    with process_group("cpu") as processes:
        run = TrainingRun(config, processes)
        batch = next(iter(run.iterator.open(1, processes.shard)))
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            run.trainer.step(0, batch, Signals())
    counted = counter.get_total_flops()
    assert estimate(config).flops == pytest.approx(4 * counted, rel=0.02)
