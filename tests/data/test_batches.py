"""Batches as pure functions: order, shards, steps, mixing partners, bad images, evaluation."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data.sets import HALF, Listed, encode, images, photo
from vitrail.config import InputError
from vitrail.data.batches import Batch, EvalBatches, TrainBatches
from vitrail.data.dataset import ArrayDataset, select
from vitrail.data.rng import CounterRNG, Permutation
from vitrail.data.transforms.apply import eval_image, train_image
from vitrail.data.transforms.augment import AUGMENTS, Augment
from vitrail.data.unreadable import UnreadableImages
from vitrail.distributed import Shard

SET = images(10)
PLAIN = Augment(crop="pad", flip=0.5)


def train(batch: int = 4, shard: Shard = Shard(), augment: Augment = PLAIN) -> TrainBatches:  # noqa: B008
    return TrainBatches(SET, augment, HALF, batch=batch, seed=7, shard=shard)


def same(one: Batch, other: Batch) -> bool:
    names = ("images", "labels", "weights", "indices")
    equal = all(torch.equal(getattr(one, name), getattr(other, name)) for name in names)
    return equal and one.mix == other.mix


def test_each_epoch_is_every_image_once_in_its_own_order() -> None:
    batches = train(batch=4)
    row = torch.cat([batches[step].indices for step in range(15)]).tolist()  # 60 = 6 epochs of 10
    epochs = [row[start : start + 10] for start in range(0, 60, 10)]
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 6
    assert epochs[1] == Permutation(10, 7, "order", 1)[np.arange(10)].tolist()


def test_a_image_is_augmented_by_seed_epoch_and_index_alone() -> None:
    batch = train(batch=4)[2]  # positions 8 and 9 are of epoch 0, the next two of epoch 1
    for row, epoch in enumerate([0, 0, 1, 1]):
        index = int(batch.indices[row])
        alone = train_image(SET.read(index), PLAIN, HALF, CounterRNG(7, "image", epoch, index))
        assert np.array_equal(batch.images[row].numpy(), alone)
        assert batch.labels[row] == SET.labels[index]
    assert batch.weights.tolist() == [1, 1, 1, 1]


@settings(max_examples=25)
@given(
    batch=st.sampled_from([6, 12]),
    count=st.sampled_from([1, 2, 3]),
    step=st.integers(0, 10_000),
    level=st.sampled_from(["none", "light2", "strong2"]),
)
def test_shards_make_the_same_global_batch(batch: int, count: int, step: int, level: str) -> None:
    augment = replace(AUGMENTS[level], randaugment=None)
    whole = train(batch, augment=augment)[step]
    parts = [train(batch, Shard(rank, count), augment)[step] for rank in range(count)]
    assert all(part.mix == whole.mix for part in parts)
    partner = 1 if whole.mix else 0
    for name in ("images", "labels", "weights", "indices"):
        rows = torch.cat([getattr(part, name)[partner:] for part in parts])
        assert torch.equal(rows, getattr(whole, name)[partner:]), name
    if whole.mix:  # each part's first row is the last of the part before it, in a circle
        assert torch.equal(whole.images[0], whole.images[-1])
        for rank, part in enumerate(parts):
            assert torch.equal(part.images[0], parts[rank - 1].images[-1])


@pytest.mark.parametrize(("batch", "count"), [(18, 4), (1, 2), (0, 1)])
def test_a_batch_that_cannot_be_shared_is_refused(batch: int, count: int) -> None:
    with pytest.raises(InputError, match=f"global batch of {batch} on {count} processes"):
        train(batch, Shard(0, count))


def test_the_divisors_are_named() -> None:
    with pytest.raises(InputError, match="shared by 1, 2, 3, 6, 9, 18"):
        train(18, Shard(0, 4))


@settings(max_examples=30)
@given(size=st.integers(1, 25), batch=st.integers(1, 9), count=st.integers(1, 4))
def test_evaluation_counts_every_image_once(size: int, batch: int, count: int) -> None:
    pixels = np.arange(size, dtype=np.uint8)[:, None, None, None] * np.ones((16, 16, 3), np.uint8)
    dataset = ArrayDataset("p", ("a", "b"), np.zeros(size, np.int64), pixels)
    shards = [
        EvalBatches(dataset, HALF, batch=batch, shard=Shard(rank, count)) for rank in range(count)
    ]
    assert {len(shard) for shard in shards} == {-(-size // batch)}
    seen = [int(i) for shard in shards for n in range(len(shard)) for i in shard[n].indices]
    assert sorted(seen) == list(range(size))
    first = shards[0][0]
    assert first.images[:, 0, 0, 0].tolist() == first.indices.tolist()


def test_evaluation_equals_each_image_alone() -> None:
    batch = EvalBatches(SET, HALF, batch=4)[2]
    assert batch.indices.tolist() == [8, 9]
    for row, index in enumerate([8, 9]):
        alone = eval_image(SET.read(index), HALF)
        assert np.array_equal(batch.images[row].numpy(), alone)


def damaged() -> Listed:
    whole = encode(photo(0))
    return Listed([whole, whole[:200], OSError(2, "No such file or directory"), whole, b"hello"])


def test_bad_images_are_named_and_weigh_nothing() -> None:
    batch = EvalBatches(damaged(), HALF, batch=8)[0]
    assert batch.weights.tolist() == [1, 0, 0, 1, 0]
    assert [bad.where for bad in batch.bad] == ["p1.png", "p2.png", "p4.png"]
    assert [bad.kind for bad in batch.bad] == ["truncated", "unreadable", "not an image"]
    assert batch.bad[1].reason == "No such file or directory"
    assert batch.images[1].sum() == 0


def test_unreadable_images_warn_once_and_refuses_too_many(caplog: pytest.LogCaptureFixture) -> None:
    batch = EvalBatches(damaged(), HALF, batch=8)[0]
    lenient = UnreadableImages("damaged", 5, allowed=0.6)
    lenient.note(batch.bad)
    lenient.note(batch.bad)
    assert len(lenient.bad) == 3
    assert len(caplog.records) == 1
    assert lenient.summary().startswith("damaged: 3 of 5 images could not be used (1 ")
    with pytest.raises(InputError, match=r"3 of 5 images could not be used .* more than the 10%"):
        UnreadableImages("damaged", 5).note(batch.bad)
    UnreadableImages("endless", None).note(batch.bad)


def test_an_empty_set_and_an_empty_batch_are_refused() -> None:
    with pytest.raises(InputError, match="no images to train on"):
        TrainBatches(select(SET, np.arange(0)), PLAIN, HALF, batch=4, seed=0)
    with pytest.raises(InputError, match="at least 1 image"):
        EvalBatches(SET, HALF, batch=0)


def test_a_set_smaller_than_a_batch_comes_several_times() -> None:
    dataset = select(SET, np.array([3, 4, 5]))
    batch = TrainBatches(dataset, PLAIN, HALF, batch=8, seed=1)[0]
    assert sorted(batch.indices[:3].tolist()) == sorted(batch.indices[3:6].tolist()) == [0, 1, 2]


@pytest.mark.parametrize(("batch", "repeats"), [(6, 3), (8, 3), (4, 2), (2, 5)])
def test_repeated_images_stand_in_the_row_side_by_side(batch: int, repeats: int) -> None:
    """Against the row written out: each image of each epoch so many times."""
    batches = TrainBatches(SET, PLAIN, HALF, batch=batch, seed=7, repeats=repeats)
    row = [
        (epoch, int(index), copy)
        for epoch in range(3)
        for index in Permutation(10, 7, "order", epoch)[np.arange(10)]
        for copy in range(repeats)
    ]
    for step in range(len(row) // batch):
        expected = sorted(row[step * batch : (step + 1) * batch], key=lambda one: one[2])
        made = batches[step]
        assert made.copies is not None
        found = list(zip(made.indices.tolist(), made.copies.tolist(), strict=True))
        begun = row[step * batch][0]
        assert found == [(i, (epoch - begun) * repeats + copy) for epoch, i, copy in expected]
        for place, (epoch, index, copy) in enumerate(expected):
            rng = CounterRNG(7, "image", epoch * repeats + copy, index)
            alone = train_image(SET.read(index), PLAIN, HALF, rng)
            assert np.array_equal(made.images[place].numpy(), alone)
        assert len(set(made.keys.tolist())) == batch  # each copy has noise of its own


def test_repeated_images_are_shared_like_others() -> None:
    def part(shard: Shard) -> Batch:
        light = replace(AUGMENTS["light2"], randaugment=None)
        return TrainBatches(SET, light, HALF, batch=8, seed=7, shard=shard, repeats=3, mixed=False)[
            4
        ]

    whole, parts = part(Shard()), [part(Shard(rank, 2)) for rank in range(2)]
    assert whole.mix is not None
    assert torch.equal(torch.cat([one.images[1:] for one in parts]), whole.images[1:])
    assert torch.equal(torch.cat([one.keys[1:] for one in parts]), whole.keys[1:])


def test_copies_of_an_image_in_one_batch_have_keys_of_their_own() -> None:
    """A batch larger than the dataset, or over an epoch's edge, has an image more than once."""
    batch = 2 * len(SET) + 3
    keys = [TrainBatches(SET, PLAIN, HALF, batch=batch, seed=7)[step].keys for step in (0, 5)]
    for found in keys:
        assert len(set(found.tolist())) == batch
    halves = [
        TrainBatches(SET, PLAIN, HALF, batch=batch + 1, seed=7, shard=Shard(rank, 2))[5].keys
        for rank in (0, 1)
    ]
    whole = TrainBatches(SET, PLAIN, HALF, batch=batch + 1, seed=7)[5].keys
    assert torch.equal(torch.cat(halves), whole)
    within = TrainBatches(SET, PLAIN, HALF, batch=len(SET), seed=7)[3]
    assert torch.equal(within.keys, within.indices)


@pytest.mark.parametrize("level", ["medium1", "strong2"])
def test_mixed_batches_are_what_a_plain_loop_takes(level: str) -> None:
    """Images, labels and weights as many as the batch; the same as mixing on the device gives."""
    made = TrainBatches(SET, AUGMENTS[level], HALF, batch=8, seed=7)[0]
    raw = TrainBatches(SET, AUGMENTS[level], HALF, batch=8, seed=7, mixed=False)[0]
    assert raw.mix is not None
    assert made.mix is None
    assert made.images.shape == (8, 16, 16, 3)
    assert made.labels.shape == (8, len(SET.classes))
    assert torch.allclose(made.labels.sum(1), torch.ones(8))
    share = raw.mix.share
    for row in range(8):
        expected = torch.zeros(len(SET.classes))
        expected[raw.labels[row + 1]] += share
        expected[raw.labels[row]] += 1 - share
        assert torch.allclose(made.labels[row], expected)
        blend = raw.images[row + 1] * share + raw.images[row] * (1 - share)
        assert (made.images[row] - blend).abs().max() <= 0.5 + 1e-3
    assert made.keys.tolist() == raw.keys[1:].tolist()
    assert made.weights.tolist() == [1.0] * 8
