"""What a checkpoint remembers of its run's draws: going on under the same rules, other ones, and with other data."""

import io
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from fairseq_mtmoe.multitask.sampling.plan import SamplingPlan
from fairseq_mtmoe.multitask.sampling.saved_plans import changes, restored_plan, saved_plan
from fairseq_mtmoe.multitask.sampling.schedule import Schedule
from tests.helpers.draws import same, times_drawn
from tests.helpers.refused import refused


def heated(coefficient=3.0, epochs=10, updates=None, start=1.5):
    return Schedule("temperature", start, coefficient, epochs, updates)


def plan(schedule=None, size=13, sizes=None, names=None, **options):
    sizes = sizes or [[40], [9], [15]]
    schedule = replace(schedule or heated(), virtual_epoch_size=size)
    return SamplingPlan(sizes, schedule, 1, names or ["en-aa", "en-bb", "en-cc"][: len(sizes)], **options)


def saved(old, epoch):
    torch.save(saved_plan(old, epoch), file := io.BytesIO())
    file.seek(0)
    return torch.load(file, weights_only=True)


def resumed(old, epoch, new, has_begun=False, update=0):
    before = restored_plan(saved(old, epoch))
    assert new.follow(before, has_begun, update)
    return new


def spread(times):
    """The largest difference within a task: at most 1 if no sentence came again before all others."""
    return max(map(np.ptp, times))


@pytest.mark.parametrize(
    ("schedule", "size", "has_begun"),
    [
        (heated(), 13, True),
        (heated(), None, False),
        (heated(epochs=None, updates=500), 13, True),
        (Schedule(), 40, False),
        (Schedule("uniform-then-natural", natural_from_epoch=7), 40, True),
    ],
)
def test_the_same_rules_draw_the_same(schedule, size, has_begun):
    new = partial(plan, schedule, size=size, sizes=[[40, 30], [9], [7, 5, 3]])
    whole = new()
    draws = [whole.draw(epoch, update=60 * (epoch - 1)) for epoch in range(1, 13)]
    interrupted = new()
    for epoch in range(1, 12):
        interrupted.draw(epoch, update=60 * (epoch - 1))
        if epoch % 2:
            at, updates = (epoch, 60 * epoch - 17) if has_begun else (epoch + 1, 60 * epoch)
            interrupted = resumed(interrupted, at, new(), has_begun, updates)
            assert same(interrupted.draw(at, updates), draws[at - 1])
    assert same(interrupted.draw(12, 660), draws[11])


@pytest.mark.parametrize(
    ("first", "later", "given", "epoch", "heat"),
    [
        (heated(epochs=10), heated(epochs=20), True, 11, 3 * 10 / 20),
        (heated(epochs=10), heated(epochs=99), False, 11, 3),
        (heated(epochs=10), heated(epochs=None), False, 9, 3 * 8 / 10),  # the checkpoint alone knows the duration
        (heated(epochs=None, updates=100), heated(epochs=20), False, 4, 3 * 50 / 100),
        (heated(epochs=None, updates=100), heated(epochs=10), True, 5, 3 * 4 / 10),
        (heated(0, 10), heated(1, 40), False, 11, 10 / 40),  # of a heating that only begins
    ],
)
def test_a_heating_goes_on_unless_a_duration_is_given(first, later, given, epoch, heat):
    new = resumed(plan(first), epoch, plan(later, given_duration=given), update=50)
    assert new.temperature(epoch) == pytest.approx(1.5 * np.sqrt(1 + heat))
    new.schedule.check_duration()


def test_a_change_is_said_by_the_names_of_the_options():
    said = changes(plan(), resumed(plan(), 3, plan(Schedule("temperature", 1.5, sampling_weights=(1, 2, 3)))))
    weights = "sampling_weights was None and is {'en-aa': 1, 'en-bb': 2, 'en-cc': 3}"
    assert said == ["heating_coefficient was 3.0 and is 0.0", "heating_epochs was 10 and is None", weights]


def test_shards_that_are_left_go_on_with_epochs_of_another_size():
    shards = [[60, 30], [30, 15]]
    old = plan(Schedule(), size=30, sizes=shards)
    new = resumed(old, 2, plan(Schedule(), size=10, sizes=shards))
    assert [new.draw(epoch).shards[0] for epoch in range(2, 14)] == [0] * 6 + [1] * 5 + [0]
    assert spread(times_drawn([old.draw(1), *(new.draw(epoch) for epoch in range(2, 8))], (60, 30))) == 0


@pytest.mark.parametrize("has_begun", [False, True])
def test_pairs_whose_data_is_as_it_was_go_on_when_others_changed(has_begun):
    old = plan()
    draws = [old.draw(epoch) for epoch in range(1, 8 if has_begun else 7)]
    before = restored_plan(saved(old, 7))
    new = plan(sizes=[[15], [40], [11], [6]], names=["en-cc", "en-aa", "en-bb", "en-dd"])
    assert new.follow(before, has_begun, 0) is not has_begun
    first = 8 if has_begun else 7
    assert new.epoch == first
    later = times_drawn([new.draw(epoch) for epoch in range(first, 30)], (15, 40, 11, 6))
    earlier = times_drawn(draws, (40, 9, 15))
    assert spread([earlier[0] + later[1], earlier[2] + later[0], later[2], later[3]]) == 1
    again = resumed(new, 30, plan(sizes=[[9], [6]], names=["en-xx", "en-dd"]))
    assert spread([later[3] + times_drawn([again.draw(epoch) for epoch in range(30, 40)], (9, 6))[1]]) <= 1
    assert again.numbers == [4, 3]


@pytest.mark.parametrize(
    "changed", [{"rules": {}}, {"shard_sizes": [[40], [9], [0]]}, {"numbers": [0, 1]}, {"place": {"epoch": 3}}]
)
def test_a_damaged_state_is_one_sentence(changed):
    with refused("--reset-dataloader"):
        restored_plan({**saved(plan(), 3), **changed})


def test_rules_that_changed_in_the_middle_of_an_epoch_are_not_forgotten_there():
    middle = resumed(plan(heated(epochs=10)), 3, plan(heated(epochs=20)), has_begun=True)
    again = resumed(middle, 3, plan(heated(epochs=99), given_duration=False), has_begun=True)
    assert again.temperature(3) == plan(heated(epochs=10)).temperature(3)
    assert again.temperature(4) == plan(heated(epochs=20)).temperature(4)
