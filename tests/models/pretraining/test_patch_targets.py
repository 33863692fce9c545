"""Targets of masked prediction, against brute force and closed forms."""

import math

import pytest
import torch

from vitrail.models.pretraining.mim import Target
from vitrail.models.pretraining.patch_targets import (
    class_color,
    color_class,
    image_patches,
    make_targets,
    patchify,
    prediction_loss,
    unpatchify,
)

PATCH = (4, 8)


def test_patches_are_cut_row_by_row_and_joined_again() -> None:
    images = torch.rand(2, 12, 16, 3)
    patches = patchify(images, PATCH)
    assert patches.shape == (2, 6, 32, 3)
    for row in range(3):
        for column in range(2):
            cut = images[:, 4 * row : 4 * row + 4, 8 * column : 8 * column + 8]
            assert torch.equal(patches[:, 2 * row + column], cut.flatten(1, 2))
    assert torch.equal(unpatchify(patches, (3, 2), PATCH), images)


def test_all_512_colors_have_their_own_class() -> None:
    levels = torch.cartesian_prod(*[torch.arange(8)] * 3)
    classes = (levels * torch.tensor([64, 8, 1])).sum(1)
    assert torch.equal(classes, torch.arange(512))
    for value in (0.0, 15.9, 31.0):  # a level is 32 of the 256 values of a byte
        assert torch.equal(color_class((levels * 32 + value) / 256), classes)
    assert torch.equal(color_class(class_color(classes)), classes)
    assert color_class(torch.ones(1, 3)).tolist() == [511]


def test_targets_are_those_of_brute_force() -> None:
    images = torch.randint(0, 256, (2, 8, 16, 3)) / 255
    patches = patchify(images, PATCH)
    color = make_targets(patches, PATCH, "color")
    colors = make_targets(patches, PATCH, "colors")
    assert (color.shape, colors.shape) == ((2, 4, 1), (2, 4, 16))
    for number in range(4):
        top, left = 4 * (number // 2), 8 * (number % 2)
        part = images[1, top : top + 4, left : left + 8]
        level = [min(int(8 * part[..., channel].mean()), 7) for channel in range(3)]
        assert color[1, number].tolist() == [64 * level[0] + 8 * level[1] + level[2]]
        cells = [part[row : row + 1, 2 * col : 2 * col + 2] for row in range(4) for col in range(4)]
        means = torch.stack([cell.mean(dim=(0, 1)) for cell in cells])
        assert torch.equal(colors[1, number], color_class(means))
        flat = make_targets(patches, PATCH, "normalized-pixels")[1, number]
        expected = (part.flatten() - part.mean()) / (part.var() + 1e-6).sqrt()
        torch.testing.assert_close(flat, expected)
    assert torch.equal(make_targets(patches, PATCH, "pixels"), patches.flatten(2))


def test_distances_are_means_over_patches() -> None:
    logits, classes = torch.randn(2, 3, 16 * 512), torch.randint(0, 512, (2, 3, 16))
    found = prediction_loss(logits, classes, "colors")
    chances = logits.view(2, 3, 16, 512).softmax(-1).gather(-1, classes[..., None])
    torch.testing.assert_close(found, -chances.log().mean(dim=(1, 2, 3)))
    blank = prediction_loss(torch.zeros(1, 3, 512), torch.zeros(1, 3, 1, dtype=torch.long), "color")
    assert blank.item() == pytest.approx(math.log(512))
    said, true = torch.randn(2, 3, 96), torch.randn(2, 3, 96)
    torch.testing.assert_close(
        prediction_loss(said, true, "pixels"), ((said - true) ** 2).mean((1, 2))
    )
    absolute = prediction_loss(said, true, "pixels", absolute=True)
    torch.testing.assert_close(absolute, (said - true).abs().mean((1, 2)))


def test_right_predictions_show_the_image() -> None:
    images = torch.randint(0, 256, (1, 8, 16, 3)) / 255
    patches = patchify(images, PATCH)
    pixels: tuple[Target, ...] = ("pixels", "normalized-pixels")
    for target in pixels:
        shown = image_patches(make_targets(patches, PATCH, target), patches, PATCH, target)
        torch.testing.assert_close(shown, patches)
    counts: dict[Target, int] = {"color": 1, "colors": 16}
    for target, parts in counts.items():
        classes = make_targets(patches, PATCH, target)
        logits = torch.nn.functional.one_hot(classes, 512).float().flatten(2)
        shown = image_patches(logits, patches, PATCH, target)
        assert shown.shape == patches.shape
        assert torch.equal(make_targets(shown, PATCH, target), classes)
        assert classes.shape[2] == parts
