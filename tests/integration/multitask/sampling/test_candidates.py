"""Candidates of steps: equally many of every task, about equally long; and the most uncertain, by algorithm 1."""

import math

import numpy as np
import pytest

from fairseq_mtmoe.multitask.mixtures.candidates import batches_of_ranks
from fairseq_mtmoe.multitask.mixtures.dataset import BatchLimits
from fairseq_mtmoe.multitask.sampling import candidates as module
from fairseq_mtmoe.multitask.sampling.candidates import most_uncertain, ranked
from tests.helpers.draws import lengths_of, second_epoch

SIZES = (300, 70, 5, 1)


def by_task(draw, batch):
    tasks, examples = draw.numbering.locate_all(batch)
    return [examples[tasks == task].tolist() for task in range(len(draw.shards))]


@pytest.fixture(params=[1024, 7])
def window(request, monkeypatch):
    monkeypatch.setattr(module, "WINDOW", request.param)


@pytest.mark.usefixtures("window")
@pytest.mark.parametrize(("sides", "size"), [(1, None), (2, 97)])
def test_a_step_has_as_many_candidates_of_every_task_as_it_trains_on(sides, size):
    draw = second_epoch(SIZES, "uncertainty", virtual_epoch_size=size)
    batches = batches_of_ranks(*ranked(draw, lengths_of(SIZES, sides=sides))[:2], BatchLimits(None, 16))
    total = size or 300
    assert [len(batch) for batch in batches] == [4 * 16] * (total // 16) + [4 * (total % 16)]
    for batch in batches:
        assert {len(examples) for examples in by_task(draw, batch)} == {len(batch) // 4}
    indices = np.concatenate(batches)
    drawn = np.concatenate([draw.sequence(task)[0] for task in range(4)])
    assert len(indices) == 4 * total and sorted(indices) == sorted(drawn)


@pytest.mark.usefixtures("window")
def test_whichever_candidates_train_they_are_no_more_tokens_than_the_limit():
    draw, lengths = second_epoch((300, 200), "uncertainty"), lengths_of((300, 200))
    batches = batches_of_ranks(*ranked(draw, lengths)[:2], BatchLimits(200, 7))
    sizes = []
    for batch in batches:
        parts = by_task(draw, batch)
        longest = max(int(of_task[examples].max()) for of_task, examples in zip(lengths, parts, strict=True))
        sizes.append(len(parts[0]))
        assert {len(part) for part in parts} == {sizes[-1]} and sizes[-1] * longest <= 200
    assert sum(sizes) == 300 and max(sizes) == 7 > min(sizes[:-1]) > 1


def test_a_steps_candidates_are_about_equally_long():
    draw, lengths = second_epoch((5000, 2000), "uncertainty"), lengths_of((5000, 2000), longest=100, sides=1)
    steps = batches_of_ranks(*ranked(draw, lengths)[:2], BatchLimits(None, 32))
    located = (zip(lengths, by_task(draw, step), strict=True) for step in steps)
    spreads = [np.concatenate([of_task[numbers, 0] for of_task, numbers in tasks]).std() for tasks in located]
    assert np.mean(spreads) < 0.15 * np.concatenate(lengths).std()


@pytest.mark.usefixtures("window")
def test_examples_that_are_too_long_are_left_out():
    draw, lengths = second_epoch(SIZES, "uncertainty"), lengths_of(SIZES)
    lengths[2][:] = 99  # a task without any that is not
    *ranks, too_long = ranked(draw, lengths, (25, 20))
    batches = batches_of_ranks(*ranks, BatchLimits(None, 16))
    found = by_task(draw, np.concatenate(batches))
    for task, (of_task, examples) in enumerate(zip(lengths, found, strict=True)):
        kept = [n for n in draw.sequence(task)[1].tolist() if (of_task[n] <= (25, 20)).all()]
        assert sorted(examples) == sorted(kept)
    assert not found[2] and len(too_long) + sum(map(len, found)) == 4 * 300


def algorithm_1(entropies, classes, b):
    """The numbers of the b chosen, where task t has the entropies `entropies[t]` and `classes[t]` classes."""
    greatest = max(sum(H_t) / len(H_t) for H_t in entropies)
    tasks = zip(entropies, classes, strict=True)
    candidates = [H_ti / (math.log(C_t) * greatest) for H_t, C_t in tasks for H_ti in H_t]
    return sorted(sorted(range(len(candidates)), key=candidates.__getitem__, reverse=True)[:b])


def chosen(entropies, classes, count):
    counts = [len(H_t) for H_t in entropies]
    most_C, task_C = np.repeat(np.log(classes), counts), np.repeat(np.arange(len(counts)), counts)
    return most_uncertain(np.concatenate(entropies), most_C, task_C, count).tolist()


@pytest.mark.parametrize("seed", range(4))
def test_they_are_those_of_algorithm_1(seed):
    random = np.random.default_rng(seed)
    b, classes = int(random.integers(1, 9)), random.integers(2, 7, random.integers(1, 6)).tolist()
    entropies = [(random.random(b) * math.log(C)).tolist() for C in classes]
    assert chosen(entropies, classes, b) == algorithm_1(entropies, classes, b)


def test_edges_of_algorithm_1():
    for equal in (0.0, math.nan):  # tasks take turns
        assert chosen([[equal] * 4] * 3, [2, 2, 2], 4) == [0, 1, 4, 8]
    assert chosen([[0.6], [0.1, 0.2, 0.3]], [2, 2], 3) == [0, 2, 3]  # what one lacks is others'
    assert chosen([[0.6], []], [2, 2], 3) == [0]
    assert chosen([[0.1, 0.2], [0.0, 0.0]], [2, 1], 2) == [0, 1]
