"""The draw of an epoch, described by a few numbers and computed block by block.

An index identifies a drawn example without a table. Each task, or all tasks if they are drawn as one, has a range of
indices that holds its examples once for each pass that the epoch touches.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairseq_mtmoe.data.sampling.permutation import Words, derive_key, items_at, positions_of, word_type

BLOCK = 1 << 17  # examples computed together; they fit into the processor's cache


class Numbering:
    """Mapping from indices to examples.

    Args:
        sizes: (L,) examples of each task.
        groups: number of tasks in each range of indices; each part of an epoch has these ranges.
        passes: number of passes that each range holds.
    """

    def __init__(self, sizes: Sequence[int], groups: Sequence[int], passes: Sequence[int]) -> None:
        self.task_starts = [0, *np.cumsum(sizes).tolist()]
        self.group_starts = [0, *np.cumsum(groups).tolist()]
        bounds = [self.task_starts[task] for task in self.group_starts]
        parts = len(passes) // len(groups)
        self.firsts, self.sizes = bounds[:-1] * parts, np.diff(bounds).tolist() * parts
        ranges = [size * times for size, times in zip(self.sizes, passes, strict=True)]
        self.starts = [0, *np.cumsum(ranges).tolist()]

    def __len__(self) -> int:
        return int(self.starts[-1])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Numbering) and vars(self) == vars(other)

    def tasks(self, group: int) -> range:
        """Return the numbers of a range's tasks."""
        group %= len(self.group_starts) - 1
        return range(self.group_starts[group], self.group_starts[group + 1])

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

    def locate_all(self, indices: NDArray[np.integer]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return tasks and examples' numbers (V,) of many indices."""
        indices = indices.astype(np.int64)
        groups = np.searchsorted(self.starts, indices, side="right") - 1
        items = (indices - np.array(self.starts)[groups]) % np.array(self.sizes)[groups] + np.array(self.firsts)[groups]
        tasks = np.searchsorted(self.task_starts, items, side="right") - 1
        return tasks, items - np.array(self.task_starts)[tasks]


@dataclass(frozen=True)
class Stretch:
    """Consecutive positions in passes over a range's examples: a part of one pass, or whole passes."""

    group: int  # number of the range
    first: int  # number of the first pass in the range
    size: int  # examples in a pass
    start: int  # first position in its pass
    count: int  # number of positions
    key: int  # key of the first pass's permutation; in whole passes the order does not matter

    @property
    def blocks(self) -> list[Block]:
        """Return the stretch divided into blocks."""
        total = self.size if self._searches else self.count
        return [Block(self, low, min(low + BLOCK, total)) for low in range(0, total, BLOCK)]

    @property
    def ascends(self) -> bool:
        """Return whether a block's examples are sorted by number."""
        return self._searches or self.count == self.size

    @property
    def _searches(self) -> bool:
        # Computing every example's position costs less than gathering half of them in random order.
        return self.count < self.size <= 2 * self.count

    def items(self, low: int, high: int) -> Words:
        """Return a block's examples, numbered from the first pass on."""
        if self.count >= self.size:
            return np.arange(low, high, dtype=word_type(self.count))
        if not self._searches:
            return items_at(self.start + low, high - low, self.size, self.key)
        positions = positions_of(low, high - low, self.size, self.key)
        positions -= positions.dtype.type(self.start)  # positions before the start wrap to large numbers
        found: Words = np.flatnonzero(positions < self.count).astype(positions.dtype) + positions.dtype.type(low)
        return found


class Block(NamedTuple):
    """A part of a stretch, bounded by positions, or by examples whose positions are computed."""

    stretch: Stretch
    low: int
    high: int


@dataclass(frozen=True)
class Draw:
    """The examples of one epoch."""

    shards: tuple[int, ...]  # each task's current shard
    numbering: Numbering
    stretches: tuple[Stretch, ...]

    def __len__(self) -> int:
        return sum(stretch.count for stretch in self.stretches)

    @property
    def blocks(self) -> list[Block]:
        """Return the blocks of all stretches."""
        return [block for stretch in self.stretches for block in stretch.blocks]

    def sequence(self, group: int) -> tuple[Words, Words]:
        """Return indices (E,) and numbers of a range's examples in their task's order; each stretch is one pass."""
        numbering = self.numbering
        stretches = [stretch for stretch in self.stretches if stretch.group == group]
        items = np.concatenate([items_at(one.start, one.count, one.size, one.key) for one in stretches])
        starts = [numbering.starts[group] + stretch.first * stretch.size for stretch in stretches]
        indices: Words = items.astype(numbering.index_type)
        indices += np.repeat(np.array(starts, indices.dtype), [stretch.count for stretch in stretches])
        return indices, items

    def by_task(self, block: Block) -> tuple[Words, list[tuple[int, Words]]]:
        """Return the indices (V,) of a block's examples, and each task with its examples in this order."""
        stretch, numbering = block.stretch, self.numbering
        items = stretch.items(block.low, block.high)
        examples = items if stretch.count <= stretch.size else items % items.dtype.type(stretch.size)
        first, tasks = numbering.firsts[stretch.group], numbering.tasks(stretch.group)
        starts = [start - first for start in numbering.task_starts[tasks.start : tasks.stop + 1]]
        if len(tasks) > 1 and not stretch.ascends:
            owners = np.searchsorted(np.array(starts[1:-1], examples.dtype), examples, side="right")
            order = owners.astype(np.uint16).argsort(kind="stable")
            items, examples = items[order], examples[order]
            cuts = np.cumsum([0, *np.bincount(owners, minlength=len(tasks))])
        else:
            cuts = np.searchsorted(examples, starts) if len(tasks) > 1 else np.array([0, len(examples)])
        parts = [
            (task, examples[low:high] - examples.dtype.type(start) if start else examples[low:high])
            for task, start, low, high in zip(tasks, starts, cuts[:-1], cuts[1:], strict=False)
        ]
        indices: Words = items.astype(numbering.index_type)
        indices += indices.dtype.type(numbering.starts[stretch.group] + stretch.first * stretch.size)
        return indices, parts


def stratified_share(strata_E: NDArray[np.integer], share: float, seed: int) -> NDArray[np.int64]:
    """Draw `share · E` of E examples with about this share of each stratum, at least one; return sorted numbers.

    Draws with one seed are nested: a smaller share is a subset of a larger one. `strata_E` has numbers from 0 on.
    """
    assert 0 < share <= 1 and len(strata_E)
    order = items_at(0, len(strata_E), len(strata_E), derive_key(seed)).astype(np.int64)
    drawn = strata_E[order]
    sizes = np.bincount(drawn)
    ranks = np.empty(len(drawn), dtype=np.int64)  # of each example within its stratum
    ranks[drawn.argsort(kind="stable")] = np.arange(len(drawn)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    # All strata are used up at the same pace; the first example of each comes before all others.
    paced = order[(ranks / sizes[drawn]).argsort(kind="stable")]
    count = max(round(share * len(strata_E)), np.count_nonzero(sizes))
    return np.sort(paced[:count])
