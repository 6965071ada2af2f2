"""MT-Uncertainty: which candidates a model is most uncertain of (CA-MTL, equations 4 and 5, algorithm 1)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def uncertainties(
    entropy_C: NDArray[np.float64], most_C: NDArray[np.float64], task_C: NDArray[np.int64]
) -> NDArray[np.float64]:
    """`U_i = H_i / (Ĥ · H'_t)`, with Ĥ the greatest of the tasks' mean entropies; 0 where that is 0.

    Args:
        entropy_C: H_i of each candidate, at least 0.
        most_C: H'_t, what an undecided model's would be; an entropy of which there is no more than 0 is none.
        task_C: the number of each candidate's task.
    """
    means = np.bincount(task_C, entropy_C) / np.maximum(np.bincount(task_C), 1)
    norm_C = means.max(initial=0.0) * most_C
    with np.errstate(invalid="ignore"):  # what is not finite stays so
        uncertainty_C: NDArray[np.float64] = np.divide(entropy_C, norm_C, out=np.zeros_like(norm_C), where=norm_C != 0)
    return uncertainty_C


def most_uncertain(
    entropy_C: NDArray[np.float64], most_C: NDArray[np.float64], task_C: NDArray[np.int64], count: int
) -> NDArray[np.int64]:
    """The numbers of the `count` most uncertain candidates, ascending; all, if there are no more.

    Where they are equally uncertain, as when all entropies are 0, tasks take turns: the first candidates of all tasks
    come before the second ones, and in order of the tasks' numbers. What is not finite counts as most uncertain: the
    training step meets it, and deals with it.
    """
    uncertainty_C = np.nan_to_num(uncertainties(entropy_C, most_C, task_C), nan=np.inf)
    by_task = task_C.argsort(kind="stable")
    sizes = np.bincount(task_C)
    turn_C = np.empty_like(task_C)
    turn_C[by_task] = np.arange(len(task_C)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    order = np.lexsort((task_C, turn_C, -uncertainty_C))
    return np.sort(order[:count])
