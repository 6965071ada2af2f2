"""A dataset of several tasks, whose batches have the task id of each example.

A task is sampled and validated by its name: a benchmark task, or a language pair. The model gets
each example's *task id*, which several tasks may share: `task_ids` (B,).
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from fairseq.data import FairseqDataset, data_utils

from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.multitask.sampling.draw import Numbering

# The number of a task in the mixture, and an example of its dataset.
Item = tuple[int, dict[str, Any]]
Batch = dict[str, Any]
# Makes a batch in fairseq's form from all tasks' datasets and at least one example.
# Rows may be in any order: `id` (B,) has the `id` of each row's example.
Collate = Callable[[Sequence[FairseqDataset], Sequence[Item]], Batch]


class BatchLimits(NamedTuple):
    """Limits of a batch's size, with the names of fairseq's arguments."""

    max_tokens: int | None = None
    max_sentences: int | None = None
    required_batch_size_multiple: int = 1


def check_fit(longest: int, max_tokens: int | None) -> None:
    """Check that `max_tokens` allows the longest example (else a UserError)."""
    if max_tokens is not None and longest > max_tokens:
        raise UserError(
            "`--max-tokens`, or in validation `--max-tokens-valid`, must be at least "
            f"{longest}, the length of the longest example, but is {max_tokens} instead."
        )


def batches_of(indices: np.ndarray, longest_V: np.ndarray, limits: BatchLimits) -> list[np.ndarray]:
    """Return fairseq's batches, and the examples that it drops.

    fairseq drops the last examples if they are fewer than the required multiple of a batch.

    longest_V: the greatest length of any side of each example.
    """
    if not len(indices):
        return []
    check_fit(int(longest_V.max()), limits.max_tokens)
    batches: list[np.ndarray] = data_utils.batch_by_size(indices, None, longest_V, *limits)
    rest = indices[sum(map(len, batches)) :]
    return [*batches, rest] if len(rest) else list(batches)


def limits_of(max_sizes: Any) -> Any:
    """Return the greatest lengths of examples, one for all sides or one for each.

    None means no limit.
    """
    return np.inf if max_sizes is None else max_sizes


class MixtureDataset(FairseqDataset):
    """Dataset of the examples of several tasks."""

    def __init__(self, task_ids: Sequence[int], collate: Collate) -> None:
        super().__init__()
        self.task_ids = list(task_ids)
        self.collate = collate
        self.datasets: list[FairseqDataset] = []

    def choose(self, datasets: list[FairseqDataset], numbering: Numbering) -> None:
        """Set the datasets, one per task, and the numbering of their examples."""
        self.datasets = datasets
        self.numbering = numbering

    def __len__(self) -> int:
        return len(self.numbering)

    def __getitem__(self, index: int) -> Item:
        task, example = self.numbering.locate(int(index))
        return task, self.datasets[task][example]

    def sizes_of(self, indices: np.ndarray) -> np.ndarray:
        """Return the lengths (V, S) of the examples' sides."""
        tasks, examples = self.numbering.locate_all(indices)
        sizes = np.empty((len(indices), self.datasets[0].sizes.shape[1]), dtype=np.int64)
        for task, dataset in enumerate(self.datasets):
            chosen = tasks == task
            sizes[chosen] = dataset.sizes[examples[chosen]]
        return sizes

    def num_tokens(self, index: int) -> int:
        """Return the length of an example's longest side, in tokens."""
        return max(self.size(index))

    def num_tokens_vec(self, indices: np.ndarray) -> np.ndarray:
        """Return the length of the longest side of each example, (V,)."""
        longest_V: np.ndarray = self.sizes_of(indices).max(axis=1)
        return longest_V

    def size(self, index: int) -> tuple[int, ...]:
        """Return the lengths of an example's sides, in tokens."""
        return tuple(self.sizes_of(np.array([index]))[0].tolist())

    def filter_indices_by_size(
        self, indices: np.ndarray, max_sizes: Any
    ) -> tuple[np.ndarray, list[int]]:
        """Return the indices of examples up to `max_sizes`, and those of longer ones.

        max_sizes: one number for each side, or one for all.
        """
        too_long_V = (self.sizes_of(indices) > limits_of(max_sizes)).any(axis=1)
        return indices[~too_long_V], indices[too_long_V].tolist()

    def batch_by_size(self, indices: np.ndarray, *args: Any, **kwargs: Any) -> list[np.ndarray]:
        """Return batches of the indices, in their order; see `batches_of`."""
        return batches_of(indices, self.num_tokens_vec(indices), BatchLimits(*args, **kwargs))

    def collater(self, items: Sequence[Item]) -> Batch:
        """Return a batch in fairseq's form with `task_ids` (B,)."""
        if not items:
            return {}
        # Collating reorders the examples; their positions in `items`, given as ids, tell the new
        # order.
        indexed: list[Item] = []
        ids = []
        task_ids = []
        for index, (task, example) in enumerate(items):
            indexed.append((task, {**example, "id": index}))
            ids.append(example["id"])
            task_ids.append(self.task_ids[task])
        batch = self.collate(self.datasets, indexed)
        order_B = batch["id"]
        batch["id"] = torch.tensor(ids)[order_B]
        batch["task_ids"] = torch.tensor(task_ids)[order_B]
        return batch


def mixed(batches: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return batches in a fixed order that mixes short and long ones."""
    return [batches[number] for number in np.random.default_rng(0).permutation(len(batches))]


class EvaluationMixture(MixtureDataset):
    """All examples of several tasks, in batches of one task; `task` is its name.

    interleaves: whether one batch of each task comes first, and then each task's share of any
        number of batches, of all lengths, for `--max-valid-steps`.
    """

    interleaves = False

    def __init__(
        self,
        names: Sequence[str],
        datasets: list[FairseqDataset],
        task_ids: Sequence[int],
        collate: Collate,
    ) -> None:
        super().__init__(task_ids, collate)
        self.names = list(names)
        self.choose(datasets, Numbering(list(map(len, datasets)), [len(datasets)], [1]))

    def collater(self, items: Sequence[Item]) -> Batch:
        """Return a batch with the name of its task."""
        batch = super().collater(items)
        if items:
            batch["task"] = self.names[items[0][0]]
        return batch

    def ordered_indices(self) -> np.ndarray:
        """Return all indices sorted by task, then by the length of each side in turn."""
        indices = np.arange(len(self))
        lengths_SV = self.sizes_of(indices).T
        order_V: np.ndarray = np.lexsort((*lengths_SV[::-1], self.numbering.locate_all(indices)[0]))
        return order_V

    def batch_by_size(self, indices: np.ndarray, *args: Any, **kwargs: Any) -> list[np.ndarray]:
        """Return batches of one task each, interleaved if the set is."""
        tasks, _ = self.numbering.locate_all(indices)
        batches: list[np.ndarray] = []
        places: list[float] = []
        for part in np.split(indices, np.flatnonzero(np.diff(tasks)) + 1):
            batches_of_task = super().batch_by_size(part, *args, **kwargs)
            if self.interleaves:
                batches_of_task = mixed(batches_of_task)
            batches += batches_of_task
            # From 0 to 1 in each task: its first batch is among the first of all, the others
            # follow at equal distances.
            places_of_task = np.arange(0.5, len(batches_of_task)) / max(len(batches_of_task), 1)
            places_of_task[:1] = 0
            places += places_of_task.tolist()
        if not self.interleaves:
            return batches
        return [batches[number] for number in np.argsort(places, kind="stable")]
