"""Axial models beside ViT and ResNet: accuracy against FLOPs (Figure 13)."""

from __future__ import annotations

from vitrail.plotting.study_plots import draw_lines
from vitrail.result import ResultTable
from vitrail.studies.claims import Claim, Rows, greater
from vitrail.studies.curves import curves
from vitrail.studies.engine.sweep_plan import Sweep
from vitrail.studies.plans import NO_JFT, by_model, plan_few_shots
from vitrail.studies.small_runs import SHORT, TINY, TINY_DATA, bit, vit
from vitrail.studies.study import Setting, Study

MEASURE, MODEL = "fewshot_10", "size"
MODELS = {
    "ViT, few patches": vit(8, options="pool=gap"),
    "ViT, many patches": vit(4, options="pool=gap"),
    "axial ViT, few patches": f"Axial{vit(8)}",
    "axial ViT, many patches": f"Axial{vit(4)}",
    "ResNet": bit("1-1-1"),
    "axial ResNet": f"{bit('1-1-1')},heads=2",
}
BIG = {
    "ViT, few patches": "ViT-B/32,pool=gap",
    "ViT, many patches": "ViT-B/16,pool=gap",
    "axial ViT, few patches": "AxialViT-B/32",
    "axial ViT, many patches": "AxialViT-B/16",
    "ResNet": "BiT-R50x1",
    "axial ResNet": "AxialResNet-50",
}


def _plan(words: dict[str, object], models: dict[str, str], seeds: int) -> Sweep:
    return plan_few_shots(words, {MODEL: by_model(models)}, seeds)


def _families(rows: Rows) -> Rows:
    return [{**row, "family": row[MODEL].partition(",")[0]} for row in rows]


def _ahead(first: str, second: str) -> Claim:
    check = greater(MEASURE, {MODEL: first}, {MODEL: second})
    return Claim(text=f"{first} is ahead of {second}", paper="better, at more compute", check=check)


STUDY = Study(
    name="figure13",
    title="Axial models",
    where="Figure 13, Appendix D.6",
    question="What do axial models reach, for how much compute?",
    paper="AxialResNet-50 is slow on TPUs; Axial-ViT-B/32 and B/16 do better than ViT-B/32 "
    "and B/16, at the cost of more compute.",
    published=ResultTable(
        ("5-shot ImageNet", "accuracy", "FLOPs"),
        [("Axial-ViT-B against ViT-B", "better", "more"),
         ("AxialResNet-50", "", "slow on TPUs")],
    ),
    settings={
        "smoke": Setting(plan=_plan(TINY, MODELS, 1), data=TINY_DATA, hours=0.001),
        "desk": Setting(
            plan=_plan({**SHORT, "steps": 400}, MODELS, 3),
            data="shapes:medium",
            hours=0.25,
            why="400 steps of each; images per second are measured by figure12.",
        ),
        "gpu": Setting(
            plan=_plan({"recipe": "plain:90", "epochs": 30}, BIG, 1),
            data="imagenet:DIR",
            hours=100,
        ),
        "paper": Setting(
            plan=_plan({"recipe": "pretrain:jft"}, BIG, 1),
            hours=15_000,
            why=NO_JFT,
        ),
    },
    by=(MODEL,),
    measures={MEASURE: "10-shot accuracy", "top1": "top-1", "flops": "FLOPs"},
    numbers=("flops",),
    claims=tuple(
        _ahead(f"axial ViT, {each}", f"ViT, {each}") for each in ("few patches", "many patches")
    ),
    draw=lambda rows: draw_lines(
        curves(_families(rows), x="flops", y=MEASURE, by="family"),
        x="FLOPs of training",
        y="10-shot accuracy",
    ),
)  # fmt: skip
