"""operations.py: RandAugment as big_vision and torchvision do it, color jitter, random erasing.

CHECKSUMS are CRC-32 of what TensorFlow 2.21 made of `image(224, 224)` with the operations of
big_vision's pp/autoaugment.py (commit 538b8a8), in a graph and with NumPy 1.26, as it was used.
"""

import itertools
import random
import zlib
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import stats

from tests.parity.peers import load
from vitrail.data.rng import CounterRNG
from vitrail.data.transforms import operations
from vitrail.data.transforms.augment import Augment, Operations, RandAugment
from vitrail.data.transforms.operations import (
    BIG_VISION,
    TIMM,
    TORCHVISION,
    erase,
    jitter,
    randaugment,
)
from vitrail.data.transforms.preprocess import Preprocess

NAMES: dict[Operations, tuple[str, ...]] = {
    "big_vision": BIG_VISION,
    "torchvision": TORCHVISION,
    "timm": TIMM,
}
DEIT = RandAugment(magnitude=9, operations="timm", probability=0.5, magnitude_std=0.5)
IMAGENET = Preprocess(
    size=(48, 48),
    mean=(0.485, 0.456, 0.406),
    std=(0.229, 0.224, 0.225),
    interpolation="bicubic",
    fit="crop",
    crop=0.875,
)
MAGNITUDES = (0, 10, 15, 20)
CHECKSUMS = {  # an operation's, one for each magnitude; signed ones for both signs
    "AutoContrast": "3cbe7587 3cbe7587 3cbe7587 3cbe7587",
    "Equalize": "db822386 db822386 db822386 db822386",
    "Invert": "33b53a72 33b53a72 33b53a72 33b53a72",
    "Posterize": "ed07f12f 6efd7969 137ed20c 6f3dc8eb",
    "Solarize": "33b53a72 33b53a72 7ee5f681 33b53a72",
    "SolarizeAdd": "6f3dc8eb 89e1e125 64fa87dc 43b81706",
    "Color": "2ec98c32 d377494c 01281fc3 afa13239",
    "Contrast": "4af8e373 56f3985b 9e2d8b2c ce4eaaed",
    "Brightness": "51f07f64 ddbde609 e77ec26e 58bb3243",
    "TranslateX+": "6f3dc8eb 8e54e8af 333c09b2 15b55b55",
    "TranslateX-": "6f3dc8eb 79cdf67c 51c5b4c6 ce1e64c3",
    "TranslateY+": "6f3dc8eb 0a91338a e4c0fe6e 8364d33d",
    "TranslateY-": "6f3dc8eb 2be4a8e0 a7260065 9bfb3e02",
    "ShearX+": "6f3dc8eb 5e7fcff0 ac0bceec 25537cbd",
    "ShearY+": "6f3dc8eb 81dc0407 ced269e5 8cd554e7",
}
UNTOUCHED = {"Rotate", "ShearX", "ShearY", "TranslateX", "TranslateY", "Cutout", "SolarizeAdd"}


class Scripted(CounterRNG):
    """Draws that are given."""

    def __init__(self, numbers: Iterable[float]) -> None:
        self.numbers = list(numbers)

    def uniform(self, low: float = 0.0, high: float = 1.0) -> np.ndarray:
        return np.array([low + (high - low) * self.numbers.pop(0)])


def image(height: int, width: int, channels: int = 3) -> np.ndarray:
    """Slopes with some grain, by a formula."""
    y, x = np.mgrid[:height, :width]
    slopes = [x * 255 // max(width - 1, 1), y * 255 // max(height - 1, 1), (x + y) * 97 // 61 % 256]
    grain = (x * 7919 + y * 104729) % 41
    made = [slopes[i % 3] * 200 // 255 + grain * (i + 1) % 50 + 5 for i in range(channels)]
    return np.clip(np.stack(made, axis=-1), 0, 255).astype(np.uint8)


def apply(
    name: str,
    pixels: np.ndarray,
    magnitude: float,
    kind: Operations = "big_vision",
    sign: int = 1,
    rest: Iterable[float] = (0.5, 0.5),
    preprocess: Preprocess | None = None,
) -> np.ndarray:
    """Apply one operation by its name, through draws that choose it."""
    names = NAMES[kind]
    chosen = (names.index(name) + 0.5) / len(names)
    spec = RandAugment(layers=1, magnitude=magnitude, operations=kind)
    numbers = Scripted([chosen, 0.2 if sign > 0 else 0.8, *rest])
    return randaugment(pixels, spec, numbers, preprocess)


def checksum(pixels: np.ndarray) -> str:
    return f"{zlib.crc32(pixels.tobytes()):08x}"


@pytest.mark.parametrize("name", CHECKSUMS)
def test_big_vision_at_224_is_tensorflows(name: str) -> None:
    bare, sign = name.rstrip("+-"), -1 if name.endswith("-") else 1
    made = [apply(bare, image(224, 224), magnitude, sign=sign) for magnitude in MAGNITUDES]
    assert " ".join(map(checksum, made)) == CHECKSUMS[name]


@pytest.mark.parametrize("magnitude", [0, 4, 10, 20])
def test_big_vision_sharpness(magnitude: float) -> None:
    """TensorFlow's averages of 9 floats may come out just below a whole number; ours do not."""
    pixels = image(24, 24).astype(int)
    base = pixels.copy()
    for y, x in itertools.product(range(1, 23), range(1, 23)):
        around = pixels[y - 1 : y + 2, x - 1 : x + 2].sum((0, 1))
        base[y, x] = (around + 4 * pixels[y, x]) // 13
    factor = np.float32(magnitude / 10 * 1.8 + 0.1)
    expected = np.clip(base + factor * (pixels - base).astype(np.float32), 0, 255).astype(int)
    assert np.array_equal(apply("Sharpness", image(24, 24), magnitude), expected)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("magnitude", [3.0, 10, 15])
@pytest.mark.parametrize("name", ["Rotate", "ShearX", "ShearY"])
def test_big_vision_geometry_by_brute_force(name: str, magnitude: float, sign: int) -> None:
    """Index (x, y) from the nearest of the turned or sheared index, gray outside; ties go up."""
    height, width = 40, 33
    pixels = image(height, width)
    made = apply(name, pixels, magnitude, sign=sign)
    level = sign * magnitude / 10 * (np.radians(30) if name == "Rotate" else 0.3)
    y, x = np.mgrid[:height, :width].astype(float)
    if name == "Rotate":
        cx, cy, cos, sin = (width - 1) / 2, (height - 1) / 2, np.cos(level), np.sin(level)
        x, y = cos * (x - cx) - sin * (y - cy) + cx, sin * (x - cx) + cos * (y - cy) + cy
    else:
        x, y = (x + level * y, y) if name == "ShearX" else (x, y + level * x)
    tie = (np.abs(x % 1 - 0.5) < 0.01) | (np.abs(y % 1 - 0.5) < 0.01)
    column, row = (np.floor(place + 0.5 + 1e-9).astype(int) for place in (x, y))
    inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
    expected = pixels[row.clip(0, height - 1), column.clip(0, width - 1)]
    expected[~inside] = 128
    border = np.abs(np.minimum(x, y) + 0.5) < 0.01  # where TensorFlow's ties go down, and outside
    clear = ~tie if name == "Rotate" else ~border
    assert clear.mean() > 0.9
    assert np.array_equal(made[clear], expected[clear])


def test_lengths_grow_with_the_image() -> None:
    """At 32 pixels a move by 100 of 224 is one by 14.3, and a hole of 80 of 224 one of 10."""
    moved = apply("TranslateX", image(32, 32), 10)
    assert np.array_equal(moved[:, :18], image(32, 32)[:, 14:])
    assert (moved[:, 18:] == 128).all()
    moved = apply("TranslateY", image(64, 32), 10, sign=-1)
    assert np.array_equal(moved[29:], image(64, 32)[:35])
    cut = apply("Cutout", image(32, 64), 10, rest=(0.5, 0.0))
    expected = image(32, 64)
    expected[11:21, :11] = 128
    assert np.array_equal(cut, expected)


def test_cutout_at_224() -> None:
    for row, column, magnitude in ((0, 0, 10), (100, 50, 15), (223, 223, 20)):
        made = apply("Cutout", image(224, 224), magnitude, rest=(row / 224, column / 224))
        expected = image(224, 224)
        half = 4 * magnitude
        expected[max(row - half, 0) : row + half, max(column - half, 0) : column + half] = 128
        assert np.array_equal(made, expected)


def test_magnitude_zero_is_not_nothing() -> None:
    """AugReg's light1: seven operations leave an image, the other nine do not."""
    pixels = image(32, 32)
    same = {name for name in BIG_VISION if np.array_equal(apply(name, pixels, 0), pixels)}
    assert same == UNTOUCHED
    assert np.array_equal(apply("Solarize", pixels, 0), 255 - pixels)
    assert set(np.unique(apply("Posterize", pixels, 0))) == {0, 128}
    assert apply("Brightness", pixels, 0).max() == pixels.max() // 10
    spans = apply("Contrast", pixels, 0)  # a tenth of the image, nine of 196
    assert (spans.min(), spans.max()) == (int(176.4 + 0.1 * pixels.min()), 176 + 25)


@pytest.mark.parametrize("magnitude", [0, 1, 9, 22, 30])
@pytest.mark.parametrize("shape", [(224, 224, 3), (32, 47, 3), (28, 28, 1), (1, 1, 3)], ids=str)
def test_torchvision_is_torchvisions(
    magnitude: int, shape: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = load("torchvision.transforms").RandAugment(num_ops=1, magnitude=magnitude)
    pixels = image(*shape)
    pillow = Image.fromarray(pixels[..., 0] if shape[2] == 1 else pixels)
    for number, sign in itertools.product(range(len(TORCHVISION)), (1, -1)):
        chosen = iter([number, int(sign < 0)])
        monkeypatch.setattr(
            torch, "randint", lambda *_, chosen=chosen: torch.tensor([next(chosen)])
        )
        theirs = np.array(peer(pillow)).reshape(shape)
        ours = apply(TORCHVISION[number], pixels, magnitude, "torchvision", sign=sign)
        assert np.array_equal(ours, theirs), (TORCHVISION[number], sign)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(
    "name", ["Equalize", "Invert", "Rotate", "SolarizeAdd", "Brightness", "TranslateX"]
)
def test_timm_agrees_where_it_means_the_same(
    name: str, sign: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    timm = load("timm.data.auto_augment")
    monkeypatch.setattr(random, "random", lambda: 0.2 if sign > 0 else 0.8)
    options = {
        "img_mean": (128,) * 3,
        "translate_const": 100,
        "interpolation": Image.Resampling.NEAREST,
    }
    operation = timm.AugmentOp(name, prob=1.0, magnitude=10, hparams=options)
    ours = apply(name, image(224, 224), 10, sign=sign)
    assert np.array_equal(ours, np.array(operation(Image.fromarray(image(224, 224)))))


@pytest.mark.parametrize("magnitude", [0, 4.5, 9, 9.99])
@pytest.mark.parametrize("shape", [(48, 48, 3), (32, 47, 3)], ids=str)
@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
def test_timm_is_timms(
    interpolation: Any,
    magnitude: float,
    shape: tuple[int, int, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As create_transform makes DeiT's: filled with ImageNet's mean, resampled as the crop is."""
    timm = load("timm.data.auto_augment")
    resample = Image.Resampling[interpolation.upper()]
    options = {"img_mean": (124, 116, 104), "interpolation": resample}
    assert [op.name for op in timm.rand_augment_ops(transforms=timm.rand_augment_choices(""))] == [
        *TIMM
    ]
    pixels, preprocess = image(*shape), replace(IMAGENET, interpolation=interpolation)
    for name, sign in itertools.product(TIMM, (1, -1)):
        monkeypatch.setattr(random, "random", lambda sign=sign: 0.2 if sign > 0 else 0.8)
        operation = timm.AugmentOp(name, prob=1.0, magnitude=magnitude, hparams=options)
        ours = apply(name, pixels, magnitude, "timm", sign=sign, preprocess=preprocess)
        assert np.array_equal(ours, np.array(operation(Image.fromarray(pixels)))), (name, sign)


def test_deits_policy_changes_images_as_often_and_as_much_as_timms(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`rand-m9-mstd0.5-inc1`; torchvision's operations, always applied, change them far more."""
    timm = load("timm.data.auto_augment")

    def posterize(pillow: Image.Image, bits: int, **_: Any) -> Image.Image:
        """As it was before Pillow refused to keep 0 bits."""
        return pillow.point(lambda value: value & ~(2 ** (8 - bits) - 1))

    monkeypatch.setitem(timm.NAME_TO_OP, "PosterizeIncreasing", posterize)
    random.seed(0)
    np.random.seed(0)  # which timm draws from
    options = {"img_mean": (124, 116, 104), "interpolation": Image.Resampling.BICUBIC}
    policy = timm.rand_augment_transform("rand-m9-mstd0.5-inc1", options)
    pixels, count = image(48, 48), 1500
    theirs = [np.array(policy(Image.fromarray(pixels))) for _ in range(count)]
    rows = [*CounterRNG(0, "image", 0, np.arange(count)).rows()]
    ours = [randaugment(pixels, DEIT, row, IMAGENET) for row in rows]
    change = [np.abs(np.subtract(made, pixels, dtype=np.int16)).mean((1, 2, 3))
              for made in (theirs, ours)]  # fmt: skip
    alike: Any = stats.ks_2samp(*change)
    assert alike.pvalue > 0.01
    kept = [int((each == 0).sum()) for each in change]
    as_often: Any = stats.fisher_exact([kept, [count - each for each in kept]])
    assert as_often.pvalue > 0.01
    assert kept[0] / count == pytest.approx(0.25, abs=0.05)
    always = RandAugment(magnitude=27, operations="torchvision")
    before = [randaugment(pixels, always, row) for row in rows[:300]]
    assert np.mean([np.array_equal(made, pixels) for made in before]) < 0.1


def test_the_magnitude_is_normal_and_within_its_range(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[float] = []

    def record(image: np.ndarray, magnitude: float, *_: Any) -> np.ndarray:
        drawn.append(magnitude)
        return image

    monkeypatch.setattr(operations, "_apply_timm", record)
    for row in CounterRNG(0, "image", 0, np.arange(2000)).rows():
        randaugment(image(2, 2), DEIT, row)
    assert stats.binomtest(len(drawn), 4000, 0.5).pvalue > 1e-3
    below = [each for each in drawn if each < 10]
    assert (
        stats.binomtest(len(drawn) - len(below), len(drawn), float(stats.norm.sf(2))).pvalue > 1e-3
    )
    normal = stats.truncnorm(-18, 2, loc=9, scale=0.5)
    assert stats.kstest(below, normal.cdf).pvalue > 1e-3
    assert max(drawn) == 10


@pytest.mark.parametrize("kind", ["big_vision", "torchvision", "timm"])
def test_what_is_filled_is_a_setting(kind: Operations) -> None:
    pixels, moved = (
        np.full((8, 8, 3), 200, np.uint8),
        NAMES[kind].index("TranslateXRel" if kind == "timm" else "TranslateX"),
    )
    full = {"big_vision": 20, "torchvision": 30, "timm": 10}[kind]
    numbers = [(moved + 0.5) / len(NAMES[kind]), 0.2]
    usual = {"big_vision": {128}, "torchvision": {0}, "timm": {124, 116, 104}}[kind]
    for fill, expected in ((None, usual), (7, {7})):
        spec = RandAugment(layers=1, magnitude=full, operations=kind, fill=fill)
        made = randaugment(pixels, spec, Scripted([*numbers]), IMAGENET)
        assert set(np.unique(made)) == expected | {200}


@pytest.mark.parametrize("kind", ["big_vision", "torchvision", "timm"])
def test_operations_and_signs_are_drawn_alike(kind: Operations) -> None:
    pixels, magnitude = image(24, 24), 21 if kind == "torchvision" else 7.0
    names = NAMES[kind]
    places = {
        apply(name, pixels, magnitude, kind, sign=sign).tobytes(): (number, sign)
        for number, name in enumerate(names)
        for sign in (-1, 1)
        if name != "Cutout"
    }
    unsigned = {place[0] for place in places.values()}
    assert len(unsigned) == len(names) - (kind == "big_vision"), "each makes another image"
    spec = RandAugment(layers=1, magnitude=magnitude, operations=kind)
    rows = CounterRNG(0, "image", 0, np.arange(3200)).rows()
    made = [places.get(randaugment(pixels, spec, row).tobytes(), (-1, 1)) for row in rows]
    counts = np.unique([number for number, _ in made], return_counts=True)[1]
    assert len(counts) == len(names)
    assert stats.chisquare(counts).pvalue > 1e-3
    rotated = [sign for number, sign in made if number == names.index("Rotate")]
    assert stats.binomtest(rotated.count(1), len(rotated)).pvalue > 1e-3


@pytest.mark.parametrize("kind", ["big_vision", "torchvision", "timm"])
def test_layers_follow_each_other(kind: Operations) -> None:
    pixels = image(16, 16)
    spec = RandAugment(layers=3, magnitude=8, operations=kind)
    one = RandAugment(layers=1, magnitude=8, operations=kind)
    for index, row in enumerate(CounterRNG(5, "image", 0, np.arange(20)).rows()):
        alone, step = CounterRNG(5, "image", 0, index), pixels
        for _ in range(3):
            step = randaugment(step, one, alone)
        assert np.array_equal(randaugment(pixels, spec, row), step)


@pytest.mark.parametrize(
    ("kind", "expected"), [("big_vision", "310c7442"), ("torchvision", "eeac7053")]
)
def test_fixed_values_stay(kind: Operations, expected: str) -> None:
    """What was once trained with a seed can be trained again."""
    spec = RandAugment(layers=2, magnitude=9, operations=kind)
    augment = Augment(brightness=0.4, contrast=0.4, saturation=0.4, erase=0.5)
    made: list[np.ndarray] = []
    for row in CounterRNG(0, "image", 1, np.arange(8)).rows():
        pixels = randaugment(image(32, 32), spec, row)
        made.append(erase(jitter(pixels, augment, row), augment, row))
    assert checksum(np.stack(made)) == expected


@pytest.mark.parametrize("kind", ["big_vision", "torchvision", "timm"])
@pytest.mark.parametrize("channels", [1, 2, 3, 4, 7])
def test_shape_and_type_stay_and_the_input_too(kind: Operations, channels: int) -> None:
    for name, magnitude, (height, width) in itertools.product(
        NAMES[kind],
        (0, 7.5, 10) if kind == "timm" else (0, 12.5, 30),
        [(1, 1), (1, 4), (3, 2), (10, 13)],
    ):
        pixels = image(height, width, channels)
        made = apply(name, pixels, magnitude, kind)
        assert (made.shape, made.dtype) == (pixels.shape, np.uint8), name
        assert np.array_equal(pixels, image(height, width, channels)), name


def jitter_numbers(order: tuple[int, ...], *factors: float) -> Scripted:
    return Scripted([*(np.argsort(order) / 4), *factors])


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 1, 0, 2), (2, 3, 1, 0)])
@pytest.mark.parametrize("shape", [(20, 30, 3), (20, 30, 1)], ids=str)
def test_jitter_is_torchvisions(
    order: tuple[int, ...], shape: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = load("torchvision.transforms").ColorJitter(0.4, 1.5, 0.4, 0.1)
    augment = Augment(brightness=0.4, contrast=1.5, saturation=0.4, hue=0.1)
    limits = [(0.6, 1.4), (0.0, 2.5), (0.6, 1.4), (-0.1, 0.1)]
    drawn = dict(zip(order, (0.9, 0.3, 0.1, 0.6), strict=True))
    factors = [low + (high - low) * drawn[i] for i, (low, high) in enumerate(limits)]
    monkeypatch.setattr(peer, "get_params", lambda *_: (torch.tensor(order), *factors))
    pixels = image(*shape)
    theirs = np.array(peer(Image.fromarray(pixels[..., 0] if shape[2] == 1 else pixels)))
    ours = jitter(pixels, augment, jitter_numbers(order, 0.9, 0.3, 0.1, 0.6))
    assert np.array_equal(ours, theirs.reshape(shape))


def test_jitter_does_only_what_is_on() -> None:
    pixels = image(9, 9)
    rows = CounterRNG(0, "image", 0, np.arange(8))
    for row in rows.rows():
        assert jitter(pixels, Augment(), row) is pixels
    for name in ("brightness", "contrast", "saturation", "hue"):
        options: dict[str, Any] = {name: 0.4}
        made = [jitter(pixels, Augment(**options), row) for row in rows.rows()]
        assert len(np.unique(made, axis=0)) > 6, name
    many = image(9, 9, 5)
    for row in rows.rows():
        assert np.array_equal(jitter(many, Augment(saturation=0.4, hue=0.4), row), many)


def test_jitter_takes_all_orders_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def record(letter: str) -> None:
        def change(image: np.ndarray, *_: float) -> np.ndarray:
            seen.append(letter)
            return image

        monkeypatch.setattr(
            operations, {"c": "mean_gray", "s": "gray", "h": "turn_hue"}[letter], change
        )

    for letter in "csh":
        record(letter)
    augment, pixels = Augment(contrast=0.1, saturation=0.1, hue=0.1), image(1, 1)
    for row in CounterRNG(0, "image", 0, np.arange(600)).rows():
        jitter(pixels, augment, row)
    orders = np.array(seen).reshape(600, 3)
    counts = np.unique(orders, axis=0, return_counts=True)[1]
    assert len(counts) == 6
    assert stats.chisquare(counts).pvalue > 1e-3


def erased_box(before: np.ndarray, after: np.ndarray) -> tuple[slice, slice]:
    changed = (before != after).any(-1)
    rows, columns = np.flatnonzero(changed.any(1)), np.flatnonzero(changed.any(0))
    return slice(rows[0], rows[-1] + 1), slice(columns[0], columns[-1] + 1)


def test_erase_fills_one_rectangle_with_noise() -> None:
    pixels, augment = np.zeros((60, 80, 3), np.uint8), Augment(erase=1.0)
    sizes: list[tuple[int, int]] = []
    drawn: list[np.ndarray] = []
    for row in CounterRNG(0, "image", 0, np.arange(300)).rows():
        made = erase(pixels, augment, row)
        assert not pixels.any()
        box = erased_box(pixels, made)
        sizes.append(made[box].shape[:2])
        drawn.append(made[box].ravel())
        outside = made.copy()
        outside[box] = 0
        assert not outside.any()
    height, width = np.array(sizes).T
    assert 0.018 < (height * width).min() / 4800 < (height * width).max() / 4800 < 0.345
    assert 0.28 < (height / width).min() < (height / width).max() < 3.6
    values = np.concatenate(drawn)
    assert stats.chisquare(np.bincount(values, minlength=256)).pvalue > 1e-3
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 4.5 / len(values) ** 0.5


def test_erase_takes_timms_rectangles() -> None:
    peer = load("timm.data.random_erasing").RandomErasing(1.0, mode="pixel", device="cpu")
    random.seed(0)
    pixels = np.zeros((50, 50, 3), np.uint8)
    ours, theirs = [], []
    for row in CounterRNG(1, "image", 0, np.arange(400)).rows():
        ours.append(erased_box(pixels, erase(pixels, Augment(erase=1.0), row)))
        made = peer(torch.zeros(3, 50, 50)).permute(1, 2, 0).numpy()
        theirs.append(erased_box(pixels, made))
    for measure in (
        lambda rows, columns: (rows.stop - rows.start) * (columns.stop - columns.start),
        lambda rows, columns: (rows.stop - rows.start) / (columns.stop - columns.start),
        lambda rows, _: rows.start,
        lambda _, columns: columns.start,
    ):
        pair = [[measure(*box) for box in boxes] for boxes in (ours, theirs)]
        assert stats.mannwhitneyu(pair[0], pair[1]).pvalue > 1e-3


@pytest.mark.parametrize("chance", [0.0, 0.25, 1.0])
def test_erase_happens_by_chance(chance: float) -> None:
    pixels, augment = image(20, 20), Augment(erase=chance)
    rows = CounterRNG(0, "image", 0, np.arange(400)).rows()
    times = sum(erase(pixels, augment, row) is not pixels for row in rows)
    assert stats.binomtest(times, 400, chance).pvalue > 1e-3


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("size", [(1, 1), (1, 9), (2, 2), (5, 4)])
def test_erase_of_any_shape(channels: int, size: tuple[int, int]) -> None:
    pixels = image(*size, channels)
    for row in CounterRNG(0, "image", 0, np.arange(20)).rows():
        made = erase(pixels, Augment(erase=1.0), row)
        assert (made.shape, made.dtype) == (pixels.shape, np.uint8)
    assert np.array_equal(pixels, image(*size, channels))
