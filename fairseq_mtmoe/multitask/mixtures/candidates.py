"""A step's candidates as one fairseq sample.

It has batches for the forward passes, and the examples to choose from.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairseq_mtmoe.multitask.mixtures.dataset import Batch, Item, batches_of

# Keys of an example: its number in its task, and the tokens of its longest side.
INDEX = "index"
LENGTH = "length"
# Keys of the sample.
CANDIDATES = "of_candidates"
PASSES = "passes"
DROPOUT_PASS = "dropout_pass"
# A pass of 8 batches without gradients takes less memory than a training step of one.
TASKS_AT_ONCE = 8


@dataclass(frozen=True)
class Candidates:
    """A step's candidates, each example once.

    Tensors are kept as arrays, because workers send each tensor by a file.
    """

    items: tuple[Item, ...]  # each with its task's number and an `INDEX`
    count: int  # number to choose
    tensors: frozenset[str] = frozenset()  # keys of an example's tensors

    def examples(self, numbers: Iterable[int]) -> list[Item]:
        """Return the examples with these numbers, with tensors again."""
        chosen = []
        for number in numbers:
            task, example = self.items[number]
            names = self.tensors & example.keys()
            tensors = {name: torch.from_numpy(example[name]) for name in names}
            chosen.append((task, {**example, **tensors}))
        return chosen

    @property
    def task_C(self) -> np.ndarray:
        """Return the task's number of each candidate, (C,)."""
        return np.array([task for task, _ in self.items])


def batches_of_ranks(
    indices: Sequence[np.ndarray], longest: Sequence[np.ndarray], *limits: Any
) -> list[np.ndarray]:
    """Return the indices of each step's candidates, task after task.

    indices, longest: each task's candidates by rank, and their greatest lengths; a task may lack
    the last ranks. limits: as in `batches_of`, for ranks.
    """
    longest_R = np.zeros(max(map(len, longest)), dtype=np.int64)
    for lengths in longest:
        np.maximum(longest_R[: len(lengths)], lengths, out=longest_R[: len(lengths)])
    steps = batches_of(np.arange(len(longest_R)), longest_R, *limits)
    batches = []
    for step in steps:
        ranks = slice(step[0], step[-1] + 1)
        batches.append(np.concatenate([candidates[ranks] for candidates in indices]))
    return batches


def candidate_batch(
    collate: Callable[[Sequence[Item]], Batch], items: Sequence[Item], dropout_draws: Sequence[int]
) -> Batch:
    """Return a sample with a step's candidates and the batches of their passes.

    `CANDIDATES` has each example once. `PASSES` are the batches without dropout, shortest
    examples first. Their number is fixed, because experts in other processes take part in each.
    `DROPOUT_PASS` repeats the examples of tasks with `dropout_draws`, once per draw. A batch's
    `id` has the candidates' numbers; an empty batch gets the first candidate.
    """
    count = max(Counter(task for task, _ in items).values())
    once = list({(task, example[INDEX]): (task, example) for task, example in items}.values())
    numbered = [(task, {**example, "id": number}) for number, (task, example) in enumerate(once)]
    by_length = sorted(numbered, key=lambda item: item[1][LENGTH])
    tensors = {
        name for _, example in once for name, value in example.items() if isinstance(value, Tensor)
    }
    packed = []
    for task, example in once:
        arrays = {name: example[name].numpy() for name in tensors & example.keys()}
        packed.append((task, {**example, **arrays}))
    sample: Batch = {CANDIDATES: Candidates(tuple(packed), count, frozenset(tensors))}
    if not all(dropout_draws):
        plain = [item for item in by_length if not dropout_draws[item[0]]]
        passes = -(-list(dropout_draws).count(0) // TASKS_AT_ONCE)
        parts = np.array_split(np.arange(len(plain)), passes)
        sample[PASSES] = []
        for part in parts:
            chosen = [plain[number] for number in part]
            sample[PASSES].append(collate(chosen or numbered[:1]))
    if any(dropout_draws):
        drawn = [item for item in by_length for _ in range(dropout_draws[item[0]])]
        sample[DROPOUT_PASS] = collate(drawn or numbered[:1])
    return sample
