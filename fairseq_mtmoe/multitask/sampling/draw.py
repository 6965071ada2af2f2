"""The draw of an epoch, described by a few numbers.

An index identifies a drawn example without a table. Each task, or all tasks if they are drawn as
one, has a range of indices that holds its examples once for each pass that the epoch touches.
"""

from __future__ import annotations

import itertools
import operator
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fairseq_mtmoe.multitask.sampling.permutation import Words, derive_key, items_at, word_type

BLOCK = 1 << 17  # examples located together


class Numbering:
    """Mapping from indices to examples.

    Args:
        sizes: (L,) examples of each task.
        groups: number of tasks in each range of indices; each part of an epoch has these ranges.
        passes: number of passes that each range holds.
    """

    def __init__(self, sizes: Sequence[int], groups: Sequence[int], passes: Sequence[int]) -> None:
        self.task_starts = [0, *np.cumsum(sizes).tolist()]
        bounds = [self.task_starts[task] for task in (0, *np.cumsum(groups))]
        parts = len(passes) // len(groups)
        self.firsts = bounds[:-1] * parts
        self.sizes = np.diff(bounds).tolist() * parts
        ranges = map(operator.mul, self.sizes, passes)
        self.starts = list(itertools.accumulate(ranges, initial=0))

    def __len__(self) -> int:
        return int(self.starts[-1])

    @property
    def index_type(self) -> type[np.uint32] | type[np.uint64]:
        """Return the integer type that holds all indices."""
        return word_type(len(self))

    def locate(self, index: int) -> tuple[int, int]:
        """Return an index's task, and the example's number in the task."""
        group = bisect_right(self.starts, index) - 1
        item = self.firsts[group] + (index - self.starts[group]) % self.sizes[group]
        task = bisect_right(self.task_starts, item) - 1
        return task, item - self.task_starts[task]

    def locate_all(
        self, indices: NDArray[np.integer]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return tasks and examples' numbers (V,) of many indices."""
        indices = indices.astype(np.int64)
        groups = np.searchsorted(self.starts, indices, side="right") - 1
        offsets = (indices - np.array(self.starts)[groups]) % np.array(self.sizes)[groups]
        items = offsets + np.array(self.firsts)[groups]
        tasks = np.searchsorted(self.task_starts, items, side="right") - 1
        return tasks, items - np.array(self.task_starts)[tasks]


@dataclass(frozen=True)
class Stretch:
    """Consecutive positions in passes over a range's examples.

    They are a part of one pass, or whole passes.
    """

    group: int  # number of the range
    first: int  # number of the first pass in the range
    size: int  # examples in a pass
    start: int  # first position in its pass
    count: int  # number of positions
    key: int  # key of the first pass's permutation; in whole passes the order does not matter

    def items(self) -> Words:
        """Return the examples, numbered from the first pass on.

        More than half a pass comes in ascending order.
        """
        if self.count >= self.size:
            return np.arange(self.count, dtype=word_type(self.count))
        return np.sort(self.in_order()) if self.size <= 2 * self.count else self.in_order()

    def in_order(self) -> Words:
        """Return the examples of a part of one pass in the pass's order."""
        return items_at(self.start, self.count, self.size, self.key)


@dataclass(frozen=True)
class Draw:
    """The examples of one epoch."""

    shards: tuple[int, ...]  # each task's current shard
    numbering: Numbering
    stretches: tuple[Stretch, ...]

    def __len__(self) -> int:
        return sum(stretch.count for stretch in self.stretches)

    def blocks(self) -> Iterator[tuple[Words, NDArray[np.int64], NDArray[np.int64]]]:
        """Yield indices, tasks and examples' numbers (V,) of a block, sorted by task."""
        for stretch in self.stretches:
            items = stretch.items()
            for start in range(0, len(items), BLOCK):
                indices = self._indices(stretch, items[start : start + BLOCK])
                tasks, examples = self.numbering.locate_all(indices)
                order = tasks.argsort(kind="stable")
                yield indices[order], tasks[order], examples[order]

    def sequence(self, group: int) -> tuple[Words, Words]:
        """Return indices (E,) and numbers of a range's examples in their task's order.

        Each stretch is one pass.
        """
        stretches = [stretch for stretch in self.stretches if stretch.group == group]
        items = list(map(Stretch.in_order, stretches))
        indices = list(map(self._indices, stretches, items))
        return np.concatenate(indices), np.concatenate(items)

    def _indices(self, stretch: Stretch, items: Words) -> Words:
        """Return the indices of a stretch's items."""
        first = self.numbering.starts[stretch.group] + stretch.first * stretch.size
        indices: Words = items.astype(self.numbering.index_type)
        indices += indices.dtype.type(first)
        return indices


def numbers_within(groups_V: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return each element's number among those of its group.

    `groups_V` has numbers from 0 on.
    """
    sizes = np.bincount(groups_V)
    numbers_V = np.empty(len(groups_V), dtype=np.int64)
    starts_V = np.repeat(np.cumsum(sizes) - sizes, sizes)
    numbers_V[groups_V.argsort(kind="stable")] = np.arange(len(groups_V)) - starts_V
    return numbers_V


def stratified_share(strata_E: NDArray[np.integer], share: float, seed: int) -> NDArray[np.int64]:
    """Return the sorted numbers of `share · E` of E examples, drawn by stratum.

    Each stratum has about this share, and at least one example. Draws with one seed are nested: a
    smaller share is a subset of a larger one. `strata_E` has numbers from 0 on.
    """
    assert 0 < share <= 1 and len(strata_E)
    order = items_at(0, len(strata_E), len(strata_E), derive_key(seed)).astype(np.int64)
    drawn = strata_E[order]
    sizes = np.bincount(drawn)
    # All strata are used up at the same pace; the first example of each comes before all others.
    paced = order[(numbers_within(drawn) / sizes[drawn]).argsort(kind="stable")]
    count = max(round(share * len(strata_E)), np.count_nonzero(sizes))
    return np.sort(paced[:count])
