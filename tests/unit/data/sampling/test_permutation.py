"""Orders: each holds every item once, and any part can be had alone."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_mtmoe.multitask.sampling.permutation import derive_key, items_at

KEYS = st.integers(0, 2**64 - 1)


@settings(deadline=None)
@given(st.integers(1, 500), KEYS, st.data())
def test_an_order_holds_every_item_once_and_any_part_can_be_had_alone(size, key, data):
    first = data.draw(st.integers(0, size))
    second = data.draw(st.integers(first, size))
    items = items_at(0, size, size, key)
    assert sorted(items) == list(range(size))
    np.testing.assert_array_equal(items_at(first, second - first, size, key), items[first:second])


def test_the_order_is_frozen():
    """Other numbers would change the batches of runs that are resumed after an update of the package."""
    assert items_at(0, 10, 10, 42).tolist() == [9, 1, 4, 6, 3, 8, 2, 0, 5, 7]
    assert items_at(2**31, 3, 2**32, 42).dtype == np.uint32
    assert items_at(0, 3, 2**40, 42).tolist() == [715604450642, 927354486883, 704962583421]
    assert derive_key(1, 2, 3) == 15020427595393229491
    long = items_at(0, 600_000, 600_000, 3)  # in chunks
    np.testing.assert_array_equal(np.sort(long), np.arange(600_000))
