"""A step's candidates as one fairseq sample.

It has batches for the forward passes, and the examples to choose from.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fairseq_mtmoe.multitask.mixtures.dataset import Batch, BatchLimits, Item, batches_of

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
            example = dict(example)
            for name in self.tensors & example.keys():
                example[name] = torch.from_numpy(example[name])
            chosen.append((task, example))
        return chosen

    @property
    def task_C(self) -> np.ndarray:
        """Return the task's number of each candidate, (C,)."""
        return np.array([task for task, _ in self.items])


def batches_of_ranks(
    indices: Sequence[np.ndarray], longest: Sequence[np.ndarray], limits: BatchLimits
) -> list[np.ndarray]:
    """Return the indices of each step's candidates, task after task.

    indices, longest: each task's candidates by rank, and their greatest lengths; a task may lack
    the last ranks. limits: of ranks.
    """
    longest_R = np.zeros(max(map(len, longest)), dtype=np.int64)
    for lengths in longest:
        np.maximum(longest_R[: len(lengths)], lengths, out=longest_R[: len(lengths)])
    steps = batches_of(np.arange(len(longest_R)), longest_R, limits)
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
    tasks, _ = zip(*items, strict=True)
    once = {(task, example[INDEX]): example for task, example in items}
    numbered: list[Item] = []
    packed: list[Item] = []
    tensors: set[str] = set()
    for number, ((task, _), example) in enumerate(once.items()):
        numbered.append((task, {**example, "id": number}))
        arrays = {}
        for name, value in example.items():
            if isinstance(value, Tensor):
                arrays[name] = value.numpy()
        packed.append((task, {**example, **arrays}))
        tensors.update(arrays)
    count = max(Counter(tasks).values())
    sample: Batch = {CANDIDATES: Candidates(tuple(packed), count, frozenset(tensors))}
    plain: list[Item] = []
    drawn: list[Item] = []
    for item in sorted(numbered, key=lambda item: item[1][LENGTH]):
        draws = dropout_draws[item[0]]
        drawn += [item] * draws
        plain += [item] * (draws == 0)
    if not all(dropout_draws):
        passes = -(-list(dropout_draws).count(0) // TASKS_AT_ONCE)
        sample[PASSES] = []
        for part in np.array_split(np.arange(len(plain)), passes):
            chosen = [plain[number] for number in part]
            sample[PASSES].append(collate(chosen or numbered[:1]))
    if any(dropout_draws):
        sample[DROPOUT_PASS] = collate(drawn or numbered[:1])
    return sample
