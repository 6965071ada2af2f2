"""Resuming with sampling options that differ from the checkpoint's and with other data."""

import itertools
import logging
from collections import Counter

import pytest

from fairseq_mtmoe.multitask.mixtures.candidates import CANDIDATES
from tests.helpers.digits import digit_task, make_digit_corpus

HEATED = {"sampling_method": "temperature", "sampling_temperature": 1.5, "heating_coefficient": 3.0, "max_epoch": 4}
HEATED["virtual_epoch_size"] = 60
SIZES = (200, 50, 20)


def iterator(data, epoch=1, updates=0, processes=1, rank=0, update_freq=1, **options):
    task = digit_task(data, **{**HEATED, "update_freq": [update_freq], **options})
    task.num_updates = updates
    task.load_dataset("train", epoch=epoch)
    sharded = {"seed": options.get("seed", 1), "epoch": epoch, "num_shards": processes, "shard_id": rank}
    return task.get_batch_iterator(task.dataset("train"), max_tokens=60, **sharded)


def sentences(batch):
    return list(zip(batch["task_ids"].tolist(), batch["id"].tolist(), strict=True))


def go(batches, count):
    """The next batches, over the ends of epochs: the sentences of each, as (task, number) pairs."""
    found = []
    while len(found) < count:
        found += map(sentences, itertools.islice(batches.next_epoch_itr(), count - len(found)))
    return found


def interrupted(data, count, **options):
    return (batches := iterator(data, **options)), go(batches, count)


def rest_of(batches):
    """What is left of the epoch under way."""
    return [sentences(batch) for batch in batches._cur_epoch_itr]


def resume(state, data, **options):
    resumed = iterator(data, state["epoch"], **options)
    resumed.load_state_dict(state)
    return resumed


def rest_in(processes, state, data, **options):
    """The same from several resumed processes, in the order of the epoch."""
    resumed = [resume(state, data, processes=processes, rank=rank, **options) for rank in range(processes)]
    shares = [[sentences(batch) for batch in one.next_epoch_itr() if batch] for one in resumed]
    return [batch for row in itertools.zip_longest(*shares) for batch in row if batch]


def spread(batches):
    times = Counter(itertools.chain.from_iterable(batches))
    every = [[times[task, number] for number in range(size)] for task, size in enumerate(SIZES)]
    return max(max(counts) - min(counts) for counts in every)


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
    assert ("from epoch 3 on: " in caplog.text) == (what not in ("a longer run", "seed"))
    if what in ("temperature", "a longer run"):
        assert resumed.dataset.plan.temperature(9) == pytest.approx(10.0 if what == "temperature" else 3.0)


def test_an_epoch_ends_as_it_began_if_the_new_method_draws_the_same_examples_as_candidates(digits):
    options = {"lang_pairs": "en-aa", "heating_coefficient": 0.0}
    before, _ = interrupted(digits, 3, **options)
    state, rest = before.state_dict(), rest_of(before)
    resumed = iterator(digits, state["epoch"], **{**options, "sampling_method": "uncertainty"})
    assert resumed.first_batch and CANDIDATES in resumed.first_batch  # as fairseq's trainer makes it
    resumed.load_state_dict(state)
    assert go(resumed, len(rest)) == rest != []


def test_heating_by_update_resumes_with_other_processes_and_another_update_freq(digits):
    by_update = {"heating_updates": 50}
    before, _ = interrupted(digits, 1, **by_update)
    before.dataset.updates = 20  # where the second epoch will begin
    go(before, 15)
    state, expected = before.state_dict(), rest_of(before)
    assert rest_in(3, state, digits, updates=31, update_freq=4, **by_update) == expected


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
    shares = [sum(task == 0 for task, _ in of) / len(of) for of in (first, last)]
    hot = plan.probabilities(1, part=-1)[0]
    assert shares[0] > hot + 0.03 and shares[1] == pytest.approx(hot, abs=0.02)
    assert spread(drawn) == 1
    both = [interrupted(digits, 3, processes=2, rank=rank, **LONG) for rank in range(2)]
    seen = [batch for row in zip(*(of_one for _, of_one in both), strict=True) for batch in row]
    assert seen + rest_in(3, both[0][0].state_dict(), digits, updates=3, **LONG) == drawn


def test_a_long_epoch_goes_on_with_the_parts_that_it_began_with(digits):
    before, _ = interrupted(digits, 6, **LONG)
    state, expected = before.state_dict(), rest_of(before)
    assert rest_in(3, state, digits, updates=6, update_freq=2, **LONG) == expected


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
    assert "the rest of epoch 2 is skipped" in caplog.text
    assert (resumed.next_epoch_idx, resumed.iterations_in_epoch) == (3, 0)
    assert go(resumed, 1) and resumed.epoch == 3
