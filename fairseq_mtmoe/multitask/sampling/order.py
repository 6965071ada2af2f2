"""Sorting the examples of a draw by length.

The order is by the length of the first side, then of the next, then pseudo-random, so that
batches mix the tasks.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fairseq_mtmoe.multitask.sampling.draw import Draw
from fairseq_mtmoe.multitask.sampling.permutation import Words

Lengths = NDArray[np.integer]
Limits = float | Sequence[float]

# By word size in bytes.
_FACTORS = {
    4: (0x9E3779B1, 0x85EBCA6B),
    8: (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9),
}


@dataclass(frozen=True)
class Order:
    """The examples of a draw, sorted by length."""

    indices: Words  # (V,)
    longest_V: NDArray[np.int64]  # greatest length of any side
    too_long: Words  # indices of examples that were left out
    counts: NDArray[np.int64]  # (L,) examples of each task, those left out included


def order_by_length(
    draw: Draw, lengths: Sequence[Lengths], key: int, limits: Limits = np.inf
) -> Order:
    """Sort a draw's examples by length.

    lengths: (n, S) of each task. key: seed for the order of equal lengths. limits: the largest
    lengths taken, (S,) or one for all sides.
    """
    indices, sides, counts = _drawn(draw, lengths)
    outside = np.greater(sides.T, limits).any(axis=1)
    too_long = indices[outside]
    indices = indices[~outside]
    sides = sides[:, ~outside]
    if sides.max(initial=0) < 2**16:
        sides = sides.astype(np.uint16)  # numpy sorts 16 bits by radix
    order = np.lexsort((_hashed(indices, key), *reversed(sides)))
    return Order(indices[order], sides.max(axis=0)[order].astype(np.int64), too_long, counts)


def _drawn(draw: Draw, lengths: Sequence[Lengths]) -> tuple[Words, Lengths, NDArray[np.int64]]:
    """Return the indices of a draw's examples, (V,), and their lengths, (S, V).

    The third value is each task's number of examples.
    """
    indices = np.empty(len(draw), dtype=draw.numbering.index_type)
    sides = np.empty((lengths[0].shape[1], len(draw)), dtype=np.int32)
    counts = np.zeros(len(lengths), dtype=np.int64)
    filled = 0
    for block_indices, tasks, examples in draw.blocks():
        block = slice(filled, filled + len(tasks))
        indices[block] = block_indices
        block_counts = np.bincount(tasks, minlength=len(lengths))
        for task in np.flatnonzero(block_counts):
            chosen = tasks == task
            sides[:, block][:, chosen] = lengths[task][examples[chosen]].T
        counts += block_counts
        filled = block.stop
    return indices, sides, counts


def _hashed(indices: Words, key: int) -> NDArray[np.uint16]:
    """Return 16 bits of a keyed hash of each index."""
    word = indices.dtype.type
    width = 8 * indices.itemsize
    half = word(width // 2)
    first, second = map(word, _FACTORS[indices.itemsize])
    hashed = indices ^ word(key % 2**width)
    for factor in (first, second):
        hashed *= factor
        hashed ^= hashed >> half
    hashed *= first
    top: NDArray[np.uint16] = (hashed >> word(width - 16)).astype(np.uint16)
    return top
