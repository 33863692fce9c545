"""Adam or SGD to pre-train ResNets (Table 7)."""

from __future__ import annotations

from vitrail.plotting.study_plots import draw_groups
from vitrail.result import ResultTable
from vitrail.studies.claims import Claim, Rows, greater
from vitrail.studies.curves import groups
from vitrail.studies.engine.sweep_plan import Sweep
from vitrail.studies.plans import NO_JFT, by_model, then
from vitrail.studies.small_runs import SHORT, TINY, TINY_DATA, bit
from vitrail.studies.study import DATA, Setting, Study

MEASURE = "then.top1"
OPTIMIZERS = {
    "Adam": {"optim.kind": "adamw", "optim.weight_decay": 0.05},
    "SGD": {"optim.kind": "sgd", "optim.weight_decay": 5e-4},
}
MODELS = {"small": bit("1-1"), "large": bit("1-1-1")}
RATES = [3e-3, 3e-2, 3e-1]


def _plan(
    first: dict[str, object],
    second: dict[str, object],
    models: dict[str, str],
    rates: list[float],
    seeds: int,
) -> Sweep:
    first = {key: value for key, value in first.items() if key != "lr"}
    return Sweep(
        base={**first, **then(second)},
        axes={"size": by_model(models), "optimizer": OPTIMIZERS},
        seeds=range(seeds),
        best={"lr": rates},
    )


def _named(rows: Rows) -> Rows:
    return [{**row, "name": f"{row['size']}, {row['optimizer']}"} for row in rows]


def _claim(size: str) -> Claim:
    first, second = ({"size": size, "optimizer": each} for each in OPTIMIZERS)
    text = f"the {size} BiT transfers better when pre-trained with Adam than with SGD"
    paper = {"small": "89.33 against 88.79 %", "large": "94.01 against 93.72 %"}[size]
    return Claim(text=text, paper=paper, check=greater(MEASURE, first, second))


STUDY = Study(
    name="table7",
    title="Adam or SGD for ResNets",
    where="Table 7, Appendix D.1",
    question="Do ResNets that were pre-trained with Adam transfer better than with SGD?",
    paper="On average over five datasets Adam is ahead: 89.33 against 88.79 % for ResNet50, 94.01 "
    "against 93.72 % for ResNet152x2.",
    published=ResultTable(
        ("", "ImageNet", "CIFAR-10", "CIFAR-100", "Pets", "Flowers", "mean"),
        [
            ("R50, Adam", "77.54", "97.67", "86.07", "91.11", "94.26", "89.33"),
            ("R50, SGD", "78.24", "97.46", "85.17", "91.00", "92.06", "88.79"),
            ("R152x2, Adam", "84.97", "99.06", "92.05", "95.37", "98.62", "94.01"),
            ("R152x2, SGD", "84.37", "99.07", "91.06", "94.79", "99.32", "93.72"),
        ],
    ),
    settings={
        "smoke": Setting(
            plan=_plan({**TINY, "data": TINY_DATA}, TINY, MODELS, RATES[:2], 1),
            data=TINY_DATA,
            hours=0.002,
        ),
        "desk": Setting(
            plan=_plan(
                {**SHORT, "steps": 400, "data": "shapes:hard"},
                {**SHORT, "steps": 200, "lr": 1e-3},
                MODELS,
                RATES,
                3,
            ),
            data="digits",
            hours=0.25,
            why="Pre-trained on shapes, each optimizer at the best of three learning rates a "
            "factor of 10 apart, chosen on held-out images; fine-tuned on other images with Adam.",
        ),
        "gpu": Setting(
            plan=_plan(
                {"recipe": "plain:90", "data": DATA, "epochs": 30},
                {"recipe": "finetune:pets", "data": "pets"},
                {"small": "BiT-R50x1", "large": "BiT-R101x1"},
                [1e-3, 1e-2, 1e-1],
                1,
            ),
            data="imagenet:DIR",
            hours=200,
        ),
        "paper": Setting(
            plan=_plan(
                {"recipe": "pretrain:jft", "data": DATA},
                {"recipe": "finetune:imagenet"},
                {"small": "BiT-R50x1", "large": "BiT-R152x2"},
                [1e-3, 1e-2, 1e-1],
                3,
            ),
            hours=40_000,
            why=NO_JFT,
        ),
    },
    by=("size", "optimizer"),
    measures={MEASURE: "top-1, fine-tuned", "top1": "top-1 before"},
    claims=tuple(map(_claim, MODELS)),
    draw=lambda rows: draw_groups(
        groups(_named(rows), y=MEASURE, by="name"), x="top-1, fine-tuned"
    ),
)
