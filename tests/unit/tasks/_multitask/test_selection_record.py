"""What uncertainty sampling chose: sums of a stretch, distinct examples, and going on from a checkpoint."""

import numpy as np
import pytest

from fairseq_mtmoe.data.mixtures.candidates import Candidates
from fairseq_mtmoe.tasks._multitask.selection import Selection, SelectionRecord

SIZES = {"mnli": 10, "rte": 3}


def chosen(*places, relative=(0.5, 1.0, 0.25, 0.75)):
    """Of two candidates of each task, the first two places of mnli and the last of rte."""
    items = tuple((task, {"place": place}) for task in (0, 1) for place in (0, 1))
    return Selection([(task, {"place": place}) for task, place in places], Candidates(items, 2), np.array(relative))


def step(record, *places):
    record.begin_step()
    log = record.note(chosen(*places), counts=True)
    record.add([log, record.note(chosen(*places), counts=False)])


def test_the_sums_of_a_stretch_are_of_its_updates():
    record = SelectionRecord(SIZES)
    assert record.take() is None
    step(record, (0, 0), (0, 7))
    step(record, (0, 0), (1, 2))
    event = record.take()
    assert event == {
        "updates": 2,
        "candidates": {"mnli": 4, "rte": 4},
        "trained": {"mnli": 3, "rte": 1},
        "relative_entropy": {"mnli": 0.75, "rte": 0.5},
        "distinct": {"mnli": 2, "rte": 1},
        "share_of_data": pytest.approx(3 / 13),
    }
    step(record, (1, 0), (1, 1))
    event = record.take()
    assert event["updates"] == 1 and event["trained"] == {"mnli": 0, "rte": 2} and event["distinct"]["rte"] == 3


def test_a_step_that_made_no_update_is_not_counted():
    record = SelectionRecord(SIZES)
    step(record, (0, 0), (0, 7))
    record.begin_step()
    record.note(chosen((0, 1), (1, 1)), counts=True)  # whose gradients overflow
    record.gather()
    before = record.state()["seen"]
    assert before["mnli"]["bits"].tolist() == [0b10000001, 0] and not before["rte"]["bits"].any()
    record.begin_step()
    logs = [record.note(chosen(place), counts=True) for place in ((0, 9), (1, 2))]  # of `--update-freq 2`
    record.add(logs)
    event = record.take()
    assert event["distinct"] == event["trained"] == {"mnli": 3, "rte": 1} and event["updates"] == 2


def test_a_checkpoint_goes_on_in_the_middle_of_a_stretch():
    whole, first = SelectionRecord(SIZES), SelectionRecord(SIZES)
    for record in (whole, first):
        step(record, (0, 0), (0, 7))
        record.gather()
    resumed = SelectionRecord(SIZES)
    resumed.restore(first.state())
    for record in (whole, resumed):
        step(record, (1, 2), (0, 9))
    assert resumed.take() == whole.take()


def test_a_task_whose_data_has_changed_begins_anew():
    before = SelectionRecord(SIZES)
    step(before, (0, 0), (1, 2))
    before.gather()
    now = SelectionRecord({"cola": 5, "mnli": 10, "rte": 4})
    now.restore(before.state())
    now.add([now.note(chosen((0, 1)), counts=True)])
    assert now.take()["distinct"] == {"cola": 1, "mnli": 1, "rte": 0}
