"""Pre-training without labels, by masked patches (section 4.6, Appendix B.1.2)."""

from __future__ import annotations

from typing import Any

from vitrail.plotting.study_plots import draw_groups
from vitrail.result import ResultTable
from vitrail.studies.claims import Claim, greater, ordered
from vitrail.studies.curves import groups
from vitrail.studies.engine.sweep_plan import Sweep
from vitrail.studies.plans import NO_JFT, then
from vitrail.studies.small_runs import SHORT, TINY, TINY_DATA, vit
from vitrail.studies.study import DATA, Setting, Study

MEASURE = "then.top1"
MASKED = {"task": "masked-patches"}
DECODER = {"mim.decoder.depth": 1, "mim.decoder.width": 64, "mim.decoder.heads": 2}
"""MAE's, as light beside a small encoder as its own is beside ViT-L."""


def _ways(model: str) -> dict[str, dict[str, Any]]:
    simmim = {"mim.mask.masked": 1.0, "mim.mask.replaced": 0.0, "mim.distance": "absolute"}
    simmim |= {"mim.pixels": "input"}
    pixels = {"mim.target": "normalized-pixels", "mim.mask.ratio": 0.75}
    return {
        "scratch": {"then.weights": None, "then.model": model},
        "masked patches": MASKED,
        "masked, 15 %": {**MASKED, "mim.mask.ratio": 0.15},
        "masked, 4 x 4 colors": {**MASKED, "mim.target": "colors"},
        "masked, L2": {**MASKED, "mim.target": "pixels"},
        "SimMIM": {**MASKED, **simmim, "mim.target": "pixels", "mim.mask.ratio": 0.6},
        "MAE": {"task": "mae", **pixels, **DECODER},
        "supervised": {"task": "classification"},
    }


def _at(name: str) -> dict[str, str]:
    return {"pretraining": name}


def _plan(
    model: str,
    first: dict[str, object],
    second: dict[str, object],
    seeds: int,
    subset: dict[str, object] | None = None,
) -> Sweep:
    later = then({**second, **(subset or {})})
    return Sweep(
        base={"data": DATA, "model": model, **first, **later},
        axes={"pretraining": _ways(model)},
        seeds=range(seeds),
    )


STUDY = Study(
    name="selfsupervision",
    title="Pre-training without labels",
    where="section 4.6, Appendix B.1.2",
    question="What is masked patch prediction worth, against scratch and against labels?",
    paper="ViT-B/16 pre-trained by masked patches reaches 79.9 % on ImageNet: 2 points above "
    "scratch, 4 below supervised pre-training. 4 x 4 colors and L2 on pixels are slightly worse "
    "than one of 512 mean colors, and so are 15 % of the patches than 50 %.",
    published=ResultTable(
        ("ViT-B/16", "ImageNet"),
        [("scratch", "77.9"), ("masked patches", "79.9"), ("supervised (ImageNet-21k)", "83.97")],
    ),
    settings={
        "smoke": Setting(
            plan=_plan(vit(8, 1, 32, "pool=gap"), TINY, TINY, 1), data=TINY_DATA, hours=0.002
        ),
        "desk": Setting(
            plan=_plan(
                vit(4, 2, 64, "pool=gap"),
                {**SHORT, "steps": 200},
                {**SHORT, "steps": 120, "lr": 1e-3},
                3,
                {"data.take": 5000},
            ),
            data="shapes:medium",
            hours=0.08,
            why="All images are there to pre-train on, but only 5,000 of them have labels when "
            "fine-tuning; 200 steps to pre-train and 120 to fine-tune for each way.",
        ),
        "gpu": Setting(
            plan=_plan(
                "ViT-S/16,pool=gap",
                {"recipe": "plain:90", "epochs": 100},
                {"recipe": "plain:90", "epochs": 30},
                1,
                {"data.take": "10%"},
            ),
            data="imagenet:DIR",
            hours=120,
        ),
        "paper": Setting(
            plan=_plan(
                "ViT-B/16",
                {"recipe": "masked-patches"},
                {"recipe": "finetune:imagenet"},
                1,
            ),
            hours=60_000,
            why=NO_JFT,
        ),
    },
    by=("pretraining",),
    measures={MEASURE: "top-1, fine-tuned"},
    claims=(
        Claim(
            text="scratch < masked patches < supervised",
            paper="77.9, 79.9, 83.97 %",
            check=ordered(MEASURE, _at("scratch"), _at("masked patches"), _at("supervised")),
        ),
        Claim(
            text="512 mean colors are better than L2 on pixels",
            paper="L2 slightly worse",
            check=greater(MEASURE, _at("masked patches"), _at("masked, L2")),
        ),
        Claim(
            text="512 mean colors are better than 4 x 4 colors",
            paper="4 x 4 slightly worse",
            check=greater(MEASURE, _at("masked patches"), _at("masked, 4 x 4 colors")),
        ),
        Claim(
            text="50 % of the patches are better than 15 %",
            paper="15 % slightly worse",
            check=greater(MEASURE, _at("masked patches"), _at("masked, 15 %")),
        ),
        Claim(
            text="beyond the paper: MAE is better than masked patches",
            paper="-",
            check=greater(MEASURE, _at("MAE"), _at("masked patches")),
        ),
    ),
    draw=lambda rows: draw_groups(groups(rows, y=MEASURE, by="pretraining"), x="top-1, fine-tuned"),
)
