"""The part of an image that a model sees, worked out from its preprocessing."""

from vitrail.data.transforms.geometry import Box, fit_to_size
from vitrail.data.transforms.preprocess import Preprocess


def seen_part(height: int, width: int, preprocess: Preprocess) -> Box:
    """Give the part of an upright image of this size that the model sees, in whole pixels."""
    before, size, after = fit_to_size(height, width, preprocess)
    edges = []
    for start, extent, resized, cut, kept in zip(
        before[:2], before[2:], size, after[:2], after[2:], strict=True
    ):
        scale = extent / resized
        edges.append((round(start + cut * scale), round(start + (cut + kept) * scale)))
    (top, bottom), (left, right) = edges
    return Box(top, left, bottom - top, right - left)
