"""A dataset's files are looked at when it is opened: depth and pages, one rule for all of them."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitrail
from tests.data.sets import HALF
from vitrail.config import InputError
from vitrail.data.batches import EvalBatches, TrainBatches
from vitrail.data.checks.dataset_check import check_data
from vitrail.data.checks.quick_check import quick_check
from vitrail.data.dataset import select
from vitrail.data.datasets import look
from vitrail.data.datasets.open import notes, open_dataset, open_splits, whole_data
from vitrail.data.decoding.decode import decode
from vitrail.data.decoding.reading import Reading, split_reading
from vitrail.data.transforms.augment import Augment

WHOLE = Augment(crop="whole", flip=0.0)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))


def gray(seed: int) -> np.ndarray:
    """Draw a gray image of 8 bits that uses all levels up to white."""
    pixels = np.random.default_rng(seed).integers(0, 256, (20, 24), np.uint8)
    pixels[0, :2] = 0, 255
    return pixels


def make_photos(folder: Path, kind: str, bits: int = 8, count: int = 12) -> Path:
    """Write the same gray images as 8 bits, or as so many bits in files of 16 or floats."""
    for number in range(count):
        path = folder / "ab"[number % 2] / f"{number}.{kind}"
        path.parent.mkdir(parents=True, exist_ok=True)
        values = gray(number)
        if bits > 8:
            values = np.rint(values * ((2**bits - 1) / 255)).astype(np.uint16)
        if kind == "npy":
            np.save(path, values)
        else:
            Image.fromarray(values).save(path)
    return folder


def inputs_of(data: str, split: str = "all") -> np.ndarray:
    return EvalBatches(open_dataset(data, split=split), HALF, batch=99)[0].images.numpy()


@pytest.mark.parametrize(("kind", "bits"), [("tif", 12), ("png", 12), ("png", 10), ("npy", 14)])
def test_camera_data_of_few_bits_is_read_as_its_8_bit_photos(
    tmp_path: Path, kind: str, bits: int
) -> None:
    expected = inputs_of(str(make_photos(tmp_path / "eight", "png")))
    deep = make_photos(tmp_path / "deep", kind, bits)
    np.testing.assert_array_equal(inputs_of(str(deep)), expected)
    dataset = open_dataset(str(deep))
    assert dataset.reading == Reading(levels=(0, 2**bits - 1))
    assert any(f"levels   0 to {2**bits - 1} " in note for note in notes(dataset))
    train = TrainBatches(open_dataset(str(deep), split="all"), WHOLE, HALF, batch=12, seed=0)[0]
    order = train.indices.numpy().argsort()
    np.testing.assert_array_equal(train.images.numpy()[order], expected)


def test_all_splits_have_the_range_of_the_training_split(tmp_path: Path) -> None:
    """The only validation photo is dark: by itself, it would be taken for 8 bits."""
    make_photos(tmp_path / "p" / "train", "png", 12)
    dark = tmp_path / "p" / "val" / "a" / "dark.png"
    dark.parent.mkdir(parents=True)
    Image.fromarray(np.full((8, 8), 200, np.uint16)).save(dark)
    assert set(inputs_of(f"{tmp_path / 'p'}", "val").ravel()) == {round(200 * 255 / 4095)}
    splits = open_splits(f"{tmp_path / 'p'}")
    assert {each.reading for each in splits.values()} == {Reading(levels=(0, 4095))}


def test_floats_have_one_range_over_the_dataset(tmp_path: Path) -> None:
    for number, most in enumerate([1.0, 1.01, 0.5, 1.0]):
        path = tmp_path / "f" / "ab"[number % 2] / f"{number}.tif"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.linspace(0, most, 64, dtype=np.float32).reshape(8, 8)).save(path)
    means = inputs_of(f"{tmp_path / 'f'}").mean((1, 2, 3))
    np.testing.assert_allclose(means, np.array([1, 0.5, 1.01, 1]) * 127.5 / 1.01, atol=1)


@pytest.mark.parametrize("kind", ["png", "tif"])
def test_deep_colors_keep_all_their_bits(tmp_path: Path, kind: str) -> None:
    """Pillow keeps the high byte of 16-bit colors: 16 of 256 levels of a camera with 12 bits."""
    codecs = pytest.importorskip("imagecodecs")
    tifffile = pytest.importorskip("tifffile")
    pixels = np.random.default_rng(0).integers(0, 256, (6, 20, 24, 3), np.uint8)
    pixels[:, 0, 0] = 255
    for number, each in enumerate(pixels):
        twelve = np.rint(each * (4095 / 255)).astype(np.uint16)
        for name, values in {"deep": twelve, "8": each}.items():
            path = tmp_path / name / "ab"[number % 2] / f"{number}.{kind}"
            path.parent.mkdir(parents=True, exist_ok=True)
            if kind == "png":
                path.write_bytes(codecs.png_encode(values))
            else:
                order = "<>"[number % 2]
                packed = [None, "zlib", "lzw"][number % 3]
                tifffile.imwrite(
                    path, values, photometric="rgb", compression=packed, byteorder=order
                )
    np.testing.assert_array_equal(inputs_of(f"{tmp_path / 'deep'}"), inputs_of(f"{tmp_path / '8'}"))


def test_what_data_says_is_obeyed(tmp_path: Path) -> None:
    deep = make_photos(tmp_path / "deep", "png", 12)
    said = open_dataset(f"{deep},levels=0-8190,take=4")
    assert (said.reading, said.reading_given, len(said)) == (Reading(levels=(0, 8190)), True, 4)
    assert not any("levels" in note for note in notes(said))
    half = inputs_of(f"{deep},levels=0-8190")
    assert abs(half.astype(int) * 2 - inputs_of(str(deep))).max() <= 3
    assert whole_data(f"{deep},take=4,levels=0-8190") == f"{deep},levels=0-8190"


def test_a_model_reads_new_images_as_its_training_data(tmp_path: Path) -> None:
    """One photo says nothing of the dataset's range: the model's own decides."""
    deep = make_photos(tmp_path / "deep", "png", 12)
    vitrail.train(
        str(deep),
        model="ViT/4@16,depth=1,width=16,heads=2,mlp=16",
        steps=1,
        batch=4,
        out=str(tmp_path / "run"),
        report=False,
        calibrate=False,
    )
    predictor = vitrail.Predictor.load(str(tmp_path / "run"))
    assert predictor.preprocess.reading == Reading(levels=(0, 4095))
    path = deep / "a" / "0.png"
    index = list(open_dataset(str(deep), split="all").image_names()).index("a/0.png")
    seen = EvalBatches(open_dataset(str(deep), split="all"), predictor.preprocess, batch=99)[0]
    np.testing.assert_array_equal(predictor.prepare(path), seen.images[index])
    other = make_photos(tmp_path / "other", "png", 16)
    read = EvalBatches(open_dataset(str(other)), predictor.preprocess, batch=4).preprocess
    assert read.reading == Reading(levels=(0, 4095))  # as it was trained
    said = open_dataset(f"{other},levels=0-65535")
    assert predictor.preprocess.read_as(said).reading == Reading(levels=(0, 65535))


def test_a_photo_of_8_bits_has_no_levels(tmp_path: Path) -> None:
    dataset = open_dataset(str(make_photos(tmp_path / "eight", "png")))
    assert dataset.reading is None
    assert dataset.look == ()


def test_16_bits_in_full_are_read_as_before(tmp_path: Path) -> None:
    deep = make_photos(tmp_path / "deep", "png", 16)
    dataset = open_dataset(str(deep))
    assert dataset.reading == Reading(levels=(0, 65535))
    values = np.rint(gray(0) * 257.0)
    index = list(open_dataset(str(deep), split="all").image_names()).index("a/0.png")
    plain = decode((deep / "a/0.png").read_bytes(), channels=1)
    np.testing.assert_array_equal(plain[..., 0], np.rint(values / 257))
    assert inputs_of(str(deep))[index].shape == (16, 16, 3)


def test_stacks_are_named_and_can_be_read_otherwise(tmp_path: Path) -> None:
    pages = np.random.default_rng(0).integers(0, 256, (4, 3, 16, 16), np.uint8)
    for number, stack in enumerate(pages):
        path = tmp_path / "s" / "ab"[number % 2] / f"{number}.tif"
        path.parent.mkdir(parents=True, exist_ok=True)
        first, *rest = map(Image.fromarray, stack)
        first.save(path, save_all=True, append_images=rest)
    data = str(tmp_path / "s")
    (note,) = notes(open_dataset(data))
    assert "have 3 pages; the first is used (DATA,page=max" in note
    order = [int(Path(name).stem) for name in open_dataset(data, split="all").image_names()]
    for page, expected in {
        "1": pages[:, 0],
        "3": pages[:, 2],
        "max": pages.max(1),
        "mean": np.rint(pages.mean(1)),
    }.items():
        found = inputs_of(f"{data},page={page}")[..., 0]
        np.testing.assert_array_equal(found, expected[order])
    with pytest.raises(InputError, match="page=4, but the file has 3 pages"):
        decode((tmp_path / "s/a/0.tif").read_bytes(), reading=Reading(page=4))


@pytest.mark.parametrize(
    ("text", "plain", "reading"),
    [
        ("photos/,levels=0-4095", "photos/", Reading(levels=(0, 4095))),
        ("csv:a.csv,page=max,label=x", "csv:a.csv,label=x", Reading(page="max")),
        ("p,levels=-1024-3071.5,page=2", "p", Reading(levels=(-1024, 3071.5), page=2)),
        ("p,levels=-5--1", "p", Reading(levels=(-5, -1))),
        ("photos/", "photos/", None),
    ],
)
def test_options_are_read_and_written_the_same(
    text: str, plain: str, reading: Reading | None
) -> None:
    assert split_reading(text) == (plain, reading)
    if reading is not None:
        assert split_reading(f"{plain}{reading}") == (plain, reading)


@pytest.mark.parametrize(
    "wrong", ["levels=4095", "levels=9-9", "page=0", "page=all", "levels=0-9,levels=0-8"]
)
def test_wrong_options_are_refused(wrong: str) -> None:
    with pytest.raises(InputError, match=r"levels|page"):
        split_reading(f"photos/,{wrong}")


@pytest.mark.parametrize(("kind", "page"), [("png", ""), ("tif", ",page=max")])
def test_what_lies_outside_the_levels_is_named(
    tmp_path: Path, kind: str, page: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sample did not have the brightest image."""
    deep = make_photos(tmp_path / "deep", kind, 12)
    data = f"{deep}{page}"
    monkeypatch.setattr(look, "read_ranges", lambda dataset, page: iter([(0.0, 4095.0)]))
    assert check_data(data, workers=1).clipped == {}
    bright = gray(50).astype(np.uint16) * 40
    path = deep / "a" / f"bright.{kind}"
    dark = [Image.fromarray(bright // 40)] if page else []
    first, *others = *dark, Image.fromarray(bright)
    first.save(path, **({"save_all": True, "append_images": others} if page else {}))
    found = check_data(data, workers=1)
    assert found.levels == (0, 4095)
    assert found.clipped == {f"train: a/bright.{kind}": (0, 255 * 40)}
    said = (
        f"1 image has values outside levels=0-4095, which are clipped: train: a/bright.{kind}; "
        "DATA,levels=0-10200 keeps them"
    )
    assert said in list(found.summary())
    dataset = open_dataset(data, split="all")
    quick = quick_check(dataset, select(dataset, np.empty(0, np.int64)))
    assert quick is not None
    assert said.replace("train: ", "") in quick.notes()
    assert check_data(f"{data},levels=0-10200", workers=1).clipped == {}
