"""The training dataset: an epoch has the examples that the sampling plan draws."""

import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from fairseq.data import FairseqDataset

from fairseq_mtmoe.multitask.mixtures.candidates import (
    INDEX,
    LENGTH,
    batches_of_ranks,
    candidate_batch,
)
from fairseq_mtmoe.multitask.mixtures.dataset import (
    Batch,
    BatchLimits,
    Collate,
    Item,
    MixtureDataset,
    batches_of,
    limits_of,
)
from fairseq_mtmoe.multitask.sampling.candidates import ranked
from fairseq_mtmoe.multitask.sampling.order import Order, order_by_length
from fairseq_mtmoe.multitask.sampling.permutation import derive_key
from fairseq_mtmoe.multitask.sampling.plan import SamplingPlan
from fairseq_mtmoe.multitask.sampling.saved_plans import changes, restored_plan, saved_plan

logger = logging.getLogger(__name__)

# From the tasks' current shards to their datasets.
Load = Callable[[Sequence[int]], list[FairseqDataset]]
# From an example and a seed to the altered example.
Alter = Callable[[dict[str, Any], int], dict[str, Any]]

PADDING = "padding"  # key in a training batch: number of padding positions and of all positions


class TrainingMixture(MixtureDataset):
    """The examples or candidates of an epoch, from the shards that `load` returns.

    Plan, epoch and the number of updates before it determine them.
    `alter` changes each example by a seed that depends on its index, so that any process makes
    the same. Batches are made by the lengths before that.
    """

    def __init__(
        self,
        load: Load,
        plan: SamplingPlan,
        task_ids: Sequence[int],
        collate: Collate,
        epoch: int = 1,
        updates: int = 0,
        dropout_draws: Sequence[int] = (),
        alter: Alter | None = None,
    ) -> None:
        super().__init__(task_ids, collate)
        self.dropout_draws = list(dropout_draws) or [0] * len(self.task_ids)
        self._load: Load | None = load
        self.plan = plan
        self._alter = alter
        self.updates = updates  # before the next epoch that is drawn
        plan.begin(updates)
        self.epoch = 0
        self.set_epoch(epoch)

    def set_epoch(self, epoch: int) -> None:
        """Draw an epoch and load its shards."""
        if epoch == self.epoch:
            return
        self.draw = self.plan.draw(epoch, self.updates)
        self.batch_counts: list[int] = []  # per part of the epoch; empty before batches are made
        self.updates_of_epoch = 0  # in all these batches
        assert self._load is not None
        self.choose(self._load(self.draw.shards), self.draw.numbering)
        self.draws_candidates = self.plan.draws_candidates(epoch)
        starts = zip(self.plan.shard_sizes, self.draw.shards, strict=True)
        self._shard_starts = [sum(sizes[:shard]) for sizes, shard in starts]
        self._alter_key = self.plan.alter_key(epoch)
        self.epoch = epoch

    def saved_draws(self, epoch: int) -> dict[str, Any]:
        """Return the plan's state at an epoch, for checkpoints."""
        return saved_plan(self.plan, epoch)

    def resume(self, state: Mapping[str, Any], has_begun: bool) -> bool:
        """Resume from a checkpoint's position; log changes."""
        epoch = state["epoch"]
        before = restored_plan(state["sampling"])
        goes_on = self.plan.follow(before, has_begun, self.updates)
        for change in changes(before, self.plan):
            logger.warning(f"from epoch {self.plan.epoch + (goes_on and has_begun)} on: {change}")
        self.epoch = 0
        self.set_epoch(self.plan.epoch)
        if not goes_on:
            logger.warning(
                f"the data has changed since the checkpoint: the rest of epoch {epoch} is skipped"
            )
        return goes_on

    def __len__(self) -> int:
        return len(self.draw)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for dataloader workers, which never draw an epoch."""
        return {**self.__dict__, "_load": None, "plan": None}

    can_reuse_epoch_itr_across_epochs = False  # another epoch has other examples

    def __getitem__(self, index: int) -> Item:
        """Return task and example.

        A candidate also has its length, and its number over all shards of its task.
        """
        task, example = super().__getitem__(index)
        if self._alter is not None:
            example = self._alter(example, derive_key(self._alter_key, int(index)))
        if not self.draws_candidates:
            return task, example
        number = self._shard_starts[task] + self.numbering.locate(int(index))[1]
        return task, {**example, INDEX: number, LENGTH: self.num_tokens(index)}

    def collater(self, items: Sequence[Item]) -> Batch:
        """Return a batch of examples, or of candidates to choose from."""
        if items and self.draws_candidates:
            return candidate_batch(self.chosen_batch, items, self.dropout_draws)
        return self.chosen_batch(items)

    def chosen_batch(self, items: Sequence[Item]) -> Batch:
        """Return the training batch of chosen candidates."""
        return with_padding(super().collater(items))

    def epoch_batches(
        self, max_sizes: Any, limits: BatchLimits, per_update: int = 1
    ) -> tuple[list[np.ndarray], np.ndarray]:
        """Return the epoch's batches, part after part, and examples that are too long."""
        if self.draws_candidates:
            indices, longest, too_long = ranked(self.draw, self._sizes, limits_of(max_sizes))
            logger.info(f"epoch {self.epoch} draws {len(self)} candidates, as many from each task")
            parts = [batches_of_ranks(indices, longest, limits)]
        else:
            cut_parts = self._cut_parts(max_sizes, limits, per_update)
            orders, parts = map(list, zip(*cut_parts, strict=True))
            counts = np.sum([order.counts for order in orders], axis=0).tolist()
            each = dict(zip(self.plan.names, counts, strict=True))
            within = ""
            if len(parts) > 1:
                within = f"; the temperature rises within it, in {len(parts)} parts"
            logger.info(
                f"epoch {self.epoch} draws {len(self)} examples, from each task {each}{within}"
            )
            too_long = np.concatenate([order.too_long for order in orders])
        self.batch_counts = list(map(len, parts))
        self.updates_of_epoch = -(-sum(self.batch_counts) // per_update)
        return list(itertools.chain.from_iterable(parts)), too_long

    def batch_by_size(self, indices: np.ndarray, *limits: Any) -> list[np.ndarray]:
        """Return batches of these examples or candidates, as `epoch_batches` does."""
        if not self.draws_candidates:
            return super().batch_by_size(indices, *limits)
        tasks, _ = self.numbering.locate_all(indices)
        by_task = [indices[tasks == task] for task in range(len(self.task_ids))]
        longest = list(map(self.num_tokens_vec, by_task))
        return batches_of_ranks(by_task, longest, BatchLimits(*limits))

    @property
    def _sizes(self) -> list[np.ndarray]:
        """Return the lengths of each task's examples, (n, S)."""
        return [dataset.sizes for dataset in self.datasets]

    def _cut_parts(
        self, max_sizes: Any, limits: BatchLimits, per_update: int
    ) -> list[tuple[Order, list[np.ndarray]]]:
        """Return order and batches of each part.

        The size of a part follows from the updates of the part before.
        """
        plan = self.plan
        epoch = self.epoch

        def cut(part: int | None) -> tuple[Order, list[np.ndarray]]:
            key = plan.order_key(epoch, part or 0)
            draw = plan.draw(epoch, part=part)
            order = order_by_length(draw, self._sizes, key, limits_of(max_sizes))
            return order, batches_of(order.indices.astype(np.int64), order.longest_V, limits)

        size = len(self)
        drawn_parts = plan.go_to(epoch).parts
        if drawn_parts:
            return list(map(cut, range(len(drawn_parts))))
        if plan.rises_within(epoch):
            size = plan.part_size(epoch, size, len(cut(None)[1]), per_update)
        parts: list[tuple[Order, list[np.ndarray]]] = []
        is_last = False
        batches = 0
        while not is_last:
            is_last = plan.add_part(epoch, size, batches // per_update)
            parts.append(cut(len(parts)))
            batches += len(parts[-1][1])
            size = plan.part_size(epoch, plan.parts(epoch)[-1].size, len(parts[-1][1]), per_update)
        self.draw = plan.draw(epoch)
        self.choose(self.datasets, self.draw.numbering)
        return parts


def with_padding(batch: Batch) -> Batch:
    """Return the batch with `PADDING` for sources and text targets.

    It is counted on the CPU, without GPU synchronisation.
    """
    if "net_input" in batch:
        inputs = batch["net_input"]
        tokens = int(batch["ntokens"])
        positions: int = inputs["src_tokens"].numel()
        # With sources, `ntokens` counts targets, which are as long as `prev_output_tokens`.
        if "src_lengths" in inputs:
            tokens += int(inputs["src_lengths"].sum())
            positions += inputs["prev_output_tokens"].numel()
        batch[PADDING] = (positions - tokens, positions)
    return batch
