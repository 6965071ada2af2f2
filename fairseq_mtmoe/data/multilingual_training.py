"""The training data: in each epoch the sentences that the sampling plan draws from the language pairs."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np

from fairseq_mtmoe.data.multilingual import PairLoader
from fairseq_mtmoe.data.multilingual_batches import PairsDataset
from fairseq_mtmoe.data.sampling import SamplingPlan

logger = logging.getLogger(__name__)


class TrainingPairs(PairsDataset):
    """The sentences of one epoch; `set_epoch` draws those of another, and loads other shards where it is their turn.

    Everything follows from the plan and the epoch: a resumed run sees the same batches.
    """

    def __init__(
        self, loader: PairLoader, plan: SamplingPlan, tasks: Sequence[int], one_collater: bool, epoch: int = 1
    ) -> None:
        super().__init__(tasks, one_collater)
        self.loader = loader
        self.plan = plan
        self.epoch = 0
        self.set_epoch(epoch)

    def set_epoch(self, epoch: int) -> None:
        """Draw the sentences of an epoch, counted from 1."""
        if epoch == self.epoch:
            return
        draw = self.plan.draw(epoch)
        self.choose(self.loader.load(draw.shards), draw.counts, draw.sentences)
        self.epoch = epoch
        counts = {pair.key: int(count) for pair, count in zip(self.loader.pairs, draw.counts, strict=True)}
        logger.info(f"[{self.loader.split}] epoch {epoch} draws {len(self)} sentences, from each pair {counts}")

    def __getstate__(self) -> dict[str, Any]:
        """What a worker process needs: the epoch's sentences. It never draws others, and the task stays at home."""
        return {**self.__dict__, "loader": None, "plan": None}

    @property
    def can_reuse_epoch_itr_across_epochs(self) -> bool:
        """No: another epoch has other sentences."""
        return False

    def ordered_indices(self) -> np.ndarray:
        """By source, then target length; those of equal lengths in the order of numpy's random state."""
        indices = np.random.permutation(len(self))
        source, target = self.sizes[indices].T
        return indices[np.lexsort((target, source))]
