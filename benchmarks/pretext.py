"""What a step of pre-training without labels costs, beside a step of classification.

    python benchmarks/pretext.py                              # ViT-L/16, as MAE's own comparison
    python benchmarks/pretext.py --model ViT-B/16 --batch 8

A step is forward and backward on random images, in float32: what the optimizer takes does not
depend on the batch, and vanishes beside the thousands of images of a real one. In a round every
contestant has one turn; ratios are taken within a round, of processor time.
"""

from __future__ import annotations

import json as json_format
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
import tyro
from measure import turn_order
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from vitrail.models import ViT, build, parse
from vitrail.models.pretraining.masked import MaskedAutoencoder, MaskedViT
from vitrail.models.pretraining.masking import sample_masking
from vitrail.models.pretraining.mim import DecoderConfig, MaskConfig, encoder_spec
from vitrail.models.pretraining.patch_targets import make_targets, patchify, prediction_loss

FULL = "classification"


def main(
    *,
    model: str = "ViT-L/16",
    batch: int = 2,
    rounds: int = 3,
    threads: int = 1,
    json: Path | None = None,
) -> None:
    """Compare steps of MAE and of masked patches with those of classification.

    Args:
        model: The encoder's name.
        batch: Images a step.
        rounds: Turns that each contestant has.
        threads: Of torch.
        json: Write the figures here.
    """
    torch.set_num_threads(threads)
    steps = make_steps(model, batch)
    for step in steps.values():
        step()
    times: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(rounds):
        for place in turn_order(len(steps), turn):
            name = list(steps)[place]
            start = time.process_time()
            steps[name]()
            times[name].append(time.process_time() - start)
    table = Table("step", "s", f"time / {FULL}", box=box.SIMPLE_HEAD, title=f"{model}, {batch}")
    ratios: dict[str, float] = {}
    for name, taken in times.items():
        within = [own / full for own, full in zip(taken, times[FULL], strict=True)]
        ratios[name] = float(np.median(within))
        span = f"{ratios[name]:.2f} ({min(within):.2f} to {max(within):.2f})"
        table.add_row(name, f"{np.median(taken):.2f}", span)
    Console().print(table)
    if json:
        json.write_text(json_format.dumps({"model": model, "ratios": ratios}, indent=1) + "\n")


def make_steps(name: str, batch: int) -> dict[str, Callable[[], None]]:
    """Build each contestant, with what takes a step of it."""
    spec = encoder_spec(parse(name))
    images = torch.rand(batch, 3, *spec.image)
    patches = patchify(images.permute(0, 2, 3, 1).contiguous(), spec.patch)
    keys = torch.arange(batch)

    def classify(model: nn.Module) -> Tensor:
        return F.cross_entropy(model(images), keys)

    def predict(model: nn.Module, mask: MaskConfig, target: str) -> Tensor:
        masking = sample_masking(keys, spec.grid, mask)
        true = patches[torch.arange(batch)[:, None], masking.chosen]
        wanted = make_targets(true, spec.patch, target)  # type: ignore[arg-type]
        return prediction_loss(model(images, masking), wanted, target).mean()  # type: ignore[arg-type]

    light = MaskConfig(ratio=0.75)
    contestants: dict[str, tuple[nn.Module, Callable[[nn.Module], Tensor]]] = {
        FULL: (build(name, classes=1000), classify),
        "mae, 75 % left out": (
            MaskedAutoencoder(ViT(spec), "normalized-pixels", DecoderConfig()),
            lambda model: predict(model, light, "normalized-pixels"),
        ),
        "masked patches": (
            MaskedViT(ViT(spec), "color"),
            lambda model: predict(model, MaskConfig(), "color"),
        ),
    }
    return {name: _take(model, loss) for name, (model, loss) in contestants.items()}


def _take(model: nn.Module, loss: Callable[[nn.Module], Tensor]) -> Callable[[], None]:
    def step() -> None:
        loss(model).backward()
        model.zero_grad()

    return step


if __name__ == "__main__":
    tyro.cli(main)
