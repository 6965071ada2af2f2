"""Validation and test data: every sentence once, each batch of one language pair.

So a batch's loss is its pair's, and needs no splitting up inside the model or the criterion.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from fairseq.data import FairseqDataset

from fairseq_mtmoe.data.mixtures.dataset import Item, PairsDataset
from fairseq_mtmoe.data.sampling import Numbering


class EvaluationPairs(PairsDataset):
    """All sentences of several pairs. A batch says in `pair` which one it is of, by its name ("en-de")."""

    def __init__(self, names: Sequence[str], datasets: list[FairseqDataset], tasks: Sequence[int]) -> None:
        super().__init__(tasks)
        self.names = list(names)
        self.choose(datasets, Numbering([len(dataset) for dataset in datasets], [len(datasets)], [1]))

    def collater(self, items: Sequence[Item], pad_to_length: dict[str, int] | None = None) -> dict[str, Any]:
        """A batch of fairseq's form, with the ids of each sentence and the name of their pair."""
        batch = super().collater(items, pad_to_length)
        if items:
            batch["pair"] = self.names[items[0][0]]
        return batch

    def ordered_indices(self) -> np.ndarray:
        """By pair, then source, then target length."""
        indices = np.arange(len(self))
        source, target = self.sizes_of(indices).T
        return np.lexsort((target, source, self.numbering.locate_all(indices)[0]))

    def batch_by_size(self, indices: np.ndarray, *args: Any, **kwargs: Any) -> list[np.ndarray]:
        """Batches of one pair each; the arguments are fairseq's."""
        pairs, _ = self.numbering.locate_all(indices)
        starts = np.flatnonzero(np.diff(pairs)) + 1
        return [
            batch
            for of_one_pair in np.split(indices, starts)
            for batch in super(EvaluationPairs, self).batch_by_size(of_one_pair, *args, **kwargs)
        ]
