"""A share of the examples: as many as asked for, of each stratum alike, nested, and decided by the seed alone."""

import itertools

import numpy as np
import pytest

from fairseq_mtmoe.data.sampling.draw import stratified_share

SHARES = (0.001, 0.01, 0.1, 0.33, 0.5, 0.9, 1.0)


def made(seed):
    """Strata of one to six labels, some of them rare."""
    draw = np.random.default_rng(seed)
    weights = draw.dirichlet(np.full(draw.integers(1, 7), 0.5))
    return draw.choice(len(weights), size=int(draw.integers(1, 3000)), p=weights)


@pytest.mark.parametrize("case", range(4))
def test_so_many_are_drawn_of_each_stratum_alike(case):
    strata = made(case)
    present = np.unique(strata)
    for share in SHARES:
        drawn = stratified_share(strata, share, seed=1)
        assert len(drawn) == max(round(share * len(strata)), len(present))
        assert (np.diff(drawn) > 0).all() and drawn.min() >= 0 and drawn.max() < len(strata)
        wanted = share * np.bincount(strata)[present]
        found = np.bincount(strata[drawn], minlength=strata.max() + 1)[present]
        assert found.min() >= 1 and np.abs(found - wanted).max() < max(len(present), 2)


@pytest.mark.parametrize("case", range(4))
def test_a_smaller_share_is_a_part_of_a_larger_one(case):
    strata = made(case)
    draws = [set(stratified_share(strata, share, seed=case).tolist()) for share in SHARES]
    assert all(small <= large for small, large in itertools.pairwise(draws))
    assert draws[-1] == set(range(len(strata)))


def test_what_a_seed_draws_stays():
    """Studies say that all their runs have the same examples, also those that a later version makes."""
    assert stratified_share(np.arange(100) % 3, 0.1, seed=1).tolist() == [21, 44, 49, 52, 77, 78, 87, 90, 91, 95]
    assert stratified_share(made(3), 0.1, seed=1).tolist() != stratified_share(made(3), 0.1, seed=2).tolist()
