"""rng.py: Random123's own answers, and numbers that depend on nothing but what they are for."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from vitrail.data.rng import CounterRNG, Permutation, philox, shuffled, words

KNOWN = [  # kat_vectors of Random123: counter and key, answer
    ("00000000 " * 6, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff " * 6, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    (
        "243f6a88 85a308d3 13198a2e 03707344 a4093822 299f31d0",
        "d16cfe09 94fdcceb 5001e420 24126ea1",
    ),
]


def numbers(rng: CounterRNG, count: int) -> np.ndarray:
    return np.stack([rng.uniform() for _ in range(count)], axis=1)


@pytest.mark.parametrize(("given", "answer"), KNOWN, ids=["zeros", "ones", "pi"])
def test_known_answers(given: str, answer: str) -> None:
    *counter, low, high = (int(word, 16) for word in given.split())
    drawn = philox(np.array([counter, counter], np.uint64), (low, high))
    assert drawn.dtype == np.uint32
    assert drawn.tolist() == [[int(word, 16) for word in answer.split()]] * 2


def test_words_are_philox_of_index_epoch_block_and_purpose() -> None:
    seed, index = 0x123456789ABCDEF0, np.array([7, 2**40 + 3], np.uint64)
    drawn = words(seed, "batch", 9, index, range(5, 7))
    counters = [[[7, 0, 9, 5 | 2 << 24], [7, 0, 9, 6 | 2 << 24]]]
    counters += [[[3, 256, 9, 5 | 2 << 24], [3, 256, 9, 6 | 2 << 24]]]
    expected = philox(np.array(counters, np.uint64), (0x9ABCDEF0, 0x12345678))
    assert np.array_equal(drawn, expected.reshape(2, 8))


def test_numbers_are_words_by_two_to_the_32() -> None:
    index = np.arange(3)
    expected = words(1, "order", 2, index, range(20)) / 2.0**32
    assert np.array_equal(
        numbers(CounterRNG(1, "order", 2, index), 80), expected
    )  # 32 are drawn ahead


@settings(max_examples=20)
@given(st.lists(st.integers(0, 2**63), min_size=1, max_size=8), st.integers(0, 70))
def test_a_image_draws_the_same_in_any_company(index: list[int], before: int) -> None:
    together = CounterRNG(3, "image", 1, np.array(index, np.uint64))
    alone = [numbers(CounterRNG(3, "image", 1, np.array([one], np.uint64)), 75)[0] for one in index]
    first = [together.uniform() for _ in range(before)]
    for row, part in enumerate(together.rows()):
        assert len(part) == 1
        rest = numbers(part, 75 - before)[0]
        assert np.array_equal(np.array([*(column[row] for column in first), *rest]), alone[row])
    onward = numbers(together, 75 - before)  # the rows' draws have not moved it
    assert np.array_equal(onward, np.stack(alone)[:, before:])


def test_numbers_are_uniform() -> None:
    drawn = numbers(CounterRNG(0, "image", 0, np.arange(2000)), 40)
    counts = np.histogram(drawn, bins=100, range=(0, 1))[0]
    assert counts.sum() == 80_000
    assert stats.chisquare(counts).pvalue > 1e-3
    scaled = CounterRNG(0, "image", 0, np.arange(2000)).uniform(-3, 5)
    assert np.array_equal(scaled, -3 + 8 * drawn[:, 0])


def test_whole_numbers_are_uniform_and_below() -> None:
    drawn = CounterRNG(0, "image", 0, np.arange(8000)).below(7)
    assert drawn.dtype == np.int64
    assert stats.chisquare(np.bincount(drawn, minlength=7)).pvalue > 1e-3
    each = CounterRNG(0, "image", 0, np.arange(1000)).below(np.arange(1, 1001))
    assert np.all((each >= 0) & (each < np.arange(1, 1001)))


def test_seeds_purposes_epochs_and_columns_are_independent() -> None:
    index = np.arange(4000)
    columns = [
        *numbers(CounterRNG(0, "image", 0, index), 3).T,
        *numbers(CounterRNG(1, "image", 0, index), 1).T,
        *numbers(CounterRNG(1 << 32, "image", 0, index), 1).T,
        *numbers(CounterRNG(0, "order", 0, index), 1).T,
        *numbers(CounterRNG(0, "image", 1, index), 1).T,
        *numbers(CounterRNG(0, "image", 0, index + 4000), 1).T,
    ]
    correlation = np.corrcoef(columns) - np.eye(len(columns))
    assert np.abs(correlation).max() < 4.5 / np.sqrt(len(index))


def test_each_image_may_be_in_an_epoch_of_its_own() -> None:
    epochs, index = np.array([4, 4, 5]), np.array([8, 9, 0])
    mixed = CounterRNG(0, "image", epochs, index)
    parts = mixed.rows()
    for row, (epoch, one) in enumerate(zip(epochs, index, strict=True)):
        alone = numbers(CounterRNG(0, "image", int(epoch), int(one)), 40)
        assert np.array_equal(numbers(parts[row], 40), alone)


def test_shuffled_is_a_permutation_that_changes_with_all_it_depends_on() -> None:
    order = shuffled(1000, 0, "order")
    assert np.array_equal(np.sort(order), np.arange(1000))
    assert np.array_equal(order, shuffled(1000, 0, "order", 0))
    for other in (
        shuffled(1000, 1, "order"),
        shuffled(1000, 0, "split"),
        shuffled(1000, 0, "order", 1),
    ):
        assert abs(np.corrcoef(order, other)[0, 1]) < 0.15
    assert shuffled(0, 0, "order").tolist() == []
    assert shuffled(1, 0, "order").tolist() == [0]


def test_shuffles_reach_all_orders_alike() -> None:
    seen = [tuple(shuffled(4, seed, "order")) for seed in range(1200)]
    counts = np.unique(seen, axis=0, return_counts=True)[1]
    assert len(counts) == 24
    assert stats.chisquare(counts).pvalue > 1e-3


def test_fixed_values_stay() -> None:
    """What was once trained with a seed can be trained again."""
    assert shuffled(10, 0, "order", 3).tolist() == [7, 4, 5, 6, 1, 9, 8, 2, 3, 0]
    assert CounterRNG(1, "image", 2, 3).below(2**32).tolist() == [4123427874]


@settings(max_examples=60)
@given(st.integers(1, 5000), st.integers(0, 2**63), st.integers(0, 2**31))
def test_a_permutation_has_each_number_once(count: int, seed: int, epoch: int) -> None:
    whole = Permutation(count, seed, "order", epoch)[np.arange(count)]
    assert np.array_equal(np.sort(whole), np.arange(count))
    some = np.array([0, count // 2, count - 1, 0])
    assert np.array_equal(Permutation(count, seed, "order", epoch)[some], whole[some])


def test_permutations_are_even() -> None:
    orders = np.stack([Permutation(5, 3, "order", e)[np.arange(5)] for e in range(6000)])
    _, each = np.unique(orders, axis=0, return_counts=True)
    assert len(each) == 120  # all of them
    for column in orders.T:
        assert stats.chisquare(np.bincount(column)).pvalue > 1e-4


def test_a_large_permutation_looks_random() -> None:
    count = 10_000_000
    order = Permutation(count, 1, "order", 2)
    some = order[np.arange(4096) + 777_777]
    assert stats.kstest(some / count, "uniform").pvalue > 1e-3
    assert stats.kstest(np.diff(some) % count / count, "uniform").pvalue > 1e-3  # neighbors, too
    other = Permutation(count, 1, "order", 3)[np.arange(4096) + 777_777]
    assert abs(np.corrcoef(some, other)[0, 1]) < 0.06
