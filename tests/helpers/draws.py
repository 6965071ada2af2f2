"""What a draw of an epoch consists of."""

from __future__ import annotations

from fairseq_mtmoe.data.sampling.draw import Draw


def by_task(draw: Draw) -> list[list[int]]:
    """The sentences of each task, sorted."""
    found: list[list[int]] = [[] for _ in draw.shards]
    for block in draw.blocks:
        for task, sentences in draw.by_task(block)[1]:
            found[task] += sentences.tolist()
    return [sorted(sentences) for sentences in found]


def counts(draw: Draw) -> list[int]:
    """How many sentences of each task."""
    return [len(sentences) for sentences in by_task(draw)]


def same(first: Draw, second: Draw) -> bool:
    """Whether two draws are of the same sentences."""
    return first.shards == second.shards and by_task(first) == by_task(second)
