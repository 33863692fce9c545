"""How many images a ViT needs: few-shot accuracy over nested subsets (Figure 4)."""

from __future__ import annotations

from vitrail.plotting.study_plots import draw_lines
from vitrail.result import ResultTable
from vitrail.studies.claims import LEAST, MOST, Claim, crosses, gains_more, gap_closes, greater
from vitrail.studies.curves import curves
from vitrail.studies.engine.sweep_plan import Sweep
from vitrail.studies.plans import NO_JFT, by_model, plan_few_shots
from vitrail.studies.small_runs import SHORT, TINY, TINY_DATA, bit, hybrid, vit
from vitrail.studies.study import Setting, Study

MEASURE, IMAGES = "fewshot_10", "data.take"
MODELS = {
    "ViT, small": vit(8, 4, 64),
    "ViT, large": vit(8, 6, 128),
    "BiT, small": bit("1-1"),
    "BiT, large": bit("1-1-1"),
    "hybrid": hybrid("1-1"),
}
BIG = {
    "ViT, small": "ViT-b/32",
    "ViT, large": "ViT-L/16",
    "BiT, small": "BiT-R50x1",
    "BiT, large": "BiT-R152x2",
    "hybrid": "R50+ViT-B/32",
}
FEW, MANY = {IMAGES: LEAST}, {IMAGES: MOST}


def _at(name: str) -> dict[str, str]:
    return {"family": name}


def _plan(words: dict[str, object], models: dict[str, str], images: list[int], seeds: int) -> Sweep:
    return plan_few_shots(words, {"family": by_model(models), IMAGES: images}, seeds)


STUDY = Study(
    name="figure4",
    title="How many images a ViT needs",
    where="Figure 4, section 4.3",
    question="Do ResNets win with few images, and do ViTs pass them with many?",
    paper="On 9M of JFT's images ResNets are ahead; ViT-B/32 is much worse than ResNet50 there and "
    "better on 90M and more; the same holds for ResNet152x2 and ViT-L/16. Larger ViTs need more "
    "images than smaller ones (5-shot ImageNet, equal hyper-parameters; quoted from memory).",
    published=ResultTable(
        ("JFT images", "9M", "30M", "90M", "300M"),
        [
            ("ViT-B/32 against ResNet50x1", "much worse", "", "better", "better"),
            ("ViT-L/16 against ResNet152x2", "worse", "", "better", "better"),
        ],
    ),
    settings={
        "smoke": Setting(
            plan=_plan({**TINY, "batch": 8}, MODELS, [40, 100], 1), data=TINY_DATA, hours=0.002
        ),
        "desk": Setting(
            plan=_plan({**SHORT, "steps": 150}, MODELS, [100, 500, 2500, 12_500], 3),
            data="shapes:medium",
            hours=0.1,
            why="The same number of steps for every subset, so that only the images differ: 96 "
            "epochs of 100 images, 0.8 of 12,500. No model comes near convergence in 9,600 "
            "images seen, and 12,500 are many only for this desk.",
        ),
        "gpu": Setting(
            plan=_plan(
                {"recipe": "plain:90", "steps": 20_000},
                BIG,
                [13_000, 64_000, 320_000, 1_280_000],
                1,
            ),
            data="imagenet:DIR",
            hours=120,
        ),
        "paper": Setting(
            plan=_plan(
                {"recipe": "pretrain:jft", "steps": 518_000},
                BIG,
                [9_000_000, 30_000_000, 90_000_000, 300_000_000],
                1,
            ),
            hours=90_000,
            why=NO_JFT,
        ),
    },
    by=("family", IMAGES),
    measures={MEASURE: "10-shot accuracy", "top1": "top-1"},
    claims=(
        Claim(
            text="with the fewest images the small BiT is ahead of the small ViT",
            paper="ResNet50 far ahead on 9M",
            check=greater(MEASURE, {**_at("BiT, small"), **FEW}, {**_at("ViT, small"), **FEW}),
        ),
        Claim(
            text="the small ViT is behind the small BiT with few images, and ahead with many",
            paper="B/32 passes ResNet50 by 90M",
            check=crosses(MEASURE, _at("ViT, small"), _at("BiT, small"), FEW, MANY),
        ),
        Claim(
            text="the large ViT is behind the large BiT with few images, and ahead with many",
            paper="L/16 passes ResNet152x2",
            check=crosses(MEASURE, _at("ViT, large"), _at("BiT, large"), FEW, MANY),
        ),
        Claim(
            text="BiT's lead over ViT (both large) shrinks with more images",
            paper="turns into a lead of ViT",
            check=gap_closes(MEASURE, _at("BiT, large"), _at("ViT, large"), FEW, MANY),
        ),
        Claim(
            text="the large ViT gains more from more images than the small one",
            paper="larger ViTs need more images",
            check=gains_more(MEASURE, _at("ViT, large"), _at("ViT, small"), FEW, MANY),
        ),
    ),
    draw=lambda rows: draw_lines(
        curves(rows, x=IMAGES, y=MEASURE, by="family"),
        x="images to learn from",
        y="10-shot accuracy",
    ),
)
