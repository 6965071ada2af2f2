"""Validation and test data: every sentence once, each batch of one language pair.

So a batch's loss is its pair's, and needs no splitting up inside the model or the criterion.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from fairseq.data import FairseqDataset

from fairseq_mtmoe.data.multilingual_batches import Item, PairsDataset


class EvaluationPairs(PairsDataset):
    """All sentences of several pairs. A batch says in `pair` which one it is of, by its name ("en-de")."""

    def __init__(self, names: Sequence[str], datasets: list[FairseqDataset], tasks: Sequence[int]) -> None:
        super().__init__(tasks)
        self.names = list(names)
        counts = np.array([len(dataset) for dataset in datasets])
        self.choose(datasets, counts, np.concatenate([np.arange(count) for count in counts]))

    def collater(self, items: Sequence[Item], pad_to_length: dict[str, int] | None = None) -> dict[str, Any]:
        """A batch of fairseq's form, with the ids of each sentence and the name of their pair."""
        batch = super().collater(items, pad_to_length)
        if items:
            batch["pair"] = self.names[items[0][0]]
        return batch

    def ordered_indices(self) -> np.ndarray:
        """By pair, then source, then target length."""
        source, target = self.sizes.T
        return np.lexsort((target, source, self.pairs_of(np.arange(len(self)))))

    def batch_by_size(self, indices: np.ndarray, *args: Any, **kwargs: Any) -> list[np.ndarray]:
        """Batches of one pair each; the arguments are fairseq's."""
        pairs = self.pairs_of(indices)
        starts = np.flatnonzero(np.diff(pairs)) + 1
        return [
            batch
            for of_one_pair in np.split(indices, starts)
            for batch in super(EvaluationPairs, self).batch_by_size(of_one_pair, *args, **kwargs)
        ]
