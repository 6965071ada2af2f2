"""Candidates of steps: equally many of every task, about equally long, and never more than a step can train on."""

import itertools

import numpy as np
import pytest

from fairseq_mtmoe.data.sampling import SamplingPlan, Schedule, ranked
from fairseq_mtmoe.data.sampling import candidates as module

SIZES = (300, 70, 5, 1)


def a_draw(sizes=SIZES, epoch=2, **options):
    return SamplingPlan([[size] for size in sizes], Schedule("uncertainty"), 5, **options).draw(epoch)


def lengths_of(sizes=SIZES, longest=30, sides=2):
    generator = np.random.default_rng(1)
    return [generator.integers(1, longest, (size, sides), dtype=np.int32) for size in sizes]


def by_task(draw, batch):
    tasks, examples = draw.numbering.locate_all(batch)
    return [examples[tasks == task].tolist() for task in range(len(draw.shards))]


@pytest.fixture(params=[1024, 64, 7])
def window(request, monkeypatch):
    monkeypatch.setattr(module, "WINDOW", request.param)
    return request.param


@pytest.mark.usefixtures("window")
@pytest.mark.parametrize(("sides", "size"), [(1, None), (2, 97)])
def test_a_step_has_as_many_candidates_of_every_task_as_it_trains_on(sides, size):
    draw = a_draw(virtual_epoch_size=size)
    batches = ranked(draw, lengths_of(sides=sides)).batches(max_sentences=16)
    total = size or 300
    assert [len(batch) for batch in batches] == [4 * 16] * (total // 16) + [4 * (total % 16)]
    for batch in batches:
        assert {len(examples) for examples in by_task(draw, batch)} == {len(batch) // 4}
    indices = np.concatenate(batches)
    drawn = np.concatenate([draw.sequence(task)[0] for task in range(4)])
    assert len(indices) == 4 * total and sorted(indices) == sorted(drawn)


@pytest.mark.usefixtures("window")
def test_whichever_candidates_train_they_are_no_more_tokens_than_the_limit():
    draw, lengths = a_draw((300, 200)), lengths_of((300, 200))
    batches = ranked(draw, lengths).batches(max_tokens=200, max_sentences=7)
    sizes = []
    for batch in batches:
        parts = by_task(draw, batch)
        longest = max(int(of_task[examples].max()) for of_task, examples in zip(lengths, parts, strict=True))
        sizes.append(len(parts[0]))
        assert {len(part) for part in parts} == {sizes[-1]} and sizes[-1] * longest <= 200
    assert sum(sizes) == 300 and max(sizes) == 7 > min(sizes[:-1]) > 1


def test_a_steps_candidates_are_about_equally_long():
    sizes = (5000, 2000, 1500)
    draw, lengths = a_draw(sizes), lengths_of(sizes, longest=100, sides=1)

    def spread(batches):
        found = []
        for batch in batches:
            parts = zip(lengths, by_task(draw, batch), strict=True)
            found.append(np.concatenate([of_task[examples, 0] for of_task, examples in parts]).std())
        return np.mean(found)

    sequences = [draw.sequence(task)[0] for task in range(3)]
    unsorted = [np.concatenate([part[n : n + 32] for part in sequences]) for n in range(0, 4960, 32)]
    assert spread(ranked(draw, lengths).batches(max_sentences=32)) < 0.15 * spread(unsorted)


@pytest.mark.usefixtures("window")
def test_examples_that_are_too_long_are_left_out():
    draw, lengths = a_draw(), lengths_of()
    lengths[2][:] = 99  # a task without any that is not
    ranks = ranked(draw, lengths, (25, 20))
    batches = ranks.batches(max_sentences=16)
    found = [
        list(itertools.chain.from_iterable(parts)) for parts in zip(*(by_task(draw, b) for b in batches), strict=True)
    ]
    for task, (of_task, examples) in enumerate(zip(lengths, found, strict=True)):
        kept = [n for n in draw.sequence(task)[1].tolist() if (of_task[n] <= (25, 20)).all()]
        assert sorted(examples) == sorted(kept)
    assert not found[2] and len(ranks.too_long) + sum(map(len, found)) == 4 * 300
