"""Axial attention against full attention, at equal steps and at equal compute (Appendix D.6)."""

from __future__ import annotations

from vitrail.plotting.study_plots import draw_groups
from vitrail.result import ResultTable
from vitrail.studies.claims import Claim, Rows, greater
from vitrail.studies.curves import groups
from vitrail.studies.engine.sweep_plan import Sweep
from vitrail.studies.plans import NO_JFT, by_model, plan_few_shots
from vitrail.studies.small_runs import SHORT, TINY, TINY_DATA, vit
from vitrail.studies.study import Setting, Study

MEASURE = "fewshot_10"
MODELS = {"ViT": vit(4, 4, 64, "pool=gap"), "axial ViT": f"Axial{vit(4, 4, 64)}"}
BIG = {"ViT": "ViT-B/16,pool=gap", "axial ViT": "AxialViT-B/16"}


def _at(name: str, length: str) -> dict[str, str]:
    return {"attention": name, "length": length}


def _plan(
    words: dict[str, object], models: dict[str, str], steps: int, flops: float, seeds: int
) -> Sweep:
    words = {key: value for key, value in words.items() if key != "steps"}
    lengths = {"equal steps": {"steps": steps}, "equal compute": {"flops": flops}}
    return plan_few_shots(words, {"attention": by_model(models), "length": lengths}, seeds)


def _named(rows: Rows) -> Rows:
    return [{**row, "name": f"{row['attention']}, {row['length']}"} for row in rows]


STUDY = Study(
    name="d6",
    title="Axial attention at equal compute",
    where="Appendix D.6",
    question="Is axial attention ahead of full attention, and still so at equal compute?",
    paper="Axial-ViT-B/32 and B/16 do better than their ViT-B counterparts, at the cost of more "
    "compute: each block becomes two, one over rows and one over columns, each with its MLP.",
    published=ResultTable(
        ("Figure 13", "5-shot accuracy", "compute"),
        [("Axial-ViT-B/32 against ViT-B/32", "better", "more"),
         ("Axial-ViT-B/16 against ViT-B/16", "better", "more")],
    ),
    settings={
        "smoke": Setting(plan=_plan(TINY, MODELS, 2, 2e10, 1), data=TINY_DATA, hours=0.001),
        "desk": Setting(
            plan=_plan(SHORT, MODELS, 120, 4.9e11, 3),
            data="shapes:medium",
            hours=0.06,
            why="4.9e11 FLOPs are the 120 steps of the plain ViT.",
        ),
        "gpu": Setting(
            plan=_plan({"recipe": "plain:90"}, BIG, 50_000, 5e18, 1),
            data="imagenet:DIR",
            hours=100,
        ),
        "paper": Setting(
            plan=_plan({"recipe": "pretrain:jft"}, BIG, 518_000, 2.24e20, 1),
            hours=12_000,
            why=NO_JFT,
        ),
    },
    by=("attention", "length"),
    measures={MEASURE: "10-shot accuracy", "top1": "top-1", "steps": "steps", "flops": "FLOPs"},
    numbers=("steps", "flops"),
    claims=(
        Claim(
            text="after equal steps the axial ViT is ahead",
            paper="Axial-ViT-B is better than ViT-B",
            check=greater(MEASURE, _at("axial ViT", "equal steps"), _at("ViT", "equal steps")),
        ),
        Claim(
            text="at equal compute the axial ViT is ahead",
            paper="not said: better, at more compute",
            check=greater(MEASURE, _at("axial ViT", "equal compute"), _at("ViT", "equal compute")),
        ),
    ),
    draw=lambda rows: draw_groups(groups(_named(rows), y=MEASURE, by="name"), x="10-shot accuracy"),
)  # fmt: skip
