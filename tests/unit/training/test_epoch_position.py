"""The place in an epoch of fairseq's own tasks, for another number of processes."""

import pytest

from fairseq_mtmoe.training.epoch_position import adapted, counted, drawn_in


def state(iterations, **others):
    return {"train_iterator": {"epoch": 2, "iterations_in_epoch": iterations, **others}, "val_loss": 1.0}


@pytest.mark.parametrize(
    ("before", "now", "place"), [(2, 4, 3), (4, 2, 12), (2, 2, 6), (1, 6, 1), (1, 4, 1), (3, 1, 18)]
)
def test_the_place_is_that_of_as_many_batches_or_the_earlier_one(before, now, place):
    found = adapted(counted(state(6), before, 1), now)
    assert found["train_iterator"]["iterations_in_epoch"] == place and found["val_loss"] == 1.0


def test_batches_that_are_seen_again_are_counted(caplog):
    adapted(counted(state(6), 1, 1), 4)
    assert "2 batches of this epoch are seen twice" in caplog.text


def test_an_exact_place_and_one_of_before_stay(caplog):
    exact = state(6, batches_in_epoch=12)
    assert adapted(counted(exact, 2, 1), 4) == exact
    assert adapted(state(6), 4) == state(6)
    assert adapted(None, 4) is None
    assert counted({}, 4, 1) == {}  # fairseq's crash.pt
    assert not caplog.text


def test_the_epoch_for_which_batches_were_drawn_is_kept():
    assert drawn_in(adapted(counted(state(6), 2, 1), 4)) == 1
    assert drawn_in(counted(state(6), 2, None)) is None
    assert drawn_in(state(6)) is None and drawn_in(None) is None
