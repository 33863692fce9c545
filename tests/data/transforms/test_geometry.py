"""geometry.py: crop boxes against plain re-implementations and peers, evaluation's fits."""

import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats

from tests.parity import peers
from vitrail.data.rng import CounterRNG
from vitrail.data.transforms.augment import Augment, Crop
from vitrail.data.transforms.geometry import (
    Box,
    Range,
    fit_to_size,
    random_box,
    random_boxes,
    small_size,
)
from vitrail.data.transforms.preprocess import Fit, Preprocess

AREA, RATIO = (0.05, 1.0), (3 / 4, 4 / 3)


def inception_box(rng: CounterRNG, height: int, width: int, area: Range, ratio: Range) -> Box:
    return random_box(rng, height, width, Augment(crop="inception", area=area, ratio=ratio))


def area_box(rng: CounterRNG, height: int, width: int, area: Range, ratio: Range) -> Box:
    return random_box(rng, height, width, Augment(crop="area", area=area, ratio=ratio))


BOX: dict[str, Callable[..., Box]] = {"inception": inception_box, "area": area_box}
SIDES = st.one_of(st.integers(1, 4), st.integers(1, 3000))


def images(count: int) -> CounterRNG:
    return CounterRNG(7, "image", 3, np.arange(count))


def boxes_of(crop: Crop, count: int, height: int, width: int, **limits: Any) -> np.ndarray:
    boxes, _ = random_boxes(images(count), height, width, Augment(crop=crop, **limits))
    return boxes


def assert_alike(ours: np.ndarray, theirs: np.ndarray) -> None:
    """Hold two samples to one distribution, by Kolmogorov and Smirnov."""
    result: Any = stats.ks_2samp(ours, theirs)
    assert result.pvalue > 0.01


def plan(fit: Fit, size: tuple[int, int] = (224, 224), crop: float = 1.0) -> Preprocess:
    half = (0.5, 0.5, 0.5)
    return Preprocess(size=size, mean=half, std=half, interpolation="area", fit=fit, crop=crop)


@pytest.mark.parametrize("crop", ["inception", "area"])
@given(SIDES, SIDES, st.floats(0.001, 1), st.floats(0.2, 5), st.integers(0, 2**64 - 1))
@settings(max_examples=40)
def test_boxes_lie_within_the_image(
    crop: str, height: int, width: int, least: float, ratio: float, index: int
) -> None:
    rng = CounterRNG(1, "image", 0, np.array([index], np.uint64))
    box = BOX[crop](rng, height, width, (least, 1.0), (min(ratio, 1), max(ratio, 1)))
    assert box.height >= 1
    assert box.width >= 1
    assert 0 <= box.top <= height - box.height
    assert 0 <= box.left <= width - box.width


def plain_inception(dataset: random.Random, height: int, width: int) -> tuple[int, ...]:
    """Follow TensorFlow's rule for one image, with a generator that is not ours."""
    least, most = AREA[0] * height * width, AREA[1] * height * width
    for _ in range(100):
        aspect = dataset.uniform(*RATIO)
        low, high = round(math.sqrt(least / aspect)), round(math.sqrt(most / aspect))
        while high > height or round(high * aspect) > width:
            high -= 1
        tall = dataset.randint(min(low, high), high)
        if tall * round(tall * aspect) < least:
            tall += 1
        if tall * round(tall * aspect) > most:
            tall -= 1
        wide = round(tall * aspect)
        if least <= tall * wide <= most and 0 < tall <= height and 0 < wide <= width:
            top = dataset.randrange(height - tall) if tall < height else 0
            left = dataset.randrange(width - wide) if wide < width else 0
            return top, left, tall, wide
    return 0, 0, height, width


@pytest.mark.parametrize(("height", "width"), [(375, 500), (500, 375), (32, 32), (20, 300)])
def test_inception_boxes_are_distributed_as_tensorflows(height: int, width: int) -> None:
    ours = boxes_of("inception", 6000, height, width)
    dataset = random.Random(0)
    plain = np.array([plain_inception(dataset, height, width) for _ in range(6000)])
    for column in range(4):
        assert_alike(ours[:, column], plain[:, column])
    assert_alike(ours[:, 3] / ours[:, 2], plain[:, 3] / plain[:, 2])


def test_inception_heights_are_uniform_and_far_edges_never_reached() -> None:
    top, left, height, width = boxes_of(
        "inception", 20_000, 100, 100, area=(0.04, 1.0), ratio=(1.0, 1.0)
    ).T
    assert np.array_equal(height, width)
    counts = np.bincount(height, minlength=101)
    assert counts[:20].sum() == 0
    assert stats.chisquare(counts[20:]).pvalue > 0.01
    smaller = height < 100  # there TensorFlow draws below 100 - height, not up to it
    assert np.all(top[smaller] + height[smaller] < 100)
    assert np.all(left[smaller] + width[smaller] < 100)
    assert np.any(top[smaller] + height[smaller] == 99)


def test_inception_takes_small_boxes_more_often() -> None:
    inception, area = boxes_of("inception", 5000, 400, 400), boxes_of("area", 5000, 400, 400)
    assert np.median(inception[:, 2:].prod(1)) < 0.42 * 400**2
    assert np.median(area[:, 2:].prod(1)) > 0.45 * 400**2


def test_the_whole_image_is_taken_when_no_box_fits() -> None:
    rng = images(1)
    box = inception_box(rng, 10, 1000, (0.9, 1.0), RATIO)
    assert box == Box(0, 0, 10, 1000)
    expected = images(1)
    for _ in range(100 * 4):
        expected.uniform()
    assert rng.uniform() == expected.uniform()


def torchvision_boxes() -> Callable[..., tuple[int, ...]]:
    transforms = peers.load("torchvision.transforms")
    return transforms.RandomResizedCrop.get_params


@pytest.mark.parametrize(("height", "width"), [(375, 500), (32, 32), (60, 300)])
def test_area_boxes_are_distributed_as_torchvisions(height: int, width: int) -> None:
    draw, image = torchvision_boxes(), torch.empty(3, height, width)
    theirs = np.array([draw(image, list(AREA), list(RATIO)) for _ in range(2000)])
    ours = boxes_of("area", 2000, height, width)
    for column in range(4):
        assert_alike(ours[:, column], theirs[:, column])


@given(SIDES, SIDES, st.floats(0.3, 1), st.floats(1, 3))
@settings(max_examples=25)
def test_area_falls_back_to_torchvisions_middle(
    height: int, width: int, low: float, high: float
) -> None:
    draw, area = torchvision_boxes(), (1e-9, 2e-9)  # no such small box has a pixel
    theirs = draw(torch.empty(3, height, width), list(area), [low, high])
    assert area_box(images(1), height, width, area, (low, high)) == theirs


@pytest.mark.parametrize("crop", ["inception", "area"])
def test_many_boxes_are_each_images_own(crop: Crop) -> None:
    """Whichever images are drawn together, and however many tries some of them take."""
    height, width = 30, 50
    augment = Augment(crop=crop, area=(0.6, 1.0), ratio=(0.9, 1.2))
    order = np.random.default_rng(0).permutation(200)
    rng = CounterRNG(7, "image", 3, order)
    boxes, rows = random_boxes(rng, height, width, augment)
    retried = 0
    for place, index in enumerate(order.tolist()):
        own = CounterRNG(7, "image", 3, index)
        assert BOX[crop](own, height, width, augment.area, augment.ratio) == tuple(boxes[place])
        following = own.uniform()
        assert rows[place].uniform() == following
        retried += bool(following != rng.rows()[place].uniform())
    assert retried > 10


@pytest.mark.parametrize(
    ("preprocess", "image", "resized", "kept"),
    [
        (plan("stretch"), (480, 640), (224, 224), (0, 0)),
        (plan("stretch", crop=224 / 256), (480, 640), (256, 256), (16, 16)),  # DeiT, Hugging Face
        (plan("crop", crop=0.9), (480, 640), (248, 330), (12, 53)),  # floor(248.9), int(330.7)
        (plan("crop", crop=0.875), (333, 500), (256, 384), (16, 80)),
        (plan("crop", crop=0.875), (500, 333), (384, 256), (80, 16)),
        (plan("crop", crop=1.0), (100, 103), (224, 230), (0, 3)),
        (plan("crop", crop=1.0), (1000, 1013), (224, 226), (0, 1)),
        (plan("crop", crop=0.995), (225, 225), (225, 225), (0, 0)),  # 0.5 rounds to even, as there
        (plan("crop", (128, 256), crop=1.0), (300, 300), (256, 256), (64, 0)),
        (plan("small", crop=0.875), (333, 500), (256, 384), (16, 80)),
        (plan("small", (384, 384), crop=384 / 448), (375, 500), (448, 597), (32, 106)),
        (plan("small", (128, 256)), (300, 300), (256, 256), (64, 0)),
    ],
)
def test_evaluation_fits(
    preprocess: Preprocess,
    image: tuple[int, int],
    resized: tuple[int, int],
    kept: tuple[int, int],
) -> None:
    found = fit_to_size(*image, preprocess)
    assert found.before == (0, 0, *image)
    assert found.size == resized
    assert found.after == (*kept, *preprocess.size)


@given(st.integers(8, 700), st.integers(0, 100), st.integers(1, 2000), st.integers(1, 2000))
@settings(max_examples=60)
def test_fits_cover_the_input(side: int, more: int, height: int, width: int) -> None:
    """Also where the part to keep was computed from two sides, as configurations have them."""
    crop = side / (side + more)
    assert fit_to_size(side, side, plan("crop", (side, side), crop)).size == (
        side + more,
        side + more,
    )
    for kind in ("stretch", "crop", "small"):
        before, size, after = fit_to_size(height, width, plan(kind, (side, side), crop))
        assert 0 <= after.top <= size[0] - side
        assert 0 <= after.left <= size[1] - side
        assert min(size) == side + more
        assert before.top + before.height <= height
        assert before.left + before.width <= width


@given(st.integers(1, 600), st.integers(1, 3000), st.integers(1, 3000))
@example(224, 192, 195)  # 227.5, which is just below in float32
@settings(max_examples=60)
def test_small_follows_big_visions_formula(short: int, height: int, width: int) -> None:
    factor = torch.tensor(float(short)) / torch.tensor(float(min(height, width)))
    sides = (
        torch.round(torch.tensor(float(side)) * factor).int().item() for side in (height, width)
    )
    assert small_size(height, width, (short, short)) == tuple(sides)


@pytest.mark.parametrize("kind", ["crop", "small"])
def test_the_middle_of_an_endless_strip_is_taken(kind: Fit) -> None:
    before, size, after = fit_to_size(2, 1_000_001, plan(kind))
    assert before == (0, (1_000_001 - 32) // 2, 2, 32)
    assert size == (224, 16 * 224)
    assert after == (0, (16 * 224 - 224) // 2, 224, 224)
    assert fit_to_size(2, 1_000_001, plan("stretch")).before == (0, 0, 2, 1_000_001)
