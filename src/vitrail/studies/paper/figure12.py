"""Speed and memory over the input size: ViT, BiT, hybrid, axial (Figure 12)."""

from __future__ import annotations

import time

import torch

from vitrail.models import build, parse
from vitrail.models.cost.total import cost_of
from vitrail.models.cost.training_cost import training_cost
from vitrail.models.names import at_size
from vitrail.models.spec import Spec
from vitrail.plotting.study_plots import draw_lines
from vitrail.result import ResultTable
from vitrail.studies.claims import LEAST, MOST, Check, Claim, Finding, Rows, all_of, greater
from vitrail.studies.curves import curves
from vitrail.studies.small_runs import bit, hybrid, vit
from vitrail.studies.study import Measurements, Setting, Study

MEMORY = 16 * 2**30  # bytes of a TPUv3 core, on which the paper measured
ROUNDS = 3


def measure_speed(model: str, family: str, size: int, seed: int) -> dict[str, object]:
    """Measure images per second of inference, and compute cost and largest batch by theory."""
    spec = parse(at_size(model, (size, size)))
    torch.manual_seed(seed)
    net = build(spec).eval()
    images = torch.randn(max(1, 8 * 64**2 // size**2), 3, size, size)
    seconds = []
    with torch.inference_mode():
        for _ in range(ROUNDS + 1):  # the first also sets things up
            start = time.perf_counter()
            net(images)
            seconds.append(time.perf_counter() - start)
    return {
        "family": family,
        "size": size,
        "images_per_second": len(images) / min(seconds[1:]),
        "mflops": cost_of(spec).flops / 1e6,
        "batch": largest_batch(spec),
    }


def largest_batch(spec: Spec) -> int:
    """Compute how many images a training step can hold in MEMORY."""
    state = 16 * cost_of(spec).parameters  # weights, gradients and Adam's two averages
    one, two = (training_cost(spec, batch=batch).activation_bytes for batch in (1, 2))
    once = one - (two - one)  # kept however large the batch is, such as standardized weights
    return (MEMORY - state - once) // (two - one)


def _cases(models: dict[str, str], sizes: list[int]) -> dict[str, dict[str, object]]:
    return {
        f"{family} at {size}": {"model": model, "family": family, "size": size}
        for family, model in models.items()
        for size in sizes
    }


def _plan(models: dict[str, str], sizes: list[int], seeds: int) -> Measurements:
    return Measurements(
        measure_speed, _cases(models, sizes), seeds=range(seeds), timed=("images_per_second",)
    )


SMALL = {
    "ViT": vit(8, 4, 64, "pool=gap"),
    "BiT": bit("1-1-1"),
    "hybrid": hybrid("1-1"),
    "axial ViT": f"Axial{vit(8)}",
}
BIG = {
    "ViT": "ViT-B/16",
    "BiT": "BiT-R50x1",
    "hybrid": "R50+ViT-B/16",
    "axial ViT": "AxialViT-B/16",
}


def _times(check: Check) -> Check:
    """Count in numbers of images, not in points."""

    def counted(rows: Rows, level: float) -> Finding:
        keys = ("batch", "images_per_second")
        small = [{**row, **{key: _hundredth(row.get(key)) for key in keys}} for row in rows]
        found = check(small, level)
        return Finding(**{**vars(found), "unit": "images"})

    return counted


def _hundredth(value: object) -> float | None:
    return value / 100 if isinstance(value, int | float) else None


def _more_batch(size: str) -> Check:
    first, second = ({"family": family, "size": size} for family in ("ViT", "BiT"))
    return _times(greater("batch", first, second))


STUDY = Study(
    name="figure12",
    title="Speed and memory over the input size",
    where="Figure 12, Appendix D.5",
    question="How do images per second and the largest batch change with the input size?",
    paper="ViTs are about as fast as similar ResNets; the theoretical bi-quadratic scaling with "
    "the size only barely begins for the largest models at the largest sizes. ViTs fit clearly "
    "larger batches (wording quoted from memory).",
    published=ResultTable(
        ("at 64 to 512 px", "ViT against ResNet"),
        [("images per second per core", "comparable"), ("largest batch per core", "larger")],
    ),
    settings={
        "smoke": Setting(plan=_plan(SMALL, [32, 64], 2), hours=0.001),
        "desk": Setting(
            plan=_plan(BIG, [64, 128, 224, 384], 3),
            hours=0.1,
            why="The paper's own models, inference; the largest batch is computed from the "
            "activations that training keeps, in the 16 GiB of a TPUv3 core. ViT-B/16 computes "
            "four times as much as BiT-R50x1, so the two are not at equal compute.",
        ),
        "gpu": Setting(plan=_plan(BIG, [64, 128, 224, 384, 512], 3), hours=0.1),
        "paper": Setting(
            plan=_plan(
                {**BIG, "ViT, large": "ViT-L/16", "BiT, large": "BiT-R152x2"},
                [64, 128, 224, 384, 512],
                3,
            ),
            hours=0.1,
        ),
    },
    by=("family", "size"),
    measures={
        "images_per_second": "images per second",
        "mflops": "MFLOPs per image",
        "batch": "largest batch",
    },
    numbers=("images_per_second", "mflops", "batch"),
    claims=(
        Claim(
            text="ViT fits larger batches than BiT, at the smallest and the largest size",
            paper="clearly larger batches",
            check=all_of(_more_batch(LEAST), _more_batch(MOST)),
        ),
        Claim(
            text="ViT is faster than BiT at the largest size",
            paper="about as fast",
            check=_times(
                greater(
                    "images_per_second",
                    {"family": "ViT", "size": MOST},
                    {"family": "BiT", "size": MOST},
                )
            ),
        ),
    ),
    draw=lambda rows: draw_lines(
        curves(rows, x="size", y="images_per_second", by="family"),
        x="input size in pixels",
        y="images per second",
        percent=False,
        log_y=True,
    ),
)
