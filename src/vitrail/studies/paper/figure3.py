"""Pre-training datasets of growing size, fine-tuned (Figure 3)."""

from __future__ import annotations

from vitrail.plotting.study_plots import draw_lines
from vitrail.result import ResultTable
from vitrail.studies.claims import LEAST, MOST, Claim, gains_more, greater
from vitrail.studies.curves import curves
from vitrail.studies.engine.sweep_plan import Sweep
from vitrail.studies.paper.figure4 import BIG, MODELS
from vitrail.studies.plans import NO_JFT, by_model, then
from vitrail.studies.small_runs import SHORT, TINY, TINY_DATA
from vitrail.studies.study import DATA, Setting, Study

MEASURE, IMAGES = "then.top1", "data.take"
NAMES = ("ViT, small", "ViT, large", "BiT, small", "BiT, large")
FEW, MANY = {IMAGES: LEAST}, {IMAGES: MOST}


def _at(name: str) -> dict[str, str]:
    return {"family": name}


def _plan(
    first: dict[str, object],
    second: dict[str, object],
    models: dict[str, str],
    images: list[int],
    seeds: int,
    **best: list[float],
) -> Sweep:
    return Sweep(
        base={**first, **then(second)},
        axes={"family": by_model({name: models[name] for name in NAMES}), IMAGES: images},
        seeds=range(seeds),
        best={key.replace("__", "."): values for key, values in best.items()},
    )


STUDY = Study(
    name="figure3",
    title="Larger sets to pre-train on",
    where="Figure 3, section 4.3",
    question="How does accuracy after fine-tuning grow with the set that was pre-trained on?",
    paper="Pre-trained on ImageNet (1.3M), ViT-L is below ViT-B and BiT is ahead; on ImageNet-21k "
    "(14M) they are alike; only with JFT-300M is the full benefit of larger models seen (ViT-L/16 "
    "76.53, 85.15, 87.12 % on ImageNet; ViT-B/16 77.91, 83.97, 84.15 %: Table 5).",
    published=ResultTable(
        ("ImageNet top-1 (Table 5)", "ImageNet", "ImageNet-21k", "JFT-300M"),
        [
            ("ViT-B/32", "73.38", "81.28", "80.73"),
            ("ViT-B/16", "77.91", "83.97", "84.15"),
            ("ViT-L/32", "71.16", "80.99", "84.37"),
            ("ViT-L/16", "76.53", "85.15", "87.12"),
        ],
    ),
    settings={
        "smoke": Setting(
            plan=_plan(
                {**TINY, "data": TINY_DATA, "batch": 8}, {**TINY, "batch": 8}, MODELS, [40, 100], 1
            ),
            data=TINY_DATA,
            hours=0.002,
        ),
        "desk": Setting(
            plan=_plan(
                {**SHORT, "steps": 400, "data": "shapes:hard,count=33000"},
                {**SHORT, "steps": 150, "lr": 1e-3},
                MODELS,
                [1000, 6000, 32_000],
                3,
            ),
            data="digits",
            hours=0.4,
            why="Pre-trained on shapes, of which there are as many as one likes, and fine-tuned on "
            "other images for few steps; weight decay is not tuned for each cell.",
        ),
        "gpu": Setting(
            plan=_plan(
                {"recipe": "plain:90", "data": DATA, "steps": 50_000},
                {"recipe": "finetune:cifar100", "data": "cifar100"},
                BIG,
                [64_000, 320_000, 1_280_000],
                1,
            ),
            data="imagenet:DIR",
            hours=120,
        ),
        "paper": Setting(
            plan=_plan(
                {"recipe": "pretrain:jft", "data": DATA},
                {"recipe": "finetune:imagenet"},
                BIG,
                [1_300_000, 14_000_000, 300_000_000],
                3,
                optim__weight_decay=[0.03, 0.1, 0.3],
                loss__smoothing=[0.0, 0.1],
            ),
            hours=150_000,
            why=NO_JFT,
        ),
    },
    by=("family", IMAGES),
    measures={MEASURE: "top-1, fine-tuned", "top1": "top-1 before"},
    claims=(
        Claim(
            text="after the smallest set, the large BiT is ahead of the large ViT",
            paper="BiT ahead after ImageNet",
            check=greater(MEASURE, {**_at("BiT, large"), **FEW}, {**_at("ViT, large"), **FEW}),
        ),
        Claim(
            text="after the largest set, the large ViT is ahead of the large BiT",
            paper="ViT ahead after JFT-300M",
            check=greater(MEASURE, {**_at("ViT, large"), **MANY}, {**_at("BiT, large"), **MANY}),
        ),
        Claim(
            text="the large ViT gains more from a larger set than the small one",
            paper="L/16 +10.59, B/16 +6.24 points",
            check=gains_more(MEASURE, _at("ViT, large"), _at("ViT, small"), FEW, MANY),
        ),
    ),
    draw=lambda rows: draw_lines(
        curves(rows, x=IMAGES, y=MEASURE, by="family"),
        x="images to pre-train on",
        y="top-1, fine-tuned",
    ),
)
