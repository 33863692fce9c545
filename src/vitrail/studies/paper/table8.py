"""Position embeddings: which kind, and where they are added (Table 8)."""

from __future__ import annotations

from vitrail.plotting.study_plots import draw_groups
from vitrail.result import ResultTable
from vitrail.studies.claims import Claim, alike, all_of, greater
from vitrail.studies.curves import groups
from vitrail.studies.engine.sweep_plan import Sweep
from vitrail.studies.plans import NO_JFT, plan_few_shots
from vitrail.studies.small_runs import SHORT, TINY, TINY_DATA, vit
from vitrail.studies.study import Setting, Study

MEASURE = "fewshot_10"
PLACES = {"input": "input", "every layer": "every-layer", "shared": "shared"}
POSITIONS = {
    "none": {"model.position": "none"},
    **{
        f"{name}, {place}": {"model.position": kind, "model.position_at": at}
        for name, kind in (("1-D", "learned-1d"), ("2-D", "learned-2d"))
        for place, at in PLACES.items()
    },
    "relative": {"model.position": "relative", "model.position_at": "every-layer"},
    "sin-cos": {"model.position": "sincos-2d"},
    "rotary": {"model.position": "none", "model.rotary": "axial"},
}
FEW = {name: POSITIONS[name] for name in ("none", "1-D, input", "2-D, input", "relative", "rotary")}


def _at(name: str) -> dict[str, str]:
    return {"positions": name}


def _plan(words: dict[str, object], positions: dict[str, dict[str, str]], seeds: int) -> Sweep:
    return plan_few_shots(words, {"positions": positions}, seeds)


def _alike(paper: str, *names: str) -> Claim:
    first, *rest = names
    listed = "; ".join(names)
    checks = [alike(MEASURE, _at(first), _at(name), within=0.02) for name in rest]
    return Claim(text=f"within 2 points: {listed}", paper=paper, check=all_of(*checks))


STUDY = Study(
    name="table8",
    title="Position embeddings",
    where="Table 8, Appendix D.4",
    question="Does it matter how positions are encoded, and where they enter?",
    paper="Without positions 5-shot accuracy is far lower (61.4 %); 1-D, 2-D and relative ones, "
    "at the input, at every layer or shared, are all alike (64.0 to 64.3 %).",
    published=ResultTable(
        ("ViT-B/16, ImageNet 5-shot", "input", "every layer", "shared"),
        [
            ("none", "61.382", "", ""),
            ("1-D", "64.206", "63.964", "64.292"),
            ("2-D", "64.001", "64.046", "64.022"),
            ("relative", "64.032", "", ""),
        ],
    ),
    settings={
        "smoke": Setting(
            plan=_plan({**TINY, "model": vit(8, 1, 32)}, FEW, 1), data=TINY_DATA, hours=0.001
        ),
        "desk": Setting(
            plan=_plan({**SHORT, "steps": 150, "model": vit(4, 2)}, POSITIONS, 6),
            data="shapes:medium",
            hours=0.08,
            why="Patches of 4 pixels, so that 64 positions are to be told apart; two layers and "
            "150 steps of 64 images, so that ten kinds stay affordable; six seeds, as three "
            "left all but one claim undecided.",
        ),
        "gpu": Setting(
            plan=_plan({"recipe": "plain:90", "model": "ViT-S/16"}, POSITIONS, 1),
            data="imagenet:DIR",
            hours=200,
        ),
        "paper": Setting(
            plan=_plan({"recipe": "pretrain:jft", "model": "ViT-B/16"}, POSITIONS, 1),
            hours=55_000,
            why=NO_JFT,
        ),
    },
    by=("positions",),
    measures={MEASURE: "10-shot accuracy", "top1": "top-1"},
    claims=(
        Claim(
            text="without positions accuracy is more than 1 point lower than with 1-D ones",
            paper="61.4 against 64.2 %",
            check=greater(MEASURE, _at("1-D, input"), _at("none"), by=0.01),
        ),
        _alike("64.2, 64.0, 64.0 %", "1-D, input", "2-D, input", "relative"),
        _alike("64.2, 64.0, 64.3 %", "1-D, input", "1-D, every layer", "1-D, shared"),
        _alike("64.0, 64.0, 64.0 %", "2-D, input", "2-D, every layer", "2-D, shared"),
        Claim(
            text="beyond the paper: rotary positions are better than learned 1-D ones",
            paper="-",
            check=greater(MEASURE, _at("rotary"), _at("1-D, input")),
        ),
        Claim(
            text="beyond the paper: fixed sin-cos positions are better than learned 1-D ones",
            paper="-",
            check=greater(MEASURE, _at("sin-cos"), _at("1-D, input")),
        ),
    ),
    draw=lambda rows: draw_groups(groups(rows, y=MEASURE, by="positions"), x="10-shot accuracy"),
)
