"""The data of a benchmark's tasks, split by split, for the mixtures."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from fairseq.data import FairseqDataset

from fairseq_mtmoe.data.nlu.cache import tokenized_split
from fairseq_mtmoe.data.nlu.dataset import dataset_of
from fairseq_mtmoe.data.nlu.few_shot import few_of
from fairseq_mtmoe.data.nlu.table import Kind, TaskRow
from fairseq_mtmoe.data.nlu.tokenizing import TextTokenizer

logger = logging.getLogger(__name__)


class BenchmarkLoader:
    """Loads a split of all tasks: a `TaskLoader` of one shard for each set.

    Attributes:
        split: `train`, `valid` or `test`.
        keys: the names of its sets: a task's own, or with a further set's, as in `mnli/mismatched`.
        rows: of the tasks.
        tasks: the task of each set.

    Args:
        root: the data directory.
        rows: of the tasks, by their names.
        split: of the data.
        tokenizer: of the encoder.
        cache: the folder of tokenized splits.
    """

    kind = "task"

    def __init__(
        self,
        root: Path,
        rows: Mapping[str, TaskRow],
        split: str,
        tokenizer: TextTokenizer,
        cache: Path,
    ) -> None:
        self.split = split
        self.rows = rows
        sets = [(name, row, key) for name, row in rows.items() for key in row.sets(split)]
        self.keys = [key.replace(split, name, 1) for name, _, key in sets]
        self.tasks = [name for name, _, _ in sets]
        self.sets = [tokenized_split(root, name, row, key, tokenizer, cache) for name, row, key in sets]

    def keep(self, shares: Mapping[str, float], seed: int) -> None:
        """Keep a share of each task's examples alone (see `few_of`), and say how many there are.

        Args:
            shares: of each task.
            seed: names the draw.
        """
        counts = []
        for n, (task, split) in enumerate(zip(self.tasks, self.sets, strict=True)):
            if shares[task] < 1:
                self.sets[n] = few_of(split, shares[task], seed, self.rows[task].kind is Kind.regression)
            left = f" of {len(split)}" if shares[task] < 1 else ""
            counts.append(f"{self.keys[n]} {len(self.sets[n])}{left}")
        logger.info(f"[{self.split}] examples: {', '.join(counts)}")

    @property
    def shard_sizes(self) -> list[tuple[int]]:
        """The number of examples of each set; of a span task they are windows."""
        return [(split.num_rows,) for split in self.sets]

    def load(self, shards: Sequence[int] | None = None) -> list[FairseqDataset]:
        """Each set's dataset."""
        return [dataset_of(split) for split in self.sets]
