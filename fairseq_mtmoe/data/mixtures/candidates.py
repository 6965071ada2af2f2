"""A step's candidates as one sample of fairseq's form: what goes through the model, and what to make the batch of."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from fairseq_mtmoe.data.mixtures.dataset import Batch, Item

INDEX, LENGTH = "index", "length"  # of an example: its number among all of its task, and tokens of its longest side
CANDIDATES, PASSES, DROPOUT_PASS = "of_candidates", "passes", "dropout_pass"  # parts of such a sample
TASKS_AT_ONCE = 8  # a pass without gradients of so many batches takes less memory than a training step of one


@dataclass(frozen=True)
class Candidates:
    """A step's candidates, each example once, with arrays for tensors, of which a worker would send each by a file."""

    items: tuple[Item, ...]  # each with its task's number and an `INDEX`
    count: int  # of them that are to be chosen
    tensors: frozenset[str] = frozenset()  # the names of an example's values that are tensors

    @classmethod
    def of(cls, items: Iterable[Item], count: int) -> Self:
        items = list(items)
        tensors = {name for _, example in items for name, value in example.items() if isinstance(value, Tensor)}
        plain = [
            (task, {**example, **{n: example[n].numpy() for n in tensors & example.keys()}}) for task, example in items
        ]
        return cls(tuple(plain), count, frozenset(tensors))

    def examples(self, numbers: Iterable[int]) -> list[Item]:
        """Those of these numbers, as they were."""
        chosen = [self.items[number] for number in numbers]
        return [
            (task, {**example, **{name: torch.from_numpy(example[name]) for name in self.tensors & example.keys()}})
            for task, example in chosen
        ]

    @property
    def task_C(self) -> np.ndarray:
        return np.array([task for task, _ in self.items])


def candidate_batch(
    collate: Callable[[Sequence[Item]], Batch], items: Sequence[Item], dropout_draws: Sequence[int]
) -> Batch:
    """A sample with the `CANDIDATES` of a step, each example once, and the batches in which they go through the model.

    `PASSES` are those without dropout, shortest examples first: always as many of them, because experts in other
    processes wait for each. `DROPOUT_PASS` has the examples of tasks with `dropout_draws`, so often. A batch's `id` are
    the numbers of its candidates; an empty one is of the first candidate.
    """
    count = max(Counter(task for task, _ in items).values())
    once = [*{(task, example[INDEX]): (task, example) for task, example in items}.values()]
    numbered = [(task, {**example, "id": number}) for number, (task, example) in enumerate(once)]
    by_length = sorted(numbered, key=lambda item: item[1][LENGTH])
    sample: Batch = {CANDIDATES: Candidates.of(once, count)}
    if not all(dropout_draws):
        plain = [item for item in by_length if not dropout_draws[item[0]]]
        passes = -(-list(dropout_draws).count(0) // TASKS_AT_ONCE)
        parts = np.array_split(np.arange(len(plain)), passes)
        sample[PASSES] = [collate([plain[number] for number in part] or numbered[:1]) for part in parts]
    if any(dropout_draws):
        drawn = [item for item in by_length for _ in range(dropout_draws[item[0]])]
        sample[DROPOUT_PASS] = collate(drawn or numbered[:1])
    return sample
