"""The data of a benchmark's tasks, split by split, for the mixtures."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

from fairseq.data import FairseqDataset

from fairseq_mtmoe.data.nlu.table import TaskRow

logger = logging.getLogger(__name__)


class Countable(Protocol):
    """A tokenized set."""

    @property
    def num_rows(self) -> int:
        """How many examples a data set of it has."""
        ...

    def __len__(self) -> int:
        """How many are scored."""
        ...


Split = TypeVar("Split", bound=Countable)


class BenchmarkLoader(Generic[Split]):
    """Loads a split of all tasks: a `TaskLoader` of one shard for each set.

    Attributes:
        split: `train`, `valid` or `test`.
        keys: the names of its sets: a task's own, or with a further set's, as in `mnli/mismatched`.
        rows: of the tasks.
        tasks: the task of each set.
        sets: what each consists of.
    """

    kind = "task"

    def __init__(
        self,
        rows: Mapping[str, TaskRow],
        split: str,
        read: Callable[[str, TaskRow, str], Split],
        dataset_of: Callable[[Split], FairseqDataset],
    ) -> None:
        self.split = split
        self.rows = rows
        self._dataset_of = dataset_of
        sets = [(name, row, key) for name, row in rows.items() for key in row.sets(split)]
        self.keys = [key.replace(split, name, 1) for name, _, key in sets]
        self.tasks = [name for name, _, _ in sets]
        self.sets = [read(*one) for one in sets]

    def keep(self, few_of: Callable[[str, Split], Split]) -> None:
        """Keep some of each set's examples alone, and say how many there are."""
        counts = []
        for n, (task, split) in enumerate(zip(self.tasks, self.sets, strict=True)):
            self.sets[n] = few_of(task, split)
            left = "" if self.sets[n] is split else f" of {len(split)}"
            counts.append(f"{self.keys[n]} {len(self.sets[n])}{left}")
        logger.info(f"[{self.split}] examples: {', '.join(counts)}")

    @property
    def shard_sizes(self) -> list[tuple[int]]:
        """The number of examples of each set; of a span task they are windows."""
        return [(split.num_rows,) for split in self.sets]

    def load(self, shards: Sequence[int] | None = None) -> list[FairseqDataset]:
        """Each set's dataset."""
        return [self._dataset_of(split) for split in self.sets]
