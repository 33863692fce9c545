"""The shape of a ViT: depth, width, MLP and patch size, one at a time (Figure 8)."""

from __future__ import annotations

from vitrail.plotting.study_plots import draw_lines
from vitrail.result import ResultTable
from vitrail.studies.claims import Claim, Rows, greater
from vitrail.studies.curves import curves
from vitrail.studies.engine.sweep_plan import Sweep
from vitrail.studies.plans import NO_JFT, plan_few_shots
from vitrail.studies.small_runs import SHORT, TINY, TINY_DATA, vit
from vitrail.studies.study import Setting, Study

MEASURE = "fewshot_10"


def _shapes(depth: int, width: int, patch: int) -> dict[str, dict[str, object]]:
    """Vary each side of a shape by factors of 2, the others as they are."""
    heads = {half: max(1, half // 32) for half in (width // 2, width, 2 * width)}
    shape = {"model.depth": depth, "model.width": width, "model.mlp": 2 * width}
    plain: dict[str, object] = {
        **shape,
        "model.heads": heads[width],
        "model.patch": f"{patch}x{patch}",
    }
    return {
        "base": plain,
        **{f"depth {way}": {**plain, "model.depth": n} for way, n in _ways(depth)},
        **{
            f"width {way}": {**plain, "model.width": n, "model.heads": heads[n]}
            for way, n in _ways(width)
        },
        **{f"mlp {way}": {**plain, "model.mlp": n} for way, n in _ways(2 * width)},
        **{f"patch {way}": {**plain, "model.patch": f"{n}x{n}"} for way, n in _ways(patch)},
    }


def _ways(value: int) -> list[tuple[str, int]]:
    return [("halved", value // 2), ("doubled", 2 * value)]


def _at(name: str) -> dict[str, str]:
    return {"shape": name}


def _plan(words: dict[str, object], shapes: dict[str, dict[str, object]], seeds: int) -> Sweep:
    return plan_few_shots(words, {"shape": shapes}, seeds)


def _lines(rows: Rows) -> Rows:
    """Put the base into the line of each side."""
    found = []
    for row in rows:
        sides = ("depth", "width", "mlp", "patch")
        mine = sides if row["shape"] == "base" else (row["shape"].split()[0],)
        found += [{**row, "side": side} for side in mine]
    return found


STUDY = Study(
    name="figure8",
    title="The shape of a ViT",
    where="Figure 8, Appendix D.2",
    question="Which side of a ViT should grow: depth, width, the MLP, or the number of patches?",
    paper="Around 8 layers, width 1024, MLP 2048, patch 32 (ImageNet 5-shot), depth helps most (up "
    "to 64 layers, with diminishing returns after 16), width least; smaller patches help without "
    "any parameters.",
    published=ResultTable(
        ("side", "effect on 5-shot accuracy"),
        [("depth", "largest"), ("patch size", "robust, no parameters"), ("width", "smallest")],
    ),
    settings={
        "smoke": Setting(
            plan=_plan({**TINY, "model": vit(8, 2, 32)}, _shapes(2, 32, 8), 1),
            data=TINY_DATA,
            hours=0.001,
        ),
        "desk": Setting(
            plan=_plan({**SHORT, "steps": 240, "model": vit(8)}, _shapes(4, 64, 8), 6),
            data="shapes:medium",
            hours=0.07,
            why="Around 4 layers, width 64, MLP 128, patch 8, halved and doubled; 240 steps of "
            "64 images, so that a width of 128 and patches of 4 stay affordable; six seeds, as "
            "with three depth was surprising, and depth against width undecided.",
        ),
        "gpu": Setting(
            plan=_plan({"recipe": "plain:90", "model": "ViT-S/32"}, _shapes(8, 384, 32), 1),
            data="imagenet:DIR",
            hours=60,
        ),
        "paper": Setting(
            plan=_plan({"recipe": "pretrain:jft", "model": "ViT-B/32"}, _shapes(8, 1024, 32), 1),
            hours=10_000,
            why=NO_JFT,
        ),
    },
    by=("shape",),
    measures={MEASURE: "10-shot accuracy", "top1": "top-1", "parameters": "parameters"},
    numbers=("parameters",),
    claims=(
        Claim(
            text="twice the depth helps",
            paper="depth helps most",
            check=greater(MEASURE, _at("depth doubled"), _at("base")),
        ),
        Claim(
            text="twice the depth helps more than twice the width",
            paper="width helps least",
            check=greater(MEASURE, _at("depth doubled"), _at("width doubled")),
        ),
        Claim(
            text="half the patch size helps, without any parameters",
            paper="robust gains",
            check=greater(MEASURE, _at("patch halved"), _at("base")),
        ),
    ),
    draw=lambda rows: draw_lines(
        curves(_lines(rows), x="flops", y=MEASURE, by="side"),
        x="FLOPs of training",
        y="10-shot accuracy",
    ),
)
