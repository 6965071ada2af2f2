"""Endless passes: each holds every item once, any part can be had alone, orders look random and do not repeat."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_mtmoe.data.sampling.permutation import derive_key, mix, permuted, uniform_number

FROZEN_ORDER = [0, 6, 1, 8, 9, 2, 3, 4, 7, 5]
FROZEN_KEY = 15020427595393229491


@settings(deadline=None)
@given(st.integers(1, 3000), st.integers(0, 2**64 - 1), st.integers(0, 5))
def test_every_pass_holds_every_item_once(size, key, number):
    assert sorted(permuted(number * size, size, size, key)) == list(range(size))


@settings(deadline=None)
@given(st.integers(1, 500), st.integers(0, 2000), st.integers(0, 500), st.integers(0, 500))
def test_any_part_can_be_had_alone(size, start, first, second):
    together = permuted(start, first + second, size, 7)
    apart = [permuted(start, first, size, 7), permuted(start + first, second, size, 7)]
    np.testing.assert_array_equal(together, np.concatenate(apart))


def test_long_stretches_are_computed_in_chunks_without_seams():
    items = permuted(0, 600_000, 600_000, 3)
    np.testing.assert_array_equal(np.sort(items), np.arange(600_000))


def test_size_does_not_matter_for_the_cost():
    items = permuted(10**15, 1000, 10**13, 1)
    assert items.min() >= 0 and items.max() < 10**13 and len(set(items.tolist())) == 1000


@pytest.mark.parametrize("size", [2, 3, 5, 17, 33])
def test_every_place_gets_every_item_equally_often(size):
    passes = 20_000
    orders = permuted(0, passes * size, size, 11).reshape(passes, size)
    for place in range(size):
        counts = np.bincount(orders[:, place], minlength=size)
        deviation = (counts - passes / size) / np.sqrt(passes / size * (1 - 1 / size))
        assert np.abs(deviation).max() < 5


def test_neighbours_in_a_large_pass_are_unrelated():
    items = permuted(0, 100_000, 100_000, 5).astype(float)
    assert abs(np.corrcoef(items[:-1], items[1:])[0, 1]) < 0.02
    assert abs(np.corrcoef(items, np.arange(100_000))[0, 1]) < 0.02


def test_passes_and_keys_have_different_orders():
    first, second = permuted(0, 200, 100, 1).reshape(2, 100)
    assert not np.array_equal(first, second)
    assert not np.array_equal(first, permuted(0, 100, 100, 2))


def test_the_order_is_frozen():
    """Other numbers would change the batches of runs that are resumed after an update of the package."""
    np.testing.assert_array_equal(permuted(0, 10, 10, 42), FROZEN_ORDER)
    np.testing.assert_equal(derive_key(1, 2, 3), FROZEN_KEY)


def test_keys_depend_on_the_parts_and_their_order():
    keys = {derive_key(), derive_key(0), derive_key(0, 0), derive_key(1, 2), derive_key(2, 1), derive_key(-1)}
    assert len(keys) == 6 and all(0 <= key < 2**64 for key in keys)


def test_uniform_numbers_fill_the_interval():
    numbers = np.array([uniform_number(3, index) for index in range(4000)])
    assert numbers.min() >= 0 and numbers.max() < 1
    assert np.histogram(numbers, 10, (0, 1))[0] == pytest.approx(np.full(10, 400), abs=100)


def test_the_hash_is_a_bijection_on_a_sample():
    words = np.arange(10_000, dtype=np.uint64)
    assert len(np.unique(mix(words))) == 10_000
