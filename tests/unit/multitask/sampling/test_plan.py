"""The plan: what an epoch draws, how consecutive ones walk through the data, and that nothing else decides it."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from fairseq.data.multilingual.sampled_multi_dataset import default_virtual_size_func

from fairseq_mtmoe.multitask.sampling.plan import SamplingPlan
from fairseq_mtmoe.multitask.sampling.schedule import Schedule
from tests.helpers.draws import by_task, counts, same, times_drawn

HEATED = Schedule("temperature", 1.5, heating_coefficient=3, heating_epochs=6)
OF_13, OF_37 = (replace(HEATED, virtual_epoch_size=size) for size in (13, 37))
SCHEDULES = [
    *(OF_37, Schedule("concat"), Schedule("uniform-then-natural", natural_from_epoch=5)),
    *(Schedule(method, virtual_epoch_size=37) for method in ("uniform", "uncertainty")),
]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_any_epoch_can_be_drawn_alone(schedule):
    plan = partial(SamplingPlan, [[100, 90], [30], [7, 5, 3]], schedule, 1)
    in_order = plan()
    draws = [in_order.draw(epoch) for epoch in range(1, 12)]
    assert all(same(draw, plan().draw(epoch)) for epoch, draw in enumerate(draws, 1))
    assert same(in_order.draw(3), draws[2]) and same(in_order.draw(11), draws[10])


def test_a_task_passes_through_all_its_sentences_before_one_comes_again():
    for schedule in (OF_13, Schedule(virtual_epoch_size=13)):
        plan = SamplingPlan([[40], [9]], schedule, 1)
        draws = [plan.draw(epoch) for epoch in range(1, 60)]
        for last in (1, 2, 7, 20, 59):
            times = times_drawn(draws[:last], plan.sizes)
            assert max(map(np.ptp, times)) <= 1
        assert min(drawn.min() for drawn in times) > 5


def test_uniform_then_natural_has_epochs_of_one_size_and_draws_all_before_one_again():
    sizes = (70, 30, 1)
    plan = SamplingPlan([[size] for size in sizes], Schedule("uniform-then-natural", natural_from_epoch=3), 1)
    draws = [plan.draw(epoch) for epoch in range(1, 12)]
    assert max(map(np.ptp, times_drawn(draws, sizes))) <= 1
    for epoch, draw in enumerate(draws, 1):
        assert len(draw) == sum(sizes)
        expected = sizes if epoch >= 3 else [sum(sizes) / len(sizes)] * len(sizes)
        np.testing.assert_allclose(counts(draw), expected, atol=1)


@pytest.mark.parametrize("options", [{}, {"virtual_epoch_size": 33}, {"virtual_data_size": 250}])
def test_candidates_are_equally_many_of_each_task_and_an_epoch_trains_on_as_many(options):
    plan = SamplingPlan([[100], [30], [1]], Schedule("uncertainty", **options), 1)
    seen = [np.zeros(size, dtype=int) for size in plan.sizes]
    size = next(iter(options.values()), 100)
    for epoch in range(1, 4):
        draw = plan.draw(epoch)
        assert counts(draw) == [size] * 3
        for task, times in enumerate(seen):
            indices, examples = draw.sequence(task)
            assert [draw.numbering.locate(int(index)) for index in indices] == [(task, n) for n in examples.tolist()]
            for start in range(0, size, 7):  # a task that is used up begins again, and not before
                np.add.at(times, examples[start : start + 7], 1)
                assert np.ptp(times) <= 1
    assert seen[0].sum() == seen[2].sum() == 3 * size


def test_an_epochs_size_is_fairseqs_and_stays_while_shares_follow_the_temperature():
    plan = SamplingPlan([[10_000], [1000]], HEATED, 1)
    draws = [plan.draw(epoch) for epoch in (1, 4, 7, 20)]
    expected = default_virtual_size_func([range(10_000), range(1000)], HEATED.probabilities_at(1, (10_000, 1000)))
    assert [len(draw) for draw in draws] == [len(draws[0])] * 4 and abs(len(draws[0]) - expected) <= 1
    low = [counts(draw)[1] for draw in draws]
    assert low[0] < low[1] < low[2] and abs(int(low[2]) - int(low[3])) <= 1
    # A given size of a pass is the epoch's, unless every sentence is taken.
    for schedule, size in ((HEATED, 333), (Schedule("concat"), 150)):
        assert len(SamplingPlan([[100], [50]], replace(schedule, virtual_data_size=333), 1).draw(1)) == size
    assert counts(SamplingPlan([[100], [50]], Schedule(sampling_weights=(0, 1)), 1).draw(1)) == [0, 225]


def test_shards_take_turns_and_ratios_come_from_all_of_them():
    plan = SamplingPlan([[60, 60, 10], [20]], Schedule("concat"), 1)
    draws = [plan.draw(epoch) for epoch in range(1, 7)]
    assert [draw.shards for draw in draws] == [(0, 0), (1, 0), (2, 0)] * 2
    assert [counts(draw) for draw in draws[:3]] == [[60, 20], [60, 20], [10, 20]]
    np.testing.assert_allclose(plan.probabilities(1), [130 / 150, 20 / 150])


def test_virtual_epochs_pass_through_a_shard_before_the_next():
    plan = SamplingPlan([[60, 30], [30, 15]], Schedule(virtual_epoch_size=25), 1)
    draws = [plan.draw(epoch) for epoch in range(1, 9)]
    assert [draw.shards[0] for draw in draws] == [0, 0, 0, 0, 1, 1, 0, 0]
    assert min(map(min, times_drawn(draws[:4], (60, 30)))) == 1  # 100 draws: those beyond the pass begin the next one
    assert max(map(max, times_drawn(draws[:4] + draws[6:], (60, 30)))) == 2


def test_the_cost_does_not_depend_on_the_datas_size():
    draw = SamplingPlan([[10**13], [10**12]], replace(HEATED, virtual_epoch_size=1000), 1).draw(200)
    assert len(draw) == 1000 and max(map(max, by_task(draw))) < 10**13
