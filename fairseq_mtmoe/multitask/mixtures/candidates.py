"""A step's candidates as one fairseq sample: batches for the forward passes, and the examples to choose from."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairseq_mtmoe.multitask.mixtures.dataset import Batch, Item, batches_of

INDEX, LENGTH = (
    "index",
    "length",
)  # keys of an example: number in its task, tokens of its longest side
CANDIDATES, PASSES, DROPOUT_PASS = "of_candidates", "passes", "dropout_pass"  # keys of the sample
TASKS_AT_ONCE = (
    8  # a pass of 8 batches without gradients takes less memory than a training step of one
)


@dataclass(frozen=True)
class Candidates:
    """A step's candidates, each example once; tensors are kept as arrays, as workers send each tensor by a file."""

    items: tuple[Item, ...]  # each with its task's number and an `INDEX`
    count: int  # number to choose
    tensors: frozenset[str] = frozenset()  # keys of an example's tensors

    def examples(self, numbers: Iterable[int]) -> list[Item]:
        """Return the examples with these numbers, with tensors again."""
        chosen = [self.items[number] for number in numbers]
        return [
            (
                task,
                {
                    **example,
                    **{
                        name: torch.from_numpy(example[name])
                        for name in self.tensors & example.keys()
                    },
                },
            )
            for task, example in chosen
        ]

    @property
    def task_C(self) -> np.ndarray:
        """Return the task's number of each candidate, (C,)."""
        return np.array([task for task, _ in self.items])


def batches_of_ranks(
    indices: Sequence[np.ndarray], longest: Sequence[np.ndarray], *limits: Any
) -> list[np.ndarray]:
    """Return the indices of each step's candidates, task after task; limits as in `batches_of`, for ranks.

    indices, longest: each task's candidates by rank, and their greatest lengths; a task may lack
    the last ranks.
    """
    longest_R = np.zeros(max(map(len, longest)), dtype=np.int64)
    for lengths in longest:
        np.maximum(longest_R[: len(lengths)], lengths, out=longest_R[: len(lengths)])
    steps = batches_of(np.arange(len(longest_R)), longest_R, *limits)
    return [np.concatenate([task[step[0] : step[-1] + 1] for task in indices]) for step in steps]


def candidate_batch(
    collate: Callable[[Sequence[Item]], Batch], items: Sequence[Item], dropout_draws: Sequence[int]
) -> Batch:
    """Return a sample with a step's `CANDIDATES`, each example once, and the batches of their forward passes.

    `PASSES` are the batches without dropout, shortest examples first. Their number is fixed,
    because experts in other processes take part in each. `DROPOUT_PASS` repeats the examples of
    tasks with `dropout_draws`, once per draw. A batch's `id` has the candidates' numbers; an
    empty batch gets the first candidate.
    """
    count = max(Counter(task for task, _ in items).values())
    once = [*{(task, example[INDEX]): (task, example) for task, example in items}.values()]
    numbered = [(task, {**example, "id": number}) for number, (task, example) in enumerate(once)]
    by_length = sorted(numbered, key=lambda item: item[1][LENGTH])
    tensors = {
        name for _, example in once for name, value in example.items() if isinstance(value, Tensor)
    }
    arrays = (
        {name: example[name].numpy() for name in tensors & example.keys()} for _, example in once
    )
    packed = tuple(
        (task, {**example, **each}) for (task, example), each in zip(once, arrays, strict=True)
    )
    sample: Batch = {CANDIDATES: Candidates(packed, count, frozenset(tensors))}
    if not all(dropout_draws):
        plain = [item for item in by_length if not dropout_draws[item[0]]]
        passes = -(-list(dropout_draws).count(0) // TASKS_AT_ONCE)
        parts = np.array_split(np.arange(len(plain)), passes)
        sample[PASSES] = [
            collate([plain[number] for number in part] or numbered[:1]) for part in parts
        ]
    if any(dropout_draws):
        drawn = [item for item in by_length for _ in range(dropout_draws[item[0]])]
        sample[DROPOUT_PASS] = collate(drawn or numbered[:1])
    return sample
