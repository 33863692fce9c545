"""The transcript of the first five minutes is what the commands print, but for its numbers."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.docs.transcript import make_machine, mask, play, transcript_blocks
from tests.published import save_timm_tiny

CLASSES = ("ant", "bee", "cat", "dog", "elk", "fox")
BREEDS = (
    *("abyssinian", "american_bulldog", "american_pit_bull_terrier", "basset_hound", "beagle"),
    *("bengal", "birman", "bombay", "boxer", "british_shorthair", "chihuahua", "egyptian_mau"),
    *("english_cocker_spaniel", "english_setter", "german_shorthaired", "great_pyrenees"),
    *("havanese", "japanese_chin", "keeshond", "leonberger", "maine_coon", "miniature_pinscher"),
    *("newfoundland", "persian", "pomeranian", "pug", "ragdoll", "russian_blue", "saint_bernard"),
    *("samoyed", "scottish_terrier", "shiba_inu", "siamese", "sphynx", "wheaten_terrier"),
    *("staffordshire_bull_terrier", "yorkshire_terrier"),
)
"""The classes of the photos that the page was made with."""


def draw_photo(path: Path, label: int, seed: int) -> None:
    pixels = np.random.default_rng(seed).integers(0, 120, (64, 80, 3), dtype=np.uint8)
    pixels[10 * label : 10 * label + 14, :, label % 3] += 120
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, quality=95)


def draw_photos(folder: Path) -> tuple[Path, Path]:
    """Draw a stripe for each class; half of the test images show another class.

    So answers are much too sure, and a temperature helps, as it does with the page's photos.
    """
    for label, name in enumerate(CLASSES):
        for number in range(10):
            draw_photo(folder / "photos" / "train" / name / f"{number}.jpg", label, number)
        for number in range(6):
            shown = (label + number % 2) % len(CLASSES)
            draw_photo(folder / "photos" / "test" / name / f"{number}.jpg", shown, 20 + number)
    for number in range(3):
        draw_photo(folder / "new" / f"{number + 1}.jpg", number, 30 + number)
    return folder / "photos", folder / "new"


@pytest.mark.slow
def test_the_first_five_minutes_are_as_the_page_shows_them(tmp_path: Path) -> None:
    photos, new = draw_photos(tmp_path)
    here = tmp_path / "here"
    make_machine(here, photos, new, save_timm_tiny(tmp_path / "weights"))
    blocks = transcript_blocks()
    said = "".join(block.text for block in blocks)
    for step in ("pip install", "vitrail finetune", "report", "vitrail predict", "vitrail serve"):
        assert step in said
    for block, now in zip(blocks, play(blocks, here), strict=True):
        assert mask(now, CLASSES) == mask(block.text, BREEDS), block


@pytest.mark.parametrize(
    ("now", "was", "same"),
    [
        ("top-1    50.00% on 9 images", "top-1 89.46% on 370 images", True),
        ("worst ant (1 of 3)", "worst pug (4 of 10)", True),
        ("worst ant (1 of 3)", "worst  pug, 4 of 10", False),
        ("model runs/photos", "report runs/photos", False),
        ("on cpu in float32", "on cpu in bfloat16", True),
        ("on cpu in float32", "on cpu in float16", False),
        (" new/1.jpg  ant  9.0% far", " new/1.jpg  pug  0.1%\n  beagle   3%", True),
    ],
)
def test_what_is_compared(now: str, was: str, same: bool) -> None:
    assert (mask(now, CLASSES) == mask(was, BREEDS)) is same
