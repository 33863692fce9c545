"""Fine-tuning at a higher resolution, and which part of the head is replaced (section 3.2)."""

from __future__ import annotations

from vitrail.plotting.study_plots import draw_groups
from vitrail.result import ResultTable
from vitrail.studies.claims import Claim, alike, greater
from vitrail.studies.curves import groups
from vitrail.studies.engine.sweep_plan import Sweep
from vitrail.studies.plans import NO_JFT, then
from vitrail.studies.small_runs import SHORT, TINY, TINY_DATA, vit
from vitrail.studies.study import DATA, Setting, Study

MEASURE = "then.top1"


def _at(name: str) -> dict[str, str]:
    return {"finetuning": name}


def _plan(
    first: dict[str, object], second: dict[str, object], low: int, high: int, seeds: int
) -> Sweep:
    return Sweep(
        base={**first, **then(second)},
        axes={
            "finetuning": {
                "same resolution": {"then.image": low},
                "higher resolution": {"then.image": high},
                "same, last layer": {"then.image": low, "then.tune.head": "keep-hidden"},
            }
        },
        seeds=range(seeds),
    )


STUDY = Study(
    name="resolution",
    title="Fine-tuning at a higher resolution",
    where="section 3.2",
    question="Does a higher resolution help when fine-tuning, and must the whole head go?",
    paper="'It is often beneficial to fine-tune at higher resolution than pre-training' with "
    "position embeddings interpolated in 2-D; a zero-initialized linear layer in place of the "
    "whole head is 'a little more robust than simply re-initializing the very last layer'.",
    published=ResultTable(
        ("ViT-B/16, ImageNet-21k, to ImageNet", "top-1"),
        [("224 px (official checkpoint, README)", "81.2"), ("384 px (Table 5)", "83.97")],
    ),
    settings={
        "smoke": Setting(
            plan=_plan(
                {**TINY, "data": TINY_DATA, "model": vit(8, 1, 32, "representation=32")},
                TINY, 32, 48, 1,
            ),
            data=TINY_DATA,
            hours=0.001,
        ),
        "desk": Setting(
            plan=_plan(
                {
                    **SHORT,
                    "steps": 300,
                    "data": "shapes:hard",
                    "model": vit(8, 4, 96, "representation=96"),
                },
                {**SHORT, "steps": 120, "lr": 1e-3},
                32, 48, 3,
            ),
            data="digits",
            hours=0.05,
            why="Pre-trained on shapes at 32 pixels with the tanh layer of the paper's "
            "pre-training head, then fine-tuned at 32 and at 48: 16 and 36 patches. "
            "Images of 32 pixels, as CIFAR's, are enlarged to 48 and show no more there.",
        ),
        "gpu": Setting(
            plan=_plan(
                {"recipe": "plain:90", "data": DATA, "model": "ViT-S/16"},
                {"recipe": "finetune:pets", "data": "pets"}, 224, 384, 3,
            ),
            data="imagenet:DIR",
            hours=30,
        ),
        "paper": Setting(
            plan=_plan(
                {"recipe": "pretrain:jft", "data": DATA, "model": "ViT-B/16"},
                {"recipe": "finetune:imagenet"}, 224, 384, 3,
            ),
            hours=5_600,
            why=NO_JFT,
        ),
    },
    by=("finetuning",),
    measures={MEASURE: "top-1, fine-tuned"},
    claims=(
        Claim(
            text="a higher resolution helps",
            paper="'often beneficial'",
            check=greater(MEASURE, _at("higher resolution"), _at("same resolution")),
        ),
        Claim(
            text="a new head is within 2 points of a new last layer",
            paper="'a little more robust'",
            check=alike(MEASURE, _at("same resolution"), _at("same, last layer"), within=0.02),
        ),
    ),
    draw=lambda rows: draw_groups(groups(rows, y=MEASURE, by="finetuning"), x="top-1, fine-tuned"),
)  # fmt: skip
