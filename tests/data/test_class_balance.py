"""Class imbalance: weights in closed form, draws that positions decide, what auto does."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.utils.class_weight import compute_class_weight

from tests.data.sets import Counted, images
from vitrail.config import InputError
from vitrail.data.batches import TrainBatches
from vitrail.data.class_balance import (
    BalancedOrder,
    balance_notes,
    class_weights,
    describe_imbalance,
    imbalance,
    resolve_balance,
)
from vitrail.data.dataset import ArrayDataset
from vitrail.data.transforms.augment import Augment
from vitrail.data.transforms.preprocess import Preprocess
from vitrail.distributed import Shard
from vitrail.training.losses import label_loss


def dataset_of(counts: list[int], *, several: bool = False) -> ArrayDataset:
    """Make black images of so many in each class."""
    labels = np.repeat(np.arange(len(counts)), counts)
    names = [f"c{number}" for number in range(len(counts))]
    if several:
        labels = np.eye(len(counts), dtype=np.uint8)[labels]
    pixels = np.arange(len(labels), dtype=np.uint8)[:, None, None, None]
    return ArrayDataset("toy", names, labels, np.broadcast_to(pixels, (len(labels), 2, 2, 1)))


def test_weights_are_the_inverse_of_effective_numbers_with_a_mean_of_one() -> None:
    counts = np.array([1, 10, 500])
    weights = class_weights(counts, beta=0.9)
    effective = [sum(0.9**power for power in range(count)) for count in counts]
    assert weights * effective == pytest.approx(np.full(3, weights[0]))  # beta^0 is 1
    assert weights @ counts == pytest.approx(counts.sum())


def test_with_beta_one_weights_are_scikit_learns_balanced_ones() -> None:
    labels = np.repeat([0, 1, 2], [3, 4, 13])
    peer = compute_class_weight("balanced", classes=np.arange(3), y=labels)
    assert class_weights(np.array([3, 4, 13]), beta=1.0) == pytest.approx(peer)
    assert class_weights(np.array([3, 0, 5]))[1] == 0


def test_weighted_losses_are_torchs() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(6, 3, generator=generator)
    labels, weights = torch.tensor([0, 1, 2, 2, 1, 0]), torch.tensor([0.5, 2.0, 1.0])
    targets = F.one_hot(labels, 3).float()
    expected = F.cross_entropy(logits, labels, weight=weights, reduction="none")
    assert torch.allclose(label_loss(logits, targets, "softmax", weights), expected)
    several = torch.randint(2, (6, 3), generator=generator).float()
    expected = torch.nn.BCEWithLogitsLoss(pos_weight=weights, reduction="none")(logits, several)
    assert torch.allclose(label_loss(logits, several, "sigmoid", weights), expected.sum(-1))


@settings(max_examples=40)
@given(
    counts=st.lists(st.integers(0, 9), min_size=1, max_size=5).filter(any),
    seed=st.integers(0, 2**40),
    epochs=st.integers(1, 6),
)
def test_classes_and_their_images_come_equally_often(
    counts: list[int], seed: int, epochs: int
) -> None:
    dataset = dataset_of(counts)
    order = BalancedOrder(dataset.labels, len(counts), seed)
    rounds, indices = order.images_at(np.arange(epochs * len(dataset)))
    there = [number for number, count in enumerate(counts) if count]
    drawn = np.bincount(dataset.labels[indices], minlength=len(counts))[there]
    assert drawn.max() - drawn.min() <= 1
    for number in there:
        each = np.bincount(indices, minlength=len(dataset))[dataset.labels == number]
        assert each.max() - each.min() <= 1
    # An image is never augmented twice in the same way: it is told apart by how often it was seen.
    assert len(set(zip(rounds.tolist(), indices.tolist(), strict=True))) == len(indices)
    shuffled = np.random.default_rng(0).permutation(len(indices))
    assert np.array_equal(order.images_at(shuffled)[1], indices[shuffled])


@settings(max_examples=15)
@given(step=st.integers(0, 500), count=st.sampled_from([2, 3]), repeats=st.sampled_from([1, 2]))
def test_balanced_batches_do_not_depend_on_the_number_of_processes(
    step: int, count: int, repeats: int
) -> None:
    dataset = dataset_of([2, 7, 1])

    def make(shard: Shard) -> TrainBatches:
        preprocess = Preprocess(size=(2, 2), mean=(0.5,), std=(0.5,), interpolation="bilinear",
                                    fit="stretch")  # fmt: skip
        return TrainBatches(dataset, Augment(crop="whole", flip=0.5), preprocess, batch=6, seed=3,
                            shard=shard, repeats=repeats, balanced=True)  # fmt: skip

    whole = make(Shard())[step]
    parts = [make(Shard(rank, count))[step] for rank in range(count)]
    for name in ("images", "labels", "indices", "keys"):
        together = torch.cat([getattr(part, name) for part in parts])
        assert torch.equal(together, getattr(whole, name)), name
    assert len(set(whole.keys.tolist())) == len(whole.keys)


def test_auto_goes_by_the_largest_class_against_the_smallest() -> None:
    assert imbalance(np.array([4, 0, 12])) == 3
    assert resolve_balance("auto", dataset_of([2, 3])) == "none"
    assert balance_notes("auto", dataset_of([2, 3])) == ()
    for counts, chosen in (([2, 4], "weights"), ([2, 42], "sampling")):
        assert resolve_balance("auto", dataset_of(counts)) == chosen
        (note,) = balance_notes("auto", dataset_of(counts))
        assert note.startswith(f"balance auto: {chosen}: the largest class, 'c1', has {counts[1]}")
    assert resolve_balance("auto", dataset_of([2, 42], several=True)) == "none"
    assert balance_notes("none", dataset_of([2, 42])) == ()


def test_what_cannot_be_balanced_is_refused() -> None:
    stream = Counted(images(3))
    assert resolve_balance("auto", stream) == "none"
    assert balance_notes("auto", stream) == ()
    with pytest.raises(InputError, match="counted is a stream; leave it out"):
        resolve_balance("weights", stream)
    with pytest.raises(InputError, match="use balance weights"):
        resolve_balance("sampling", dataset_of([2, 3], several=True))


def test_balanced_classes_are_said_to_be() -> None:
    labels = np.repeat(np.arange(3), 4)
    dataset = ArrayDataset("even", ("a", "b", "c"), labels, np.zeros((12, 2, 2, 1), np.uint8))
    assert describe_imbalance(dataset) == "3 classes of 4 images each"
