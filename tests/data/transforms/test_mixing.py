"""mixing.py: mixup and CutMix by brute force, over any number of processes; Beta against SciPy."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from tests.parity.peers import load
from vitrail.data.transforms.augment import Augment
from vitrail.data.transforms.mixing import Mix, draw_mix, mix_images, mix_targets, soft_targets

SIZE = (20, 30)


def draw_many(augment: Augment, count: int, size: tuple[int, int] = SIZE) -> list[Mix]:
    drawn = [draw_mix(augment, size, seed=0, step=step) for step in range(count)]
    mixes = [mix for mix in drawn if mix is not None]
    assert len(mixes) == count
    return mixes


def area(mix: Mix) -> int:
    assert mix.box is not None
    top, left, bottom, right = mix.box
    return (bottom - top) * (right - left)


def in_front(rows: Tensor, start: int, stop: int) -> Tensor:
    """Give a process its slice of the global batch, with the row before it, around the end."""
    return torch.cat([rows[start - 1 : start] if start else rows[-1:], rows[start:stop]])


def test_nothing_is_drawn_where_nothing_is_mixed() -> None:
    assert draw_mix(Augment(), SIZE, 0, 0) is None


@pytest.mark.parametrize("alpha", [0.2, 0.5, 0.8, 1.0, 1.7, 6.0])
def test_mixup_shares_are_the_larger_of_beta(alpha: float) -> None:
    mixes = draw_many(Augment(mixup=alpha), 1000)
    assert {mix.box for mix in mixes} == {None}
    shares = np.array([mix.share for mix in mixes])
    assert 0.5 <= shares.min() < shares.max() <= 1
    spread = 2 * stats.beta(alpha, alpha).cdf(shares) - 1  # it is the same from both ends
    assert stats.kstest(spread, "uniform").pvalue > 1e-3


@pytest.mark.parametrize("alpha", [0.001, 0.03])
def test_small_betas_hardly_mix(alpha: float) -> None:
    """Most shares are then 1 to float's precision, so only how many are below is compared."""
    shares = np.array([mix.share for mix in draw_many(Augment(mixup=alpha), 1000)])
    for limit in (0.6, 0.99, 1 - 1e-9):
        expected = 2 * stats.beta(alpha, alpha).cdf(limit) - 1
        assert stats.binomtest(int((shares < limit).sum()), 1000, expected).pvalue > 1e-3


@pytest.mark.parametrize("alpha", [0.3, 1.0, 4.0])
def test_cutmix_boxes(alpha: float) -> None:
    size = (200, 300)
    mixes = draw_many(Augment(cutmix=alpha), 1000, size)
    sides: list[float] = []
    for mix in mixes:
        assert mix.box is not None
        top, left, bottom, right = mix.box
        assert 0 <= top <= bottom <= 200
        assert 0 <= left <= right <= 300
        assert mix.share == 1 - area(mix) / 60_000
        if top > 0 and bottom < 200 and left > 0 and right < 300:
            assert abs(1.5 * (bottom - top) - (right - left)) <= 2, "the image's own shape"
        sides.append((bottom - top) / 200)
    # The law of the side before the border cuts it: it is cut for centers nearer than half of it.
    shares = stats.beta(alpha, alpha).rvs(1000, random_state=np.random.default_rng(0))
    whole, center = np.sqrt(1 - shares), np.random.default_rng(1).random(1000)
    cut = np.minimum(center + whole / 2, 1) - np.maximum(center - whole / 2, 0)
    assert stats.mannwhitneyu(sides, cut).pvalue > 1e-3


def test_cutmix_takes_timms_boxes() -> None:
    peer = load("timm.data.mixup")
    np.random.seed(0)
    ours, theirs = [], []
    for mix in draw_many(Augment(cutmix=1.0), 800):
        ours.append(area(mix))
        box, share = peer.cutmix_bbox_and_lam((1, 3, *SIZE), np.random.beta(1.0, 1.0))
        theirs.append((box[1] - box[0]) * (box[3] - box[2]))
        assert share == 1 - theirs[-1] / 600
    assert stats.mannwhitneyu(ours, theirs).pvalue > 1e-3


def test_with_both_each_batch_takes_one() -> None:
    mixes = draw_many(Augment(mixup=0.2, cutmix=1.0), 1000)
    boxes = sum(mix.box is not None for mix in mixes)
    assert stats.binomtest(boxes, 1000).pvalue > 1e-3
    assert all(mix.share >= 0.5 for mix in mixes if mix.box is None)


def test_draws_are_pure_and_differ() -> None:
    augment = Augment(mixup=0.5, cutmix=1.0)
    assert draw_mix(augment, SIZE, 1, 5) == draw_mix(augment, SIZE, 1, 5)
    drawn = {draw_mix(augment, SIZE, seed, step) for seed in range(5) for step in range(5)}
    assert len(drawn) == 25


def test_fixed_values_stay() -> None:
    """What was once trained with a seed can be trained again."""
    mix = draw_mix(Augment(mixup=0.2), SIZE, 0, 0)
    assert mix is not None
    assert math.isclose(mix.share, 0.5493362122954581, rel_tol=1e-12)
    assert draw_mix(Augment(cutmix=1.0), SIZE, 0, 0) == Mix(0.835, (9, 21, 20, 30))


@settings(max_examples=30)
@given(
    st.integers(1, 7),
    st.integers(0, 10_000),
    st.sampled_from([Augment(mixup=0.5), Augment(cutmix=1.0)]),
)
def test_mixing_by_brute_force(count: int, step: int, augment: Augment) -> None:
    generator = torch.Generator().manual_seed(step)
    batch = torch.randn(count + 1, 3, *SIZE, generator=generator)
    targets = torch.eye(5)[torch.randint(5, (count + 1,), generator=generator)]
    mix = draw_mix(augment, SIZE, 0, step)
    assert mix is not None
    before, labels = batch.clone(), targets.clone()
    images, shares = mix_images(batch, mix), mix_targets(targets, mix)
    assert torch.equal(batch, before)
    assert torch.equal(targets, labels)
    torch.testing.assert_close(shares.sum(1), torch.ones(count))
    for i in range(count):
        own, partner = batch[i + 1], batch[i]
        if mix.box is None:
            expected = mix.share * own + (1 - mix.share) * partner
        else:
            mask = torch.zeros(SIZE, dtype=torch.bool)
            mask[mix.box[0] : mix.box[2], mix.box[1] : mix.box[3]] = True
            expected = torch.where(mask, partner, own)
            assert int(mask.sum()) == area(mix) == round((1 - mix.share) * mask.numel())
        torch.testing.assert_close(images[i], expected)
        wanted = mix.share * targets[i + 1] + (1 - mix.share) * targets[i]
        torch.testing.assert_close(shares[i], wanted)


@pytest.mark.parametrize(
    "augment", [Augment(mixup=0.5), Augment(cutmix=1.0)], ids=["mixup", "cutmix"]
)
@pytest.mark.parametrize("processes", [1, 2, 3, 6])
def test_any_number_of_processes_makes_the_same_batch(augment: Augment, processes: int) -> None:
    generator = torch.Generator().manual_seed(0)
    batch = torch.randn(6, 3, 7, 9, generator=generator)
    targets = soft_targets(torch.arange(6) % 4, 4, 0.1)
    mix = draw_mix(augment, (7, 9), 0, 3)
    assert mix is not None
    whole = mix.share * batch + (1 - mix.share) * batch.roll(1, 0)
    each = 6 // processes
    images, shares = [], []
    for start in range(0, 6, each):
        images.append(mix_images(in_front(batch, start, start + each), mix))
        shares.append(mix_targets(in_front(targets, start, start + each), mix))
    if mix.box is None:
        torch.testing.assert_close(torch.cat(images), whole)
    assert torch.equal(torch.cat(images), mix_images(in_front(batch, 0, 6), mix))
    assert torch.equal(torch.cat(shares), mix_targets(in_front(targets, 0, 6), mix))


def test_mixup_of_timm_with_the_same_partner() -> None:
    """With the batch upside down, of two images each meets the other, as here."""
    peer = load("timm.data.mixup").Mixup(mixup_alpha=1.0, label_smoothing=0.1, num_classes=4)
    peer._params_per_batch = lambda: (0.7, False)
    batch, labels = torch.randn(2, 3, 4, 4), torch.tensor([3, 1])
    theirs, their_targets = peer(batch.clone(), labels)
    mix = Mix(0.7)
    torch.testing.assert_close(mix_images(in_front(batch, 0, 2), mix), theirs)
    targets = soft_targets(labels, 4, 0.1)
    torch.testing.assert_close(mix_targets(in_front(targets, 0, 2), mix), their_targets)


def test_soft_targets() -> None:
    targets = soft_targets(torch.tensor([2, 0]), 3)
    assert targets.tolist() == [[0, 0, 1], [1, 0, 0]]
    assert targets.dtype == torch.float32
    smooth = soft_targets(torch.tensor([1]), 4, smoothing=0.2)
    torch.testing.assert_close(smooth, torch.tensor([[0.05, 0.85, 0.05, 0.05]]))
    several = torch.tensor([[0, 1, 1], [0, 0, 0]], dtype=torch.uint8)
    assert soft_targets(several, 3).tolist() == [[0, 1, 1], [0, 0, 0]]
    assert soft_targets(several, 3).dtype == torch.float32
    off = 0.2 / 3
    expected = torch.tensor([[off, 0.8 + off, 0.8 + off], [off, off, off]])
    torch.testing.assert_close(soft_targets(several, 3, smoothing=0.2), expected)
