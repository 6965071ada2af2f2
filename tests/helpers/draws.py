"""What a draw of an epoch consists of."""

from collections.abc import Iterable, Sequence

import numpy as np

from fairseq_mtmoe.multitask.sampling.draw import Draw
from fairseq_mtmoe.multitask.sampling.plan import SamplingPlan
from fairseq_mtmoe.multitask.sampling.schedule import Schedule


def second_epoch(sizes, method: str = "temperature", **options) -> Draw:
    """The second epoch of tasks of these sizes, one shard each."""
    return SamplingPlan([[size] for size in sizes], Schedule(method, 3.0, **options), 5).draw(2)


def lengths_of(sizes, longest: int = 30, sides: int = 2) -> list[np.ndarray]:
    """Random lengths of each task's examples, (n, S)."""
    generator = np.random.default_rng(1)
    return [generator.integers(1, longest, (size, sides), dtype=np.int32) for size in sizes]


def by_task(draw: Draw) -> list[list[int]]:
    found: list[list[int]] = [[] for _ in draw.shards]
    for _, tasks, sentences in draw.blocks():
        for task, sentence in zip(tasks.tolist(), sentences.tolist(), strict=True):
            found[task].append(sentence)
    return [sorted(sentences) for sentences in found]


def counts(draw: Draw) -> list[int]:
    return [len(sentences) for sentences in by_task(draw)]


def same(first: Draw, second: Draw) -> bool:
    return first.shards == second.shards and by_task(first) == by_task(second)


def times_drawn(draws: Iterable[Draw], sizes: Sequence[int]) -> list[np.ndarray]:
    """How often each example of each task was drawn."""
    times = [np.zeros(size, dtype=int) for size in sizes]
    for draw in draws:
        for found, examples in zip(times, by_task(draw), strict=True):
            np.add.at(found, examples, 1)
    return times
