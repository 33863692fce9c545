"""Draw the README's image: a photo as patches, where a ViT looks, its heads, its prediction.

    python docs/make_hero.py --weights WEIGHTS --photo PHOTO

writes docs/images/hero-light.png and hero-dark.png.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import tyro
from matplotlib.figure import Figure
from PIL import Image, ImageOps

import vitrail
from vitrail.inspection.attention import attention_masks

IMAGES = Path(__file__).parent / "images"
COLORS = {"light": ("#ffffff", "#1c2433", "#4861d6"), "dark": ("#0d1117", "#e6edf3", "#8ea2ff")}
"""Background, ink and bars."""


def main(weights: str, photo: Path, layers: tuple[int, int, int] = (0, 4, 9)) -> None:
    """Measure once, and draw in both color schemes."""
    loaded = vitrail.load(weights)
    predictor = vitrail.Predictor.load(loaded)
    side = 224
    square = ImageOps.fit(Image.open(photo).convert("RGB"), (side, side))
    pixels = np.asarray(square)
    (prediction,) = predictor.predict([pixels], top=4)
    x = torch.from_numpy(pixels.copy())[None]
    assert loaded.preprocess is not None
    inputs = vitrail.normalize(x, loaded.preprocess, device="cpu")
    model = loaded.model.eval()
    rollout = _stretch(np.asarray(attention_masks(model, inputs).values)[0])
    with vitrail.record(model, attention=layers, rows=[0]) as tape, torch.inference_mode():
        model(inputs)
    maps = [tape.attention[layer][0, :3, 0, 1:].float().numpy() for layer in layers]
    heads = [_stretch(head.reshape(14, 14)) for each in maps for head in each]
    scores = [(score.label, score.probability) for score in prediction.top]
    for scheme, colors in COLORS.items():
        _draw(pixels, rollout, heads, scores, layers, colors).savefig(
            IMAGES / f"hero-{scheme}.png", dpi=110
        )


def _stretch(mask: np.ndarray) -> np.ndarray:
    """Scale to 0..1; the few outliers that registers would remove don't set the scale."""
    low, high = np.quantile(mask, (0.02, 0.98))
    return np.clip((mask - low) / (high - low), 0, 1)


def _draw(
    pixels: np.ndarray,
    rollout: np.ndarray,
    heads: list[np.ndarray],
    scores: list[tuple[str, float]],
    layers: tuple[int, int, int],
    colors: tuple[str, str, str],
) -> Figure:
    background, ink, bar = colors
    figure = Figure(figsize=(9.6, 2.9), facecolor=background)
    grid = figure.add_gridspec(
        1,
        4,
        width_ratios=(1, 1, 1, 0.8),
        left=0.01,
        right=0.985,
        top=0.88,
        bottom=0.03,
        wspace=0.08,
    )
    side, patch = pixels.shape[0], 16
    panes = np.full((side + 13 * 3, side + 13 * 3, 3), _rgb(background), np.uint8)
    for row in range(14):
        for column in range(14):
            y, x = row * patch, column * patch
            panes[row * 19 : row * 19 + 16, column * 19 : column * 19 + 16] = pixels[
                y : y + patch, x : x + patch
            ]
    heat = np.kron(rollout, np.ones((patch, patch)))[..., None]
    lit = (pixels * (0.22 + 0.78 * heat)).astype(np.uint8)
    shown = [
        (panes, "196 patches of 16 x 16"),
        (lit, "where the class token looks (rollout)"),
    ]
    for number, (image, title) in enumerate(shown):
        axes = figure.add_subplot(grid[number])
        axes.imshow(image, interpolation="antialiased")
        axes.set_axis_off()
        axes.set_title(title, color=ink, fontsize=9)
    inner = grid[2].subgridspec(3, 3, wspace=0.06, hspace=0.06)
    for number, head in enumerate(heads):
        axes = figure.add_subplot(inner[number])
        axes.imshow(head, cmap="cividis", interpolation="nearest")
        axes.set_axis_off()
    figure.text(
        0.638,
        0.91,
        f"heads of blocks {', '.join(str(n + 1) for n in layers)}",
        color=ink,
        fontsize=9,
        ha="center",
    )
    axes = figure.add_subplot(grid[3])
    axes.set_facecolor(background)
    for number, (label, probability) in enumerate(scores):
        place = -number
        axes.barh(place, probability, height=0.28, color=bar, align="center")
        text = f"{label.split(',')[0]}  {probability:.0%}"
        axes.text(0, place + 0.2, text, color=ink, fontsize=9, va="bottom", parse_math=False)
    axes.set(xlim=(0, 1), ylim=(-len(scores) + 0.6, 0.75))
    axes.set_axis_off()
    axes.set_title("prediction", color=ink, fontsize=9, loc="left")
    return figure


def _rgb(color: str) -> tuple[int, int, int]:
    return int(color[1:3], 16), int(color[3:5], 16), int(color[5:7], 16)


if __name__ == "__main__":
    tyro.cli(main)
