"""Candidates of steps: equally many of every task, of which the model chooses what it trains on.

CA-MTL, algorithm 1: a step draws b examples of each of T tasks and trains on b of the b·T. Candidates come in *ranks*:
the first of every task, then the second, and so on. A step takes as many ranks as its limits of sentences and tokens
allow, where the longest of each rank counts. Within a window tasks' shuffled sequences are sorted by length.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fairseq_mtmoe.data.sampling.draw import Draw
from fairseq_mtmoe.data.sampling.order import Lengths, Runs, batch_ends
from fairseq_mtmoe.data.sampling.permutation import Words

WINDOW = 1024  # ranks that are sorted by length: some ten steps or more


@dataclass(frozen=True)
class Ranks:
    """The candidates of an epoch, R ranks of them."""

    indices: tuple[Words, ...]  # of each task's, in order, (R,) or fewer where some were too long
    longest_R: NDArray[np.int64]  # the greatest length of a side of a rank's candidates
    too_long: Words  # indices of examples that were left out

    def batches(
        self, max_tokens: int | None = None, max_sentences: int | None = None, multiple: int = 1
    ) -> list[Words]:
        """The indices of each step's candidates, task after task; limits as of `batch_ends`, of a step's ranks."""
        runs = Runs(self.longest_R[np.newaxis], np.ones_like(self.longest_R))
        ends = batch_ends(runs, max_tokens, max_sentences, multiple).tolist()
        steps = itertools.pairwise([0, *ends])
        return [np.concatenate([task[start:end] for task in self.indices]) for start, end in steps]


def ranked(draw: Draw, lengths: Sequence[Lengths], limits: Sequence[float] | None = None) -> Ranks:
    """The candidates of a draw; `lengths` and `limits` as of `order_by_length`."""
    kept, longest, too_long = [], [], []
    for task, sizes in enumerate(lengths):
        indices, examples = draw.sequence(task)
        sides_ES = sizes[examples]
        outside = np.zeros(len(indices), bool) if limits is None else (sides_ES > np.asarray(limits)).any(axis=1)
        too_long.append(indices[outside])
        indices, sides_ES = indices[~outside], sides_ES[~outside]
        order = _by_length_in_windows(sides_ES, len(sizes))
        kept.append(indices[order])
        longest.append(sides_ES[order].max(axis=1))
    longest_R = np.zeros(max(map(len, longest)), dtype=np.int64)
    for of_task in longest:
        np.maximum(longest_R[: len(of_task)], of_task, out=longest_R[: len(of_task)])
    return Ranks(tuple(kept), longest_R, np.concatenate(too_long))


def _by_length_in_windows(sides_ES: Lengths, size: int) -> NDArray[np.int64]:
    """An order of a task's candidates: within each window by the first side, then the next; longer, then shorter again.

    No more than the task's `size` examples are sorted together: an example would stand beside itself.
    """
    position = np.arange(len(sides_ES))
    within, parts = position % WINDOW, -(-WINDOW // max(size, 1))
    part = position // WINDOW * parts + within * parts // WINDOW
    turned_SE = np.where(part % 2, -sides_ES.T, sides_ES.T)  # so that a step over a part's end is of like lengths
    order: NDArray[np.int64] = np.lexsort((*turned_SE[::-1], part))
    return order


def most_uncertain(
    entropy_C: NDArray[np.float64], most_C: NDArray[np.float64], task_C: NDArray[np.int64], count: int
) -> NDArray[np.int64]:
    """The numbers of the `count` most uncertain candidates, ascending; all, if there are no more.

    By `U_i = H_i / (Ĥ · H'_t)`, with Ĥ the greatest of the tasks' mean entropies; 0 where that is 0. Of equally
    uncertain ones tasks take turns. What is not finite counts as most uncertain: the training step deals with it.

    Args:
        entropy_C: H_i of each candidate, at least 0.
        most_C: H'_t, an undecided model's entropy.
        task_C: the number of each candidate's task.
    """
    sizes = np.bincount(task_C)
    norm_C = (np.bincount(task_C, entropy_C) / np.maximum(sizes, 1)).max(initial=0.0) * most_C
    with np.errstate(invalid="ignore"):
        uncertainty_C = np.divide(entropy_C, norm_C, out=np.zeros_like(norm_C), where=norm_C != 0)
    uncertainty_C = np.nan_to_num(uncertainty_C, nan=np.inf)
    by_task = task_C.argsort(kind="stable")
    turn_C = np.empty_like(task_C)
    turn_C[by_task] = np.arange(len(task_C)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    order = np.lexsort((task_C, turn_C, -uncertainty_C))
    return np.sort(order[:count])
