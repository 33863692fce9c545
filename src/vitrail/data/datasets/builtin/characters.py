"""Characters without limit: digits and letters of many fonts, distorted as handwriting is.

Each image is a pure function of a seed and its number: a light character on a dark ground, gray. A
glyph is rendered once per font; then it is sampled with random scale, width, slant, rotation,
bends, stroke width, brightness and noise. The fonts are those that matplotlib installs, so that an
image is the same wherever Pillow's font renderer is.
"""

from __future__ import annotations

import string
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from vitrail.config import InputError
from vitrail.data.dataset import ImageDataset
from vitrail.data.datasets.builtin.drawing import grain, smooth_field
from vitrail.data.datasets.builtin.procedural import (
    Numbers,
    ProceduralDataset,
    open_procedural,
    parse_numbers,
)
from vitrail.data.rng import CounterRNG

_KINDS = {
    "digit": string.digits,
    "capital": string.ascii_uppercase,
    "small": string.ascii_lowercase,
}
_CHARACTERS = "".join(_KINDS.values())
CLASSES = tuple(f"{kind} {each}" for kind, group in _KINDS.items() for each in group)
"""Named so that no two differ in case alone, and none is a class of `digits`."""
_STYLES = {
    "DejaVuSans": ("", "-Bold", "-Oblique", "-BoldOblique"),
    "DejaVuSansMono": ("", "-Bold", "-Oblique", "-BoldOblique"),
    "DejaVuSerif": ("", "-Bold", "-Italic", "-BoldItalic"),
    "STIXGeneral": ("", "Bol", "Italic", "BolIta"),
    **dict.fromkeys(("cmr10", "cmb10", "cmss10", "cmti10", "cmtt10"), ("",)),
}
FONTS = tuple(f"{family}{style}.ttf" for family, styles in _STYLES.items() for style in styles)
_CAP = 40  # height of a capital in a glyph's image, in pixels
_BOX = 80  # side of a glyph's image: a capital, and room around it for what bends and is scaled
_SAMPLES = 24  # points per side that an image is the mean of, or one per pixel if it has more
_KNOTS = 4  # of the bends, each way
_NUMBERS: Numbers = {
    "size": (32, 8, 512),
    "count": (50_000, 1, 10_000_000),
    "seed": (0, 0, 2**64 - 1),
}


def open_characters(options: str, split: str) -> ImageDataset:
    """Open characters by options such as `size=8,count=100000,seed=1`.

    `count` is the number of training images; there are a tenth as many for testing.
    """
    found = parse_numbers("characters", options, _NUMBERS)
    size, count, seed = (int(found[key]) for key in _NUMBERS)
    return open_procedural(
        "characters",
        options,
        split,
        count,
        lambda name, numbers: CharactersDataset(name, size, seed, numbers),
    )


class CharactersDataset(ProceduralDataset):
    """Characters that are drawn each time they are read."""

    channels = 1

    def __init__(self, name: str, size: int, seed: int, numbers: np.ndarray) -> None:
        super().__init__(name, CLASSES, size, numbers)
        self._seed = seed
        self.samples_per_pixel = -(-_SAMPLES // size)

    def draw(self, numbers: np.ndarray) -> np.ndarray:
        """Draw some images together."""
        size, label = self.image_size, numbers % len(CLASSES)
        rng = CounterRNG(self._seed, "characters", 0, numbers)
        often = self.samples_per_pixel
        glyph = draw_glyphs()[rng.below(len(FONTS)), label]
        x, y = _places(rng, size * often)
        ink = _sample(glyph, x, y)
        level = rng.uniform(0.1, 0.45).astype(np.float32)  # of a blurred glyph: the stroke's width
        ink -= level[:, None, None]
        ink *= rng.uniform(2.5, 8.0).astype(np.float32)[:, None, None]  # how sharp its edge is
        np.clip(ink, 0, 1, out=ink)
        canvas = ink.reshape(len(numbers), size, often, size, often).mean((2, 4))
        canvas *= rng.uniform(0.75, 1.0).astype(np.float32)[:, None, None]
        noise = grain(rng.below(2**32), size)[:, 0]
        canvas += noise * rng.uniform(0, 0.1).astype(np.float32)[:, None, None]
        canvas = np.clip(canvas * 255 + 0.5, 0, 255)
        return canvas.astype(np.uint8)[..., None]


def _places(rng: CounterRNG, samples: int) -> tuple[np.ndarray, np.ndarray]:
    """Choose where on its glyph each image is sampled: (n, samples, samples), in pixels."""
    step = (np.arange(samples, dtype=np.float32) + 0.5) / samples - 0.5
    angle, slant = rng.uniform(-0.25, 0.25), rng.uniform(-0.3, 0.3)
    tall = _CAP / rng.uniform(0.75, 1.05)
    wide = tall * rng.uniform(0.85, 1.4)
    right, down = rng.uniform(-0.06, 0.06), rng.uniform(-0.06, 0.06)
    bends = [
        smooth_field(
            np.stack([rng.uniform(-0.1, 0.1) for _ in range(_KNOTS**2)], 1).reshape(
                -1, _KNOTS, _KNOTS
            ),
            samples,
        )
        for _ in range(2)
    ]
    across = (step + right[:, None].astype(np.float32))[:, None, :] + bends[0]
    along = (step + down[:, None].astype(np.float32))[:, :, None] + bends[1]
    turned = [
        np.asarray(value, np.float32)[:, None, None]
        for value in (
            wide * np.cos(angle),
            wide * (slant - np.sin(angle)),
            tall * np.sin(angle),
            tall * np.cos(angle),
        )
    ]
    middle = np.float32((_BOX - 1) / 2)
    x = across * turned[0] + along * turned[1] + middle
    y = across * turned[2] + along * turned[3] + middle
    return x, y


def _sample(glyph: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Interpolate each glyph (n, box, box) at its places, bilinearly; outside it repeats its edge.

    Its edge is empty.
    """
    most = np.float32(_BOX - 1.001)
    x, y = np.clip(x, 0, most), np.clip(y, 0, most)
    left, top = x.astype(np.int64), y.astype(np.int64)
    x -= left
    y -= top
    flat = np.ascontiguousarray(glyph).reshape(-1)
    corner = left + _BOX * top + (_BOX * _BOX) * np.arange(len(glyph))[:, None, None]
    upper = flat[corner] * (1 - x) + flat[corner + 1] * x
    lower = flat[corner + _BOX] * (1 - x) + flat[corner + _BOX + 1] * x
    return upper * (1 - y) + lower * y


@cache
def draw_glyphs() -> np.ndarray:
    """Render every character of every font, once: (fonts, classes, box, box), 0 to 1."""
    return np.stack([_render_font(_font_folder() / name) for name in FONTS])


def _render_font(path: Path) -> np.ndarray:
    """Render a font's characters at one size, a capital `_CAP` high, each in the middle."""
    try:
        font = ImageFont.truetype(path, 100, layout_engine=ImageFont.Layout.BASIC)
        _, top, _, bottom = font.getbbox("H")
        font = font.font_variant(size=100 * _CAP / (bottom - top))
    except OSError as error:
        raise InputError(f"characters: cannot read the font {path}: {error}") from None
    drawn = np.empty((len(CLASSES), _BOX, _BOX), np.float32)
    for number, character in enumerate(_CHARACTERS):
        left, top, right, bottom = font.getbbox(character)
        page = Image.new("L", (_BOX, _BOX))
        corner = ((_BOX - left - right) / 2, (_BOX - top - bottom) / 2)
        ImageDraw.Draw(page).text(corner, character, fill=255, font=font)
        drawn[number] = np.asarray(page.filter(ImageFilter.GaussianBlur(1.5)), np.float32) / 255
    return drawn


def _font_folder() -> Path:
    found = find_spec("matplotlib")  # which is not imported
    for place in (found.submodule_search_locations or ()) if found else ():
        if (folder := Path(place) / "mpl-data" / "fonts" / "ttf").is_dir():
            return folder
    raise InputError("characters are drawn from matplotlib's fonts, which are not installed")
