"""The order of an epoch: by lengths, ties at random, every drawn sentence once."""

import numpy as np
import pytest

from fairseq_mtmoe.multitask.sampling import draw as drawing
from fairseq_mtmoe.multitask.sampling.draw import Draw, Numbering, Stretch
from fairseq_mtmoe.multitask.sampling.order import order_by_length
from tests.helpers.draws import lengths_of, second_epoch

SIZES = (3000, 700, 40, 3)


def lengths_at(draw, lengths, indices):
    located = zip(*draw.numbering.locate_all(indices), strict=True)
    return np.array([lengths[task][example] for task, example in located]).reshape(-1, lengths[0].shape[1])


@pytest.mark.parametrize("block", [drawing.BLOCK, 64])
@pytest.mark.parametrize(
    ("method", "size", "limits", "sides"),
    [
        ("temperature", None, None, 2),
        ("temperature", 500, (20, 25, 22), 3),
        ("concat", None, (20,), 1),
        ("concat", 500, None, 3),
    ],
)
def test_the_order_is_by_the_length_of_the_first_side_then_of_the_next(method, size, limits, sides, block, monkeypatch):
    monkeypatch.setattr(drawing, "BLOCK", block)
    draw, lengths = second_epoch(SIZES, method, virtual_epoch_size=size), lengths_of(SIZES, sides=sides)
    order = order_by_length(draw, lengths, 3, limits or np.inf)
    drawn = np.concatenate([indices for indices, _, _ in draw.blocks()])
    outside = (lengths_at(draw, lengths, drawn) > (limits or (99,) * sides)).any(axis=1)
    assert sorted(order.indices) == sorted(drawn[~outside]) and sorted(order.too_long) == sorted(drawn[outside])
    found = lengths_at(draw, lengths, order.indices)
    assert found.tolist() == sorted(found.tolist())
    assert order.longest_V.tolist() == found.max(axis=1).tolist()
    assert order.counts.tolist() == np.bincount(draw.numbering.locate_all(drawn)[0], minlength=4).tolist()


def test_another_key_changes_the_order_of_equal_lengths_only():
    draw, lengths = second_epoch(SIZES, "concat"), lengths_of(SIZES)
    first, second = (order_by_length(draw, lengths, key) for key in (1, 2))
    assert not np.array_equal(first.indices, second.indices)
    np.testing.assert_array_equal(*(lengths_at(draw, lengths, order.indices) for order in (first, second)))
    longer = [length * 2500 for length in lengths]
    found = lengths_at(draw, longer, order_by_length(draw, longer, 3).indices)
    assert found.max() > 2**16 and found.tolist() == sorted(found.tolist())


def test_the_order_is_frozen():
    draw, lengths = second_epoch((9, 4)), lengths_of((9, 4), 3)
    frozen = [13, 7, 4, 2, 6, 0, 12, 20, 16, 8, 15, 1, 14, 11, 3]
    assert order_by_length(draw, lengths, 42).indices.tolist() == frozen
    wide = Draw((0, 0), Numbering([2**32, 9], [1, 1], [1, 1]), (Stretch(1, 0, 9, 0, 9, 0),))
    same = [np.full((2, 1), 5), np.full((9, 1), 5)]
    assert (order_by_length(wide, same, 42).indices - 2**32).tolist() == [4, 8, 1, 5, 0, 6, 7, 2, 3]
