"""Published weights, fine-tuned on other images (Tables 2, 5 and 9)."""

from __future__ import annotations

from typing import Any

from vitrail.plotting.study_plots import draw_groups
from vitrail.result import ResultTable
from vitrail.studies.claims import Claim, greater
from vitrail.studies.curves import groups
from vitrail.studies.engine.sweep_plan import Sweep
from vitrail.studies.plans import then
from vitrail.studies.small_runs import SHORT, TINY, TINY_DATA, vit
from vitrail.studies.study import WEIGHTS, Setting, Study

MEASURE = "then.top1"


def _plan(
    model: str, words: dict[str, Any], starts: dict[str, Any], rates: list[float], seeds: int
) -> Sweep:
    return Sweep(
        base={"model": model, **_then(words)},
        axes={"start": starts},
        seeds=range(seeds),
        best={"then.lr": rates},
    )


def _then(words: dict[str, Any]) -> dict[str, Any]:
    """Give the words of fine-tuning, whose learning rate the grid decides."""
    return then({key: value for key, value in words.items() if key != "lr"})


def _starts(model: str) -> dict[str, Any]:
    return {
        "published weights": {"then.weights": WEIGHTS, "then.model": model},
        "scratch": {"then.weights": None, "then.model": model},
    }


TINY_VIT = vit(8, 1, 32)
SGD = {"optim.kind": "sgd", "optim.weight_decay": 0.0, "augment.crop": "inception"}

STUDY = Study(
    name="transfer",
    title="Published weights, fine-tuned",
    where="Tables 2, 5 and 9",
    question="What do published weights reach on other images by the paper's protocol?",
    paper="Pre-trained on ImageNet-21k, ViT-B/16 reaches 94.43 % on Pets, 98.95 % on CIFAR-10, "
    "91.67 % on CIFAR-100 and 83.97 % on ImageNet (Table 5), fine-tuned at 384 pixels.",
    published=ResultTable(
        ("Table 5, ImageNet-21k", "Pets", "Flowers", "CIFAR-10", "CIFAR-100", "ImageNet"),
        [
            ("ViT-B/16", "94.43", "99.38", "98.95", "91.67", "83.97"),
            ("ViT-B/32", "93.02", "99.11", "98.79", "91.97", "81.28"),
            ("ViT-L/16", "94.73", "99.61", "99.16", "93.44", "85.15"),
        ],
    ),
    settings={
        "smoke": Setting(
            plan=Sweep(
                base={"data": TINY_DATA, "model": TINY_VIT, **TINY, **_then(TINY)},
                axes={"start": {"published weights": {}, "scratch": {
                    "then.weights": None, "then.model": TINY_VIT}}},
                best={"then.lr": [1e-3, 1e-2]},
            ),
            data=TINY_DATA,
            hours=0.001,
        ),
        "desk": Setting(
            plan=_plan(
                "ViT-Ti/16",
                {**SHORT, **SGD, "batch": 32, "steps": 50},
                _starts("ViT-Ti/16"),
                [3e-3, 1e-2, 3e-2],
                3,
            ),
            data="pets",
            weights="timm:vit_tiny_patch16_224.augreg_in21k_ft_in1k",
            hours=0.5,
            why="A tenth of the paper's 500 steps, batches of 32, at 224 pixels; the learning rate "
            "is chosen on a tenth of the images.",
        ),
        "gpu": Setting(
            plan=_plan("ViT-B/16", {"recipe": "finetune:pets"}, _starts("ViT-B/16"),
                       [1e-3, 3e-3, 1e-2, 3e-2], 3),
            data="pets",
            weights="google:imagenet21k/ViT-B_16",
            hours=12,
        ),
        "paper": Setting(
            plan=_plan("ViT-L/16", {"recipe": "finetune:pets"}, _starts("ViT-L/16"),
                       [1e-3, 3e-3, 1e-2, 3e-2], 3),
            data="pets",
            weights="google:imagenet21k/ViT-L_16",
            hours=60,
        ),
    },
    by=("start",),
    measures={MEASURE: "top-1"},
    claims=(
        Claim(
            text="published weights are more than 5 points ahead of training from scratch",
            paper="94.43 % on Pets (B/16)",
            check=greater(
                MEASURE, {"start": "published weights"}, {"start": "scratch"}, by=0.05
            ),
        ),
    ),
    draw=lambda rows: draw_groups(groups(rows, y=MEASURE, by="start"), x="top-1"),
)  # fmt: skip
