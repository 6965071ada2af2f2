"""Resuming with sampling options that differ from the checkpoint's, with other data, and from version 0.1.0."""

import itertools
import logging
from collections import Counter

import pytest

from tests.helpers.digits import digit_task, make_digit_corpus
from tests.helpers.refused import refused

HEATED = dict(
    sampling_method="temperature", sampling_temperature=1.5, heating_coefficient=3.0, max_epoch=4, virtual_epoch_size=60
)
SIZES = {0: 200, 1: 50, 2: 20}


def iterator(data, epoch=1, updates=0, processes=1, rank=0, update_freq=1, **options):
    task = digit_task(data, **{**HEATED, "update_freq": [update_freq], **options})
    task.num_updates = updates
    task.load_dataset("train", epoch=epoch)
    return task.get_batch_iterator(
        task.dataset("train"), max_tokens=60, seed=options.get("seed", 1), epoch=epoch, num_shards=processes,
        shard_id=rank,
    )  # fmt: skip


def sentences(batch):
    return list(zip(batch["task_ids"].tolist(), batch["id"].tolist(), strict=True))


def go(batches, count):
    """The next batches, over the ends of epochs: the sentences of each, as (task, number) pairs."""
    found = []
    while len(found) < count:
        found += map(sentences, itertools.islice(batches.next_epoch_itr(), count - len(found)))
    return found


def interrupted(data, count, **options):
    """An iterator after so many batches, and these."""
    batches = iterator(data, **options)
    return batches, go(batches, count)


def rest_of(batches):
    """What is left of the epoch under way."""
    return [sentences(batch) for batch in batches._cur_epoch_itr]


def resume(state, data, **options):
    resumed = iterator(data, state["epoch"], **options)
    resumed.load_state_dict(state)
    return resumed


def spread(batches):
    times = Counter(itertools.chain.from_iterable(batches))
    every = {task: [times[task, number] for number in range(size)] for task, size in SIZES.items()}
    return max(max(counts) - min(counts) for counts in every.values())


CHANGED = {
    "a longer run": {"max_epoch": 9},
    "temperature": {"sampling_temperature": 5.0},
    "seed": {"seed": 2},
    "virtual data": {"virtual_data_size": 100, "virtual_epoch_size": None},
    "weights": {"sampling_weights": "{'main:en-aa': 1, 'main:en-bb': 1, 'main:en-cc': 2}", "heating_coefficient": 0.0},
    "by update": {"heating_updates": 40},
}


@pytest.mark.parametrize("what", CHANGED)
def test_changed_options_end_the_epoch_as_it_began_and_draw_nothing_again(what, digits, caplog):
    before, seen = interrupted(digits, 16)
    state, rest = before.state_dict(), rest_of(before)
    assert state["epoch"] == 2 and rest
    with caplog.at_level(logging.WARNING):
        resumed = resume(state, digits, **CHANGED[what])
    later = go(resumed, 80) + rest_of(resumed)
    assert later[: len(rest)] == rest
    assert spread(seen + later) == 1
    said = [message for message in caplog.messages if message.startswith("from epoch")]
    assert bool(said) == (what not in ("a longer run", "seed"))
    if what == "temperature":
        assert said == ["from epoch 3 on: sampling_temperature was 1.5 and is 5.0"]
        assert resumed.dataset.plan.temperature(40) == pytest.approx(10.0)
    if what == "a longer run":
        assert resumed.dataset.plan.temperature(5) == resumed.dataset.plan.temperature(9) == pytest.approx(3.0)


@pytest.mark.parametrize("processes", [1, 3])
def test_heating_by_update_resumes_with_other_processes_and_another_update_freq(processes, digits):
    by_update = {"heating_updates": 50}
    before, _ = interrupted(digits, 1, **by_update)
    before.dataset.updates = 20  # where the second epoch will begin
    go(before, 15)
    state, expected = before.state_dict(), rest_of(before)
    assert (state["epoch"], state["sampling"]["place"]["update"]) == (2, 20)
    shares = [
        [sentences(batch) for batch in resume(
            state, digits, updates=31, processes=processes, rank=rank, update_freq=4, **by_update
        ).next_epoch_itr() if batch]
        for rank in range(processes)
    ]  # fmt: skip
    assert [batch for row in itertools.zip_longest(*shares) for batch in row if batch] == expected


LONG = {"heating_updates": 8, "virtual_epoch_size": None}


def test_the_temperature_and_the_draw_move_within_a_long_epoch(digits):
    batches = iterator(digits, update_freq=2, **LONG)
    drawn, plan = go(batches, len(batches.frozen_batches)), batches.dataset.plan
    updates = [part.update for part in plan.parts(1)]
    assert updates[0] == 0 and updates[-1] == 8 and max(after - at for at, after in itertools.pairwise(updates)) <= 2
    temperatures = [plan.temperature(1, part=number) for number in range(len(updates))]
    assert temperatures == pytest.approx([1.5 * (1 + 3 * update / 8) ** 0.5 for update in updates])
    counts, whole = batches.dataset.batch_counts, [sentence for batch in drawn for sentence in batch]
    last = [sentence for batch in drawn[-counts[-1] :] for sentence in batch]
    first = whole[: -len(last)]
    assert len(whole) == len(batches.dataset) == len(iterator(digits, virtual_epoch_size=None).dataset)
    share, hot = [sum(task == 0 for task, _ in of) / len(of) for of in (first, last)], plan.probabilities(1, part=-1)[0]
    assert share[0] > hot + 0.03 and share[1] == pytest.approx(hot, abs=0.02)
    assert spread(drawn) == 1
    two = [iterator(digits, processes=2, rank=rank, **LONG) for rank in range(2)]
    assert [batch for row in zip(*(go(one, len(drawn) // 2) for one in two), strict=True) for batch in row] == drawn[
        : len(drawn) // 2 * 2
    ]


@pytest.mark.parametrize("processes", [1, 3])
def test_a_long_epoch_goes_on_with_the_parts_that_it_began_with(processes, digits):
    before, _ = interrupted(digits, 6, **LONG)
    state, expected = before.state_dict(), rest_of(before)
    others = {"updates": 6, "processes": processes, "update_freq": 2, **LONG}
    resumed = [resume(state, digits, rank=rank, **others) for rank in range(processes)]
    found = [[sentences(batch) for batch in one.next_epoch_itr() if batch] for one in resumed]
    assert [batch for row in itertools.zip_longest(*found) for batch in row if batch] == expected
    del state["sampling"]["place"]["parts"]  # a checkpoint of before 0.1.12 has drawn its epoch in one
    assert len(resume(state, digits, updates=6, **LONG).dataset.batch_counts) <= 1


def test_an_epoch_that_has_not_begun_takes_the_updates_made_so_far(digits):
    by_update = {"heating_updates": 50}
    first, _ = interrupted(digits, len(iterator(digits, **by_update).frozen_batches), **by_update)
    state = first.state_dict()
    assert (state["epoch"], state["batches_in_epoch"]) == (2, 0)
    second = resume(state, digits, updates=50, **by_update)
    assert second.dataset.plan.temperature(2) == pytest.approx(3.0)
    first.dataset.updates = 50
    assert go(second, 10) == go(first, 10)


def test_other_data_leaves_the_rest_of_the_epoch_out(digits, tmp_path, caplog):
    more = make_digit_corpus(tmp_path / "more", train=240, valid=21, test=13)
    state = interrupted(digits, 16)[0].state_dict()
    with caplog.at_level(logging.WARNING):
        resumed = resume(state, more)
    assert "the data has changed since the checkpoint: the rest of epoch 2 is left out" in caplog.messages
    assert (resumed.next_epoch_idx, resumed.iterations_in_epoch) == (3, 0)
    assert go(resumed, 1) and resumed.epoch == 3


def of_0_1_0(state):
    return {key: value for key, value in state.items() if key not in ("seed", "sampling")}


def test_a_checkpoint_of_0_1_0_goes_on_where_it_was(digits):
    before, _ = interrupted(digits, 16)
    state, expected = before.state_dict(), rest_of(before)
    resumed = resume(of_0_1_0(state), digits)
    assert go(resumed, len(expected)) == expected and go(resumed, 30) == go(before, 30)
    # epochs that are longer than a pass stay, which version 0.1.0 began
    state = of_0_1_0(interrupted(digits, 3, virtual_epoch_size=500)[0].state_dict())
    for _ in range(2):
        resumed = resume(state, digits, virtual_epoch_size=500)
        assert len(resumed.dataset) == 500 > len(iterator(digits, virtual_epoch_size=500).dataset)
        go(resumed, 2)
        state = resumed.state_dict()


OPTIONS_OF_0_1_0 = {**HEATED, "heating_epochs": None, "sampling_weights": None, "sampling_weights_from_file": None,
                    "virtual_data_size": None, "seed": 1}  # fmt: skip


def test_a_longer_run_of_0_1_0_does_not_cool_down_either(digits):
    before, seen = interrupted(digits, 16)
    state, rest = {**of_0_1_0(before.state_dict()), "options": OPTIONS_OF_0_1_0}, rest_of(before)
    resumed = resume(state, digits, max_epoch=9)
    later = go(resumed, 80) + rest_of(resumed)
    assert later[: len(rest)] == rest
    assert resumed.dataset.plan.temperature(9) == pytest.approx(3.0)
    assert spread(seen + later) == 1
    state["options"] = {**OPTIONS_OF_0_1_0, "sampling_weights": "open('x')", "max_epoch": "x"}
    assert resume(state, digits).dataset.plan.temperature(4) == pytest.approx(1.5 * (1 + 3 * 3 / 4) ** 0.5)


def test_a_damaged_memory_is_refused(digits):
    state = interrupted(digits, 3)[0].state_dict()
    with refused("--reset-dataloader", first=False):
        resume({**state, "sampling": {"names": []}}, digits)
