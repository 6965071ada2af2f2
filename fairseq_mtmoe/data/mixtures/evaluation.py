"""Validation and test data: every example once, each batch of one task.

So a batch's loss is its task's, and needs no splitting up inside the model or the criterion.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from fairseq.data import FairseqDataset

from fairseq_mtmoe.data.mixtures.dataset import Batch, Collate, Item, MixtureDataset
from fairseq_mtmoe.data.sampling import Numbering


class EvaluationMixture(MixtureDataset):
    """All examples of several tasks. A batch says in `task` which one it is of, by its name.

    Args:
        names: of the tasks.
        datasets: of the tasks.
        task_ids, collate: as in `MixtureDataset`.
    """

    def __init__(
        self, names: Sequence[str], datasets: list[FairseqDataset], task_ids: Sequence[int], collate: Collate
    ) -> None:
        super().__init__(task_ids, collate)
        self.names = list(names)
        self.choose(datasets, Numbering([len(dataset) for dataset in datasets], [len(datasets)], [1]))

    def collater(self, items: Sequence[Item], pad_to_length: Mapping[str, int] | None = None) -> Batch:
        """A batch of fairseq's form, with the task id of each example and the name of their task."""
        batch = super().collater(items, pad_to_length)
        if items:
            batch["task"] = self.names[items[0][0]]
        return batch

    def ordered_indices(self) -> np.ndarray:
        """By task, then by the length of the first side, then of the next."""
        indices = np.arange(len(self))
        lengths_SV = self.sizes_of(indices).T
        order_V: np.ndarray = np.lexsort((*lengths_SV[::-1], self.numbering.locate_all(indices)[0]))
        return order_V

    def batch_by_size(self, indices: np.ndarray, *args: Any, **kwargs: Any) -> list[np.ndarray]:
        """Batches of one task each; the arguments are fairseq's."""
        tasks, _ = self.numbering.locate_all(indices)
        starts = np.flatnonzero(np.diff(tasks)) + 1
        return [
            batch
            for of_one_task in np.split(indices, starts)
            for batch in super(EvaluationMixture, self).batch_by_size(of_one_task, *args, **kwargs)
        ]
