"""Candidates of training steps: equally many per task; the model chooses.

CA-MTL, algorithm 1: a step draws b examples of each of T tasks and trains on b of the b·T.
Candidates come in *ranks*: the first of every task, then the second, and so on. A step takes as
many ranks as the limits of sentences and tokens allow; the longest candidate of a rank counts.
Within a window, tasks' shuffled sequences are sorted by length.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fairseq_mtmoe.multitask.sampling.draw import Draw, numbers_within
from fairseq_mtmoe.multitask.sampling.order import Lengths, Limits
from fairseq_mtmoe.multitask.sampling.permutation import Words

WINDOW = 1024  # ranks sorted by length together: some ten steps or more


def ranked(
    draw: Draw, lengths: Sequence[Lengths], limits: Limits = np.inf
) -> tuple[list[Words], list[NDArray[np.int64]], Words]:
    """Return each task's candidates by rank, and their greatest lengths.

    The third value has the indices of examples that are too long.
    lengths, limits: as in `order_by_length`.
    """
    kept = []
    longest = []
    too_long = []
    for task, sizes in enumerate(lengths):
        indices, examples = draw.sequence(task)
        sides_ES = sizes[examples]
        outside = (sides_ES > limits).any(axis=1)
        too_long.append(indices[outside])
        indices = indices[~outside]
        sides_ES = sides_ES[~outside]
        order = _by_length_in_windows(sides_ES, len(sizes))
        kept.append(indices[order])
        longest.append(sides_ES[order].max(axis=1))
    return kept, longest, np.concatenate(too_long)


def _by_length_in_windows(sides_ES: Lengths, size: int) -> NDArray[np.int64]:
    """Return an order of a task's candidates, by length within each window.

    Lengths alternately ascend and descend. At most the task's `size` examples are sorted
    together, as an example would otherwise be next to its copy.
    """
    position = np.arange(len(sides_ES))
    within = position % WINDOW
    parts = -(-WINDOW // max(size, 1))
    part = position // WINDOW * parts + within * parts // WINDOW
    # Every other part descends: a step across the end of a part then has similar lengths.
    turned_SE = np.where(part % 2, -sides_ES.T, sides_ES.T)
    order: NDArray[np.int64] = np.lexsort((*turned_SE[::-1], part))
    return order


def most_uncertain(
    entropy_C: NDArray[np.float64],
    most_C: NDArray[np.float64],
    task_C: NDArray[np.int64],
    count: int,
) -> NDArray[np.int64]:
    """Return the sorted numbers of the `count` most uncertain candidates.

    If there are fewer, all are returned.

    Uncertainty is `U_i = H_i / (Ĥ · H'_t)`, with Ĥ the greatest of the tasks' mean entropies, and
    0 if that is 0. Among equally uncertain candidates tasks take turns. Values that are not
    finite count as most uncertain: the training step handles them.

    Args:
        entropy_C: H_i of each candidate, at least 0.
        most_C: H'_t, the entropy of a uniform prediction.
        task_C: the number of each candidate's task.
    """
    sizes = np.bincount(task_C)
    norm_C = (np.bincount(task_C, entropy_C) / np.maximum(sizes, 1)).max(initial=0.0) * most_C
    with np.errstate(invalid="ignore"):
        uncertainty_C = np.divide(entropy_C, norm_C, out=np.zeros_like(norm_C), where=norm_C != 0)
    uncertainty_C = np.nan_to_num(uncertainty_C, nan=np.inf)
    order = np.lexsort((task_C, numbers_within(task_C), -uncertainty_C))
    return np.sort(order[:count])
