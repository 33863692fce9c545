"""A card with sliders: the attention of every layer and head over one image, offline."""

from __future__ import annotations

import base64
import io

import numpy as np
from PIL import Image

from vitrail.plotting.tiles import stretch, to_colors
from vitrail.report.html_page import EXPLORER, escape


def explorer_card(number: int, pixels: np.ndarray, maps: np.ndarray, name: str) -> str:
    """Write the card: an image as the model sees it, and maps (layers, heads, rows, columns).

    Each map, and the mean of each layer's, is stretched by itself and kept in bytes. Without
    scripts the card is the image.
    """
    layers, heads, rows, columns = maps.shape
    maps = np.concatenate([maps.mean(1, keepdims=True), maps], 1)
    shown = np.stack([stretch(each) for layer in maps for each in layer])
    data = base64.b64encode((255 * shown).round().astype(np.uint8).tobytes()).decode()
    Image.fromarray(to_colors(pixels)).save(file := io.BytesIO(), "JPEG", quality=85)
    source = f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"
    sliders = "".join(
        f'<label>{word} <output></output><input type="range" min="{low}" max="{most}" '
        f'value="{value}"></label>'
        for word, low, most, value in (("Layer", 1, layers, layers), ("Head", 0, heads, 0))
    )
    return (
        f'<figure class="card wide" id="figure-explorer-{number}">\n'
        "<h3>Attention, layer by layer</h3>\n"
        f'{EXPLORER} data-shape="{layers},{heads},{rows},{columns}" data-maps="{data}">\n'
        f'<img src="{source}" alt="{escape(name)} as the model sees it">\n'
        f'<div><div class="controls" hidden>{sliders}</div>\n'
        '<figcaption><p class="see">Move the sliders: heads of the first layers look at single '
        "patches or everywhere, those of the last at the object.</p>\n<p>What the output attends "
        "to in one layer, by one head or on average. The scale of each map ends at the 98th "
        "percentile of its patches.</p></figcaption></div>\n</div>\n</figure>"
    )
