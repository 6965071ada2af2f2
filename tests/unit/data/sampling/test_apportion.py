"""Counts of an epoch: whole, exact in sum, and exact in expectation."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairseq_mtmoe.data.sampling import apportion

SHARES = st.lists(st.floats(0, 1), min_size=1, max_size=50).filter(lambda shares: sum(shares) > 1e-6)


@given(st.integers(0, 10**12), SHARES, st.floats(0, 1, exclude_max=True))
def test_counts_sum_to_the_total_and_are_the_shares_rounded(total, shares, offset):
    shares = np.array(shares)
    counts = apportion(total, shares, offset)
    assert counts.sum() == total and (counts >= 0).all()
    assert (np.abs(counts - total * shares / shares.sum()) < 1 + 1e-3).all()


def test_the_largest_offset_does_not_round_up_over_the_total():
    counts = apportion(2**52, np.array([1.0, 0.0]), 1 - 2**-53)
    assert counts.tolist() == [2**52, 0]


def test_over_all_offsets_the_mean_is_the_share():
    shares = np.array([0.61, 0.29, 0.07, 0.03])
    offsets = (np.arange(10_000) + 0.5) / 10_000
    mean = np.mean([apportion(10, shares, offset) for offset in offsets], axis=0)
    assert mean == pytest.approx(10 * shares, abs=1e-3)
