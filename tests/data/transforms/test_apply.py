"""transforms.py: evaluation equal to peers', training equal however images come together."""

import io
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.data.decoding.images import encode, exif, photo
from tests.parity import peers
from vitrail.config import InputError
from vitrail.data.rng import CounterRNG
from vitrail.data.transforms import apply
from vitrail.data.transforms.apply import (
    eval_image,
    eval_pixels,
    normalize,
    train_image,
    train_pixels,
    with_channels,
)
from vitrail.data.transforms.augment import Augment, Crop, RandAugment
from vitrail.data.transforms.geometry import random_box
from vitrail.data.transforms.preprocess import Fit, Interpolation, Preprocess

PLAIN = Preprocess(
    size=(32, 32), mean=(0.5,) * 3, std=(0.25,) * 3, interpolation="bilinear", fit="stretch"
)
EVERYTHING = Augment(
    randaugment=RandAugment(), brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1, erase=0.5
)


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).integers(0, 256, shape, np.uint8)


def with_area(augment: Augment, least: float) -> Augment:
    """Keep at least a part of each image, where the crop is random in size."""
    return replace(augment, area=(least, 1.0)) if augment.crop in ("inception", "area") else augment


def one(index: int) -> CounterRNG:
    return CounterRNG(5, "image", 2, index)


def many(count: int) -> CounterRNG:
    return CounterRNG(5, "image", 2, np.arange(count))


# Evaluation: the same input as peers make, to the bit.


@pytest.mark.parametrize(("height", "width"), [(333, 500), (500, 333), (100, 103), (224, 700)])
@pytest.mark.parametrize(("side", "crop"), [(224, 0.9), (224, 0.875), (384, 1.0), (160, 0.95)])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_evaluation_is_timms(
    height: int, width: int, side: int, crop: float, interpolation: Interpolation
) -> None:
    data = peers.load("timm.data")
    transform = data.create_transform(
        side, is_training=False, interpolation=interpolation, crop_pct=crop, normalize=False
    )
    file = encode(noise(height, width, 3), "JPEG")
    theirs = transform(Image.open(io.BytesIO(file)).convert("RGB"))
    preprocess = replace(
        PLAIN, size=(side, side), interpolation=interpolation, fit="crop", crop=crop
    )
    assert np.array_equal(eval_image(file, preprocess), theirs.permute(1, 2, 0).numpy())


def test_evaluation_at_no_square_is_timms() -> None:
    data = peers.load("timm.data")
    transform = data.create_transform(
        (3, 128, 192), is_training=False, interpolation="bilinear", crop_pct=0.9, normalize=False
    )
    preprocess = replace(PLAIN, size=(128, 192), fit="crop", crop=0.9)
    for height, width in [(333, 500), (500, 333), (200, 300)]:
        image = noise(height, width, 3)
        theirs = transform(Image.fromarray(image)).permute(1, 2, 0).numpy()
        assert np.array_equal(eval_image(image, preprocess), theirs)


@pytest.mark.parametrize(
    ("processor", "interpolation", "crop"),
    [("ViTImageProcessorPil", "bilinear", 1.0), ("DeiTImageProcessorPil", "bicubic", 224 / 256)],
)
def test_evaluation_is_hugging_faces(
    processor: str, interpolation: Interpolation, crop: float
) -> None:
    name = processor.removesuffix("ImageProcessorPil").lower()
    module = peers.load(f"transformers.models.{name}.image_processing_pil_{name}")
    process = getattr(module, processor)(do_normalize=False, do_rescale=False)
    image = noise(333, 500, 3)
    (theirs,) = process(Image.fromarray(image), return_tensors="np")["pixel_values"]
    preprocess = replace(PLAIN, size=(224, 224), interpolation=interpolation, crop=crop)
    assert np.array_equal(eval_image(image, preprocess), theirs.transpose(1, 2, 0))


def test_evaluation_follows_big_visions_formula() -> None:
    """Resize_small(256) | central_crop(224) of 300 x 401: 256 x round(342.2), from column 59."""
    image = noise(300, 401, 3)
    preprocess = replace(PLAIN, size=(224, 224), interpolation="area", fit="small", crop=224 / 256)
    resized = np.asarray(Image.fromarray(image).resize((342, 256), Image.Resampling.BOX))
    assert np.array_equal(eval_image(image, preprocess), resized[16:240, 59:283])


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("fit", "crop"), [("stretch", 1.0), ("crop", 0.875), ("small", 0.875)])
def test_pixels_are_evaluated_as_images_are(channels: int, fit: Fit, crop: float) -> None:
    preprocess = replace(PLAIN, fit=fit, crop=crop)
    for size in [(32, 32), (28, 28), (40, 50)]:
        pixels = noise(3, *size, channels)
        made = eval_pixels(pixels, preprocess)
        assert np.array_equal(made, [eval_image(image, preprocess) for image in pixels])
        assert eval_pixels(pixels[:0], preprocess).shape == (0, 32, 32, 3)


def test_pixels_of_the_right_size_stay_as_they_are() -> None:
    pixels = noise(4, 32, 32, 3)
    assert eval_pixels(pixels, PLAIN) is pixels
    assert np.array_equal(eval_image(pixels[0], PLAIN), pixels[0])


# Training: crops in closed form.


def test_flips_are_exact_and_as_frequent_as_asked_for() -> None:
    pixels = noise(400, 32, 32, 3)
    whole = Augment(crop="whole", flip=0.3)
    made = train_pixels(pixels, whole, PLAIN, many(400))
    flipped = (made == pixels[:, :, ::-1]).all((1, 2, 3))
    assert np.array_equal(made[~flipped], pixels[~flipped])
    assert 90 < flipped.sum() < 150
    assert np.array_equal(train_pixels(pixels, replace(whole, flip=0.0), PLAIN, many(400)), pixels)


def test_padding_takes_every_window_of_a_black_border() -> None:
    image = 1 + noise(8, 16, 3) // 2
    preprocess = replace(PLAIN, size=(8, 16))
    made = train_pixels(
        np.stack([image] * 600), Augment(crop="pad", flip=0.0), preprocess, many(600)
    )
    bordered = np.pad(image, ((1, 1), (2, 2), (0, 0)))
    windows = [bordered[top : top + 8, left : left + 16] for top in range(3) for left in range(5)]
    counts = [sum(np.array_equal(one, window) for one in made) for window in windows]
    assert sum(counts) == 600
    assert min(counts) > 15


@pytest.mark.parametrize("crop", ["inception", "area"])
def test_a_random_part_is_the_box_that_is_drawn_after_the_flip(crop: Crop) -> None:
    image, augment = noise(50, 70, 3), Augment(crop=crop)
    for index in range(10):
        rng = one(index)
        flip = rng.uniform()[0] < 0.5
        top, left, height, width = random_box(rng, 50, 70, augment)
        part = Image.fromarray(image[top : top + height, left : left + width])
        expected = np.asarray(part.resize((32, 32), Image.Resampling.BILINEAR)).astype(int)
        made = train_image(image, augment, PLAIN, one(index))
        assert np.abs(made - (expected[:, ::-1] if flip else expected)).max() <= 2


def test_small_takes_a_window_of_the_resized_image() -> None:
    """Resize_small(64) | random_crop(56), as big_vision's resize_small(256) | random_crop(224)."""
    image, preprocess = noise(128, 200, 3), replace(PLAIN, size=(56, 56), interpolation="area")
    resized = np.asarray(Image.fromarray(image).resize((100, 64), Image.Resampling.BOX))
    seen = set()
    for index in range(60):
        made = train_image(image, Augment(crop="small", flip=0.0), preprocess, one(index))
        rng = one(index)
        rng.uniform()
        top, left = rng.below(9)[0], rng.below(45)[0]
        assert np.array_equal(made, resized[top : top + 56, left : left + 56])
        seen.add(int(top))
    assert seen == set(range(9))


@pytest.mark.parametrize(
    ("side", "window", "resized"), [(56, None, 64), (384, None, 448), (48, 0.75, 64)]
)
@pytest.mark.parametrize("crop", ["small", "square"])
def test_a_window_is_of_the_sources_size(
    crop: Crop, side: int, window: float | None, resized: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """256 for 224; 448 for 384 in transfer.py and AugReg; `square` stretches the image, as BiT."""
    asked: list[tuple[int, int]] = []

    def note(part: np.ndarray, size: tuple[int, int], _: Preprocess) -> np.ndarray:
        asked.append(size)
        return np.zeros((*size, 3), np.uint8)

    monkeypatch.setattr(apply, "resize_quickly", note)
    augment, preprocess = Augment(crop=crop, window=window), replace(PLAIN, size=(side, side))
    made = train_image(noise(100, 200, 3), augment, preprocess, one(0))
    assert made.shape == (side, side, 3)
    assert asked == [(resized, 2 * resized if crop == "small" else resized)]


# Training: where the pixels come from makes no difference.


@pytest.mark.parametrize("crop", ["inception", "area", "small", "square", "pad", "whole"])
def test_a_file_is_trained_on_as_its_pixels_are(crop: Crop) -> None:
    image, augment = noise(90, 70, 3), Augment(crop=crop)
    file = encode(image, "PNG")
    for index in range(5):
        made = train_image(image, augment, PLAIN, one(index))
        assert np.array_equal(train_image(file, augment, PLAIN, one(index)), made)
        assert made.shape == (32, 32, 3)
        assert made.flags.c_contiguous


@pytest.mark.parametrize("crop", ["inception", "area", "small"])
@pytest.mark.parametrize("orientation", [1, 6])
def test_decoding_a_fraction_shows_the_same_part(crop: Crop, orientation: int) -> None:
    """Sides that 8 doesn't divide, where a fraction's size is rounded; and turned images."""
    image, augment = photo(1203, 1605), with_area(Augment(crop=crop), 0.3)
    file = encode(image, "JPEG", quality=95, exif=exif(orientation))
    upright = image if orientation == 1 else np.rot90(image, 3)
    found = []
    for index in range(12):
        whole = train_image(upright, augment, PLAIN, one(index)).astype(int)
        found.append(train_image(file, augment, PLAIN, one(index)) - whole)
    assert np.abs(found).max() <= 3  # of the 6 values between two pixels
    # No way is preferred; turned, a row of which a part is missing comes first instead of last.
    assert np.abs(np.mean(found, axis=(0, 1, 2))).max() < (0.5 if orientation == 1 else 1.5)


def test_without_antialiasing_no_fraction_is_decoded() -> None:
    image = np.tile(np.array([0, 255], np.uint8)[:, None, None], (320, 640, 3))  # stripes
    file = encode(image, "JPEG", quality=95)
    made = train_image(file, Augment(), replace(PLAIN, antialias=False), one(0))
    assert made.std() > 50
    assert train_image(file, Augment(), PLAIN, one(0)).std() < 50


# Training: which images come together makes no difference.


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "nearest"])
@pytest.mark.parametrize("crop", ["inception", "area", "small", "pad", "whole"])
@pytest.mark.parametrize("size", [(32, 32), (28, 36), (90, 100)])
def test_a_batch_is_trained_on_as_its_images_are(
    size: tuple[int, int], crop: Crop, interpolation: Interpolation
) -> None:
    pixels, preprocess = noise(12, *size, 3), replace(PLAIN, interpolation=interpolation)
    augment = with_area(Augment(crop=crop), 0.5)
    made = train_pixels(pixels, augment, preprocess, many(12)).astype(int)
    for index, image in enumerate(pixels):
        away = np.abs(made[index] - train_image(image, augment, preprocess, one(index)))
        assert away.max() <= (2 if interpolation == "bicubic" else 1)
        assert away.mean() < 0.1


@pytest.mark.parametrize("crop", ["inception", "area", "pad"])
def test_operations_go_on_with_each_images_own_draws(crop: Crop) -> None:
    """In any order and company, also after crops that some images try again."""
    pixels = noise(40, 32, 32, 3)
    kept, augment = pixels.copy(), with_area(replace(EVERYTHING, crop=crop), 0.9)
    made = train_pixels(pixels, augment, PLAIN, many(40))
    order = np.random.default_rng(0).permutation(40)[:25]
    again = train_pixels(pixels[order], augment, PLAIN, CounterRNG(5, "image", 2, order))
    assert np.array_equal(again, made[order])
    alone = [train_image(image, augment, PLAIN, one(i)) for i, image in enumerate(pixels)]
    equal = [np.abs(a.astype(int) - b).mean() < 1 for a, b in zip(made, alone, strict=True)]
    assert sum(equal) >= 38  # an operation such as Posterize may turn 1 to 128
    assert np.array_equal(pixels, kept)


def test_operations_change_images() -> None:
    """Each that is asked for has a part in the result, and draws nothing otherwise."""
    image = photo(32, 32)
    plain = Augment(crop="whole", flip=0.0)
    options: dict[str, Any] = {"randaugment": RandAugment(layers=3), "brightness": 0.9}
    options |= {"contrast": 0.9, "saturation": 0.9, "hue": 0.5, "erase": 1.0}
    for name, value in options.items():
        augment = replace(plain, **{name: value})
        made = [train_image(image, augment, PLAIN, one(index)) for index in range(4)]
        assert any(not np.array_equal(one, image) for one in made), name
    assert np.array_equal(train_image(image, plain, PLAIN, one(0)), image)


# What the model takes.


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_normalizing_is_the_formula(dtype: torch.dtype) -> None:
    preprocess = replace(PLAIN, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
    batch = torch.from_numpy(np.arange(256, dtype=np.uint8).repeat(3).reshape(1, 16, 16, 3))
    values = batch.double() / 255
    mean, std = torch.tensor([preprocess.mean, preprocess.std], dtype=torch.float64)
    expected = ((values - mean) / std).permute(0, 3, 1, 2)
    made = normalize(batch, preprocess, device="cpu", dtype=dtype)
    assert made.dtype == dtype
    assert made.is_contiguous()
    limit = {torch.float32: 1e-6, torch.float64: 1e-14, torch.bfloat16: 2**-8 * 3}[dtype]
    assert (made.double() - expected).abs().max() <= limit


def test_grey_and_colors_turn_into_each_other_as_pillow_does() -> None:
    colors = noise(2, 20, 30, 3)
    gray = with_channels(colors, 1)
    assert np.array_equal(gray[1, ..., 0], np.asarray(Image.fromarray(colors[1]).convert("L")))
    assert np.array_equal(with_channels(gray, 3), np.concatenate([gray] * 3, axis=-1))
    narrow = replace(PLAIN, mean=(0.5,), std=(0.5,))
    assert train_pixels(colors, Augment(), narrow, many(2)).shape == (2, 32, 32, 1)
    assert train_pixels(gray, Augment(), PLAIN, many(2)).shape == (2, 32, 32, 3)


def test_other_channels_are_refused() -> None:
    for function in (lambda p: eval_image(p, PLAIN), lambda p: with_channels(p, 3)):
        with pytest.raises(InputError, match="have 5 channels, the model takes 3"):
            function(noise(20, 20, 5))


@pytest.mark.filterwarnings("ignore::FutureWarning")  # torch's own
def test_normalization_is_the_same_after_a_graph_was_traced() -> None:
    """A fresh process that traces first kept constants of the graph, and normalized by them."""

    class Normalizing(torch.nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return normalize(images, preprocess)

    mean, std = (0.41, 0.52, 0.63), (0.21, 0.22, 0.23)  # which no other test has
    shape: Any = {"size": (4, 4), "interpolation": "bilinear", "fit": "stretch"}
    preprocess = Preprocess(mean=mean, std=std, **shape)
    images = torch.arange(48, dtype=torch.uint8).view(1, 4, 4, 3)
    program = torch.export.export(Normalizing(), (images,)).run_decompositions({})
    expected = (images.permute(0, 3, 1, 2) / 255 - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(
        std
    ).view(3, 1, 1)
    torch.testing.assert_close(program.module()(images), expected)
    torch.testing.assert_close(normalize(images, preprocess), expected)
