"""Orders of items, indices and the sentences that they stand for; blocks hold what they should."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_mtmoe.multitask.sampling import draw as drawing
from fairseq_mtmoe.multitask.sampling.draw import Draw, Numbering, Stretch, stratified_share
from fairseq_mtmoe.multitask.sampling.permutation import derive_key, items_at


@settings(deadline=None)
@given(st.integers(1, 500), st.integers(0, 2**64 - 1), st.data())
def test_an_order_holds_every_item_once_and_any_part_can_be_had_alone(size, key, data):
    first = data.draw(st.integers(0, size))
    second = data.draw(st.integers(first, size))
    items = items_at(0, size, size, key)
    assert sorted(items) == list(range(size))
    np.testing.assert_array_equal(items_at(first, second - first, size, key), items[first:second])


def test_an_orders_numbers_are_frozen():
    """Other numbers would change the batches of runs that are resumed after an update of the package."""
    assert items_at(0, 10, 10, 42).tolist() == [9, 1, 4, 6, 3, 8, 2, 0, 5, 7]
    assert items_at(2**31, 3, 2**32, 42).dtype == np.uint32
    assert items_at(0, 3, 2**40, 42).tolist() == [715604450642, 927354486883, 704962583421]
    assert derive_key(1, 2, 3) == 15020427595393229491
    long = items_at(0, 600_000, 600_000, 3)  # in chunks
    np.testing.assert_array_equal(np.sort(long), np.arange(600_000))


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=3), min_size=1, max_size=4), st.data())
def test_every_range_holds_its_tasks_sentences_once_for_each_pass(groups, data):
    passes = [data.draw(st.integers(0, 3)) for _ in groups]
    numbering = Numbering([size for group in groups for size in group], [len(group) for group in groups], passes)
    expected, task = [], 0
    for group, times in zip(groups, passes, strict=True):
        expected += [(n, sentence) for n, size in enumerate(group, task) for sentence in range(size)] * times
        task += len(group)
    assert [numbering.locate(index) for index in range(len(numbering))] == expected
    located = numbering.locate_all(np.arange(len(numbering), dtype=numbering.index_type))
    assert list(zip(*(column.tolist() for column in located), strict=True)) == expected


def test_indices_are_wide_where_they_must_be():
    assert Numbering([2**31], [1], [2]).index_type == np.uint32
    wide = Numbering([2**31, 5], [1, 1], [2, 3])
    assert wide.index_type == np.uint64 and wide.locate(2**32 + 7) == (1, 2)


STRETCHES = {
    "few items of a pass": Stretch(0, 0, 100, 20, 30, 7),
    "most items of a pass": Stretch(0, 0, 100, 20, 70, 7),
    "the end of a pass": Stretch(0, 0, 100, 40, 60, 7),
    "a whole pass": Stretch(0, 1, 100, 0, 100, 7),
    "several passes": Stretch(0, 1, 100, 0, 300, 7),
}


@pytest.mark.parametrize("kind", STRETCHES)
def test_blocks_hold_the_sentences_of_their_positions(kind, monkeypatch):
    monkeypatch.setattr(drawing, "BLOCK", 32)
    stretch, numbering = STRETCHES[kind], Numbering([40, 1, 59], [3], [4])
    draw = Draw((0,), numbering, (stretch,))
    blocks = list(draw.blocks())
    assert len(blocks) > 1 or stretch.count < 32
    indices, tasks, sentences = (np.concatenate(column).tolist() for column in zip(*blocks, strict=True))
    assert list(zip(tasks, sentences, strict=True)) == [numbering.locate(index) for index in indices]
    assert all((np.diff(block_tasks) >= 0).all() for _, block_tasks, _ in blocks)
    # The order of examples with equal hashes follows, which resumed runs must keep.
    assert (indices == sorted(indices)) == (kind not in ("few items of a pass", "several passes"))
    is_part = stretch.count < 100
    items = items_at(stretch.start, stretch.count, 100, 7).astype(int) if is_part else np.arange(stretch.count)
    assert sorted(indices) == sorted(stretch.first * 100 + items) and len(draw) == len(indices)


def made(seed):
    """Strata of one to six labels, some of them rare."""
    draw = np.random.default_rng(seed)
    weights = draw.dirichlet(np.full(draw.integers(1, 7), 0.5))
    return draw.choice(len(weights), size=int(draw.integers(1, 3000)), p=weights)


@pytest.mark.parametrize("seed", range(3))
def test_shares_are_nested_and_of_each_stratum_alike(seed):
    strata, drawn = made(seed), []
    present = np.unique(strata)
    for share in (0.001, 0.1, 0.33, 0.5, 1.0):
        smaller, drawn = drawn, stratified_share(strata, share, seed=1)
        assert np.isin(smaller, drawn).all()
        assert len(drawn) == max(round(share * len(strata)), len(present))
        assert (np.diff(drawn) > 0).all() and drawn.min() >= 0 and drawn.max() < len(strata)
        wanted = share * np.bincount(strata)[present]
        found = np.bincount(strata[drawn], minlength=strata.max() + 1)[present]
        assert found.min() >= 1 and np.abs(found - wanted).max() < max(len(present), 2)


def test_what_a_seed_draws_stays_also_in_later_versions():
    assert stratified_share(np.arange(100) % 3, 0.1, seed=1).tolist() == [21, 44, 49, 52, 77, 78, 87, 90, 91, 95]
    assert stratified_share(made(3), 0.1, seed=1).tolist() != stratified_share(made(3), 0.1, seed=2).tolist()
