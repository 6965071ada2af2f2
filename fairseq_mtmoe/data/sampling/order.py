"""Sorting the examples of a draw by length, and dividing them into batches.

The order is by the length of the first side, then of the next, then pseudo-random, so that batches mix the tasks.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fairseq_mtmoe.data.sampling.draw import Draw
from fairseq_mtmoe.data.sampling.permutation import Words
from fairseq_mtmoe.errors import raise_invalid

Lengths = NDArray[np.integer]

_FACTORS = {4: (0x9E3779B1, 0x85EBCA6B), 8: (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9)}  # by word size in bytes


@dataclass(frozen=True)
class Runs:
    """R runs of consecutive examples of equal lengths: lengths (S, R) of the S sides, and counts (R,)."""

    lengths: NDArray[np.int64]
    count: NDArray[np.int64]


@dataclass(frozen=True)
class Order:
    """The examples of a draw, sorted by length."""

    indices: Words  # (V,)
    runs: Runs  # their lengths
    too_long: Words  # indices of examples that were left out
    counts: NDArray[np.int64]  # (L,) examples of each task, those left out included


def order_by_length(draw: Draw, lengths: Sequence[Lengths], key: int, limits: Sequence[float] | None = None) -> Order:
    """Sort a draw's examples by length.

    lengths: (n, S) of each task. key: seed for the order of equal lengths. limits: (S,), the largest lengths taken.
    """
    indices, sides, counts = _drawn(draw, lengths)
    inside = np.ones(len(indices), dtype=bool)
    for side, limit in zip(sides, limits or (), strict=limits is not None):
        inside &= side <= limit
    too_long = indices[~inside]
    if len(too_long):
        indices, sides = indices[inside], sides[:, inside]
    if sides.max(initial=0) < 2**16:
        sides = sides.astype(np.uint16)  # numpy sorts 16 bits by radix
    order = np.lexsort((_hashed(indices, key), *reversed(sides)))
    return Order(indices[order], _runs(sides[:, order]), too_long, counts)


def _drawn(draw: Draw, lengths: Sequence[Lengths]) -> tuple[Words, Lengths, NDArray[np.int64]]:
    """Return the indices of a draw's examples, (V,), their lengths, (S, V), and each task's number of examples."""
    indices = np.empty(len(draw), dtype=draw.numbering.index_type)
    sides = np.empty((lengths[0].shape[1], len(draw)), dtype=np.int32)
    counts = np.zeros(len(lengths), dtype=np.int64)
    filled = 0
    for block in draw.blocks:
        block_indices, by_task = draw.by_task(block)
        indices[filled : filled + len(block_indices)] = block_indices
        for task, examples in by_task:
            sides[:, filled : filled + len(examples)] = lengths[task][examples].T
            counts[task] += len(examples)
            filled += len(examples)
    return indices, sides, counts


def _hashed(indices: Words, key: int) -> NDArray[np.uint16]:
    """Return 16 bits of a keyed hash of each index."""
    word, width = indices.dtype.type, 8 * indices.itemsize
    half, first, second = word(width // 2), *map(word, _FACTORS[indices.itemsize])
    hashed = indices ^ word(key % 2**width)
    for factor in (first, second):
        hashed *= factor
        hashed ^= hashed >> half
    hashed *= first
    top: NDArray[np.uint16] = (hashed >> word(width - 16)).astype(np.uint16)
    return top


def _runs(sides: Lengths) -> Runs:
    """Return the runs of sorted lengths, (S, V)."""
    begins = np.zeros(sides.shape[1], dtype=bool)
    begins[:1] = True
    for side in sides:
        begins[1:] |= side[1:] != side[:-1]
    starts = np.flatnonzero(begins)
    return Runs(sides[:, starts].astype(np.int64), np.diff(starts, append=sides.shape[1]))


def batch_ends(
    runs: Runs, max_tokens: int | None = None, max_sentences: int | None = None, multiple: int = 1
) -> NDArray[np.int64]:
    """Return the end of each batch of sorted examples, as fairseq's `batch_by_size`, in time of runs and batches.

    A batch has at most `max_sentences` examples, and at most `max_tokens` as number of examples times the longest side.
    The number is rounded down to a multiple of `multiple` if it is not smaller; the remainder is a batch, too.
    """
    tokens = runs.lengths.max(axis=0)
    if max_tokens is not None and tokens.max(initial=0) > max_tokens:
        raise_invalid("--max-tokens", f"at least {tokens.max()}, the length of the longest example", max_tokens)
    total = int(runs.count.sum())
    # Only the longer side counts: join consecutive runs in which it is equal.
    changes = np.flatnonzero(np.diff(tokens, prepend=-1))
    starts = [*(np.cumsum(runs.count) - runs.count)[changes].tolist(), total]
    sizes = np.full(len(changes), total if max_sentences is None else min(max_sentences, total))
    if max_tokens is not None:
        sizes = np.minimum(sizes, max_tokens // np.maximum(tokens[changes], 1))
    return np.array(_ends(starts, sizes.tolist(), multiple), dtype=np.int64)


def _ends(starts: Sequence[int], sizes: Sequence[int], multiple: int) -> list[int]:
    """Return the batches' ends for runs that begin at `starts` (R+1,) and allow batches of `sizes`."""

    def rounded(size: int) -> int:
        return size if size < multiple else size - size % multiple

    ends: list[int] = []
    start = run = 0  # start of the current batch, and the next run to add to it
    size = smallest = starts[-1]
    while run < len(sizes):
        size = min(smallest, sizes[run])
        if start + size >= starts[run + 1]:
            smallest = size
            run += 1
            continue
        if start >= starts[run]:  # the batch lies within one run, as do the next full ones
            whole = rounded(size)
            last = start + whole * -(-(starts[run + 1] - size - start) // whole)
            ends.extend(range(start + whole, last + 1, whole))
            start = last
        else:
            start += rounded(max(start + size, starts[run]) - start)
            ends.append(start)
        smallest = starts[-1]
        while starts[run] > start:  # back to the examples that rounding left over
            run -= 1
    rest = starts[-1] - start
    return [*ends, *([start + rounded(rest)] if rest else []), *([starts[-1]] if rounded(rest) < rest else [])]
