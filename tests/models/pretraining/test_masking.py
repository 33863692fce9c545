"""Which patches are hidden: exact counts, pure functions of the key, fair over many images."""

import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from vitrail.config import InputError
from vitrail.models.pretraining.masking import gather_patches, mask_patches, sample_masking
from vitrail.models.pretraining.mim import MaskConfig

GRID = (6, 5)


def keys(count: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-(2**62), 2**62, (count,), generator=generator)


@given(
    rows=st.integers(2, 9),
    columns=st.integers(2, 9),
    ratio=st.floats(0.2, 0.8),
    masked=st.floats(0, 1),
    replaced=st.floats(0, 1),
    seed=st.integers(0, 1000),
)
def test_counts_are_exact_for_each_image(
    rows: int, columns: int, ratio: float, masked: float, replaced: float, seed: int
) -> None:
    replaced = min(replaced, 1 - masked)
    config = MaskConfig(ratio=ratio, masked=masked, replaced=replaced)
    count = rows * columns
    chosen = round(ratio * count)
    found = sample_masking(keys(7, seed), (rows, columns), config)
    assert found.chosen.shape == (7, chosen)
    assert found.masked == round(masked * chosen)
    assert found.partners.shape[1] == min(round(replaced * chosen), chosen - found.masked)
    everything = torch.cat([found.chosen, found.seen], dim=1).sort(dim=1).values
    assert torch.equal(everything, torch.arange(count).expand(7, -1))
    assert torch.equal(found.seen, found.seen.sort(dim=1).values)
    changed = found.chosen[:, found.masked :][:, : found.partners.shape[1]]
    assert (changed != found.partners).all()
    assert ((found.partners >= 0) & (found.partners < count)).all()


def test_a_image_is_corrupted_alike_in_any_batch() -> None:
    many = keys(16)
    whole = sample_masking(many, GRID, MaskConfig())
    for place in (0, 5, 15):
        alone = sample_masking(many[place : place + 1], GRID, MaskConfig())
        for part, all_of_them in zip(alone[:3], whole[:3], strict=True):
            assert torch.equal(part[0], all_of_them[place])


def test_every_patch_is_chosen_and_taken_as_often() -> None:
    found = sample_masking(keys(20_000), GRID, MaskConfig(ratio=0.5, masked=0.5, replaced=0.5))
    count = GRID[0] * GRID[1]
    for places, share in ((found.chosen, 0.5), (found.partners, 7 / count)):
        often = torch.bincount(places.flatten(), minlength=count) / 20_000
        # A share's std is at most sqrt(0.25 / 20000) = 0.0035; five of them.
        assert (often - share).abs().max() < 0.018


def test_corrupted_embeddings_are_mask_other_or_their_own() -> None:
    patches, mask = torch.randn(3, 30, 4), torch.randn(4)
    found = sample_masking(keys(3), GRID, MaskConfig())
    result = mask_patches(patches, mask, found)
    expected = patches.clone()
    for image in range(3):
        for order, place in enumerate(found.chosen[image].tolist()):
            if order < found.masked:
                expected[image, place] = mask
            elif order < found.masked + found.partners.shape[1]:
                partner = int(found.partners[image, order - found.masked])
                expected[image, place] = patches[image, partner]
    assert torch.equal(result, expected)
    assert (found.masked, found.partners.shape[1], found.chosen.shape[1]) == (12, 2, 15)
    assert torch.equal(gather_patches(result, found.seen), gather_patches(patches, found.seen))


def test_units_are_chosen_whole() -> None:
    found = sample_masking(keys(50), (8, 4), MaskConfig(ratio=0.5, masked=1, replaced=0, unit=2))
    for chosen in found.chosen:
        grid = torch.zeros(32).scatter(0, chosen, 1.0).view(4, 2, 2, 2)  # units down and across
        sums = grid.sum(dim=(1, 3))
        assert sorted(sums.flatten().tolist()) == [0] * 4 + [4] * 4


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"ratio": 0.0}, "mim.mask.ratio must be in (0, 1), got 0.0"),
        ({"ratio": 1.0}, "mim.mask.ratio must be in (0, 1), got 1.0"),
        ({"masked": -0.1}, "mim.mask.masked must be in [0, 1], got -0.1"),
        ({"replaced": 1.5}, "mim.mask.replaced must be in [0, 1], got 1.5"),
        ({"masked": 0.8, "replaced": 0.3}, "must be at most 1, got 0.8 + 0.3"),
        ({"unit": 0}, "mim.mask.unit must be at least 1, got 0"),
    ],
)
def test_bad_rates_are_refused(settings: dict[str, float], said: str) -> None:
    with pytest.raises(InputError, match=re.escape(said)):
        MaskConfig(**settings)  # pyright: ignore[reportArgumentType]


def test_what_the_grid_does_not_allow_is_refused() -> None:
    with pytest.raises(InputError, match="unit 4 does not divide the grid of 6x5"):
        sample_masking(keys(1), GRID, MaskConfig(unit=4))
    with pytest.raises(InputError, match="of 4 patches is 0"):
        sample_masking(keys(1), (2, 2), MaskConfig(ratio=0.1))
