"""Orders: each holds every item once, any part can be had alone and back, orders look random and do not repeat."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_mtmoe.data.sampling.permutation import derive_key, items_at, positions_of, word_type

KEYS = st.integers(0, 2**64 - 1)


@settings(deadline=None)
@given(st.integers(1, 500), KEYS, st.data())
def test_an_order_holds_every_item_once_and_any_part_can_be_had_alone(size, key, data):
    first = data.draw(st.integers(0, size))
    second = data.draw(st.integers(first, size))
    items = items_at(0, size, size, key)
    assert sorted(items) == list(range(size))
    np.testing.assert_array_equal(items_at(first, second - first, size, key), items[first:second])


@settings(deadline=None)
@given(st.one_of(st.integers(1, 500), st.integers(2**32 - 5, 2**32 + 5), st.integers(10**12, 10**13)), KEYS, st.data())
def test_positions_lead_back_to_items(size, key, data):
    start = data.draw(st.integers(0, max(size - 50, 0)))
    count = min(50, size - start)
    items = items_at(start, count, size, key)
    assert items.dtype == word_type(size) == (np.uint32 if size <= 2**32 else np.uint64)
    back = [int(positions_of(int(item), 1, size, key)[0]) for item in items]
    assert back == list(range(start, start + count))


def test_long_stretches_are_computed_in_chunks_without_seams():
    items, positions = items_at(0, 600_000, 600_000, 3), positions_of(0, 600_000, 600_000, 3)
    np.testing.assert_array_equal(np.sort(items), np.arange(600_000))
    np.testing.assert_array_equal(positions[items], np.arange(600_000))


def test_the_order_is_frozen():
    """Other numbers would change the batches of runs that are resumed after an update of the package."""
    assert items_at(0, 10, 10, 42).tolist() == [9, 1, 4, 6, 3, 8, 2, 0, 5, 7]
    assert items_at(0, 3, 2**40, 42).tolist() == [715604450642, 927354486883, 704962583421]
    assert derive_key(1, 2, 3) == 15020427595393229491
