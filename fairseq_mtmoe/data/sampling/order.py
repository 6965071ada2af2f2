"""Sorting the examples of a draw by length, and dividing them into batches.

The order is by the length of the first side, then of the next, then pseudo-random, so that batches mix the tasks.
Threads first sort bundles of the draw's blocks, which fit into a cache, by the first side. Then they sort the examples
of each length by the other sides. 16-bit lengths use numpy's radix sort, which is equally fast on any processor.
"""

import itertools
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from fairseq_mtmoe.data.sampling.draw import BLOCK, Block, Draw
from fairseq_mtmoe.data.sampling.permutation import Words
from fairseq_mtmoe.errors import raise_invalid

Lengths = NDArray[np.integer]

_LARGE = 2 * BLOCK  # more examples of one length are divided by their next side before shuffling
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


def order_by_length(
    draw: Draw, lengths: Sequence[Lengths], key: int, limits: Sequence[float] | None = None, threads: int = 1
) -> Order:
    """Sort a draw's examples by length, equally with any number of threads.

    lengths: (n, S) of each task. key: seed for the order of equal lengths. limits: (S,), the largest lengths taken.
    """
    with ThreadPoolExecutor(threads) as pool:
        read = pool.map(partial(_read, draw, lengths, limits), _bundles(draw.blocks))
        parts, too_long, counts = zip(*read, strict=True)
        indices = np.empty(sum(len(part) for part in parts), dtype=draw.numbering.index_type)
        filled = list(pool.map(partial(_fill, parts, key), *_by_length(parts, indices)))
    runs = _side_by_side(filled, 1 + lengths[0].shape[1])
    return Order(indices, Runs(runs[:-1], runs[-1]), np.concatenate(too_long), np.sum(counts, axis=0))


class _Part:
    """Columns sorted by one length; rows of equal lengths keep their order."""

    def __init__(self, lengths: Lengths, *columns: NDArray[np.integer]) -> None:
        order = lengths.argsort(kind="stable")
        self.columns = [column[order] for column in columns]
        self.counts = np.bincount(lengths, minlength=1)
        self.bounds = [0, *np.cumsum(self.counts).tolist()]

    def __len__(self) -> int:
        return int(self.bounds[-1])

    def of(self, length: int) -> list[NDArray[np.integer]]:
        if length >= len(self.counts):
            return []
        return [column[self.bounds[length] : self.bounds[length + 1]] for column in self.columns]


def _bundles(blocks: Sequence[Block]) -> list[list[Block]]:
    """Group small blocks, as the cost of each bundle equals that of thousands of examples."""
    bundles: list[list[Block]] = []
    size = BLOCK
    for block in blocks:
        size += block.high - block.low
        if size > BLOCK:
            bundles.append([])
            size = block.high - block.low
        bundles[-1].append(block)
    return bundles


def _read(
    draw: Draw, lengths: Sequence[Lengths], limits: Sequence[float] | None, bundle: Sequence[Block]
) -> tuple[_Part, Words, NDArray[np.int64]]:
    """Return a bundle's indices and further lengths by the first side's length, the too long ones, tasks' counts."""
    found = [draw.by_task(block) for block in bundle]
    indices = np.concatenate([indices for indices, _ in found])
    counts = np.zeros(len(lengths), dtype=np.int64)
    sides = np.empty((lengths[0].shape[1], len(indices)), dtype=np.int32)
    filled = 0
    for task, examples in itertools.chain.from_iterable(by_task for _, by_task in found):
        counts[task] += len(examples)
        for number, side in enumerate(sides):
            side[filled : filled + len(examples)] = lengths[task][examples, number]
        filled += len(examples)
    too_long = indices[:0].copy()  # a view would keep the whole array alive
    if limits is not None:
        outside = np.zeros(len(indices), dtype=bool)
        for side, limit in zip(sides, limits, strict=True):
            outside |= side > limit
        if outside.any():
            too_long, inside = indices[outside], ~outside
            indices, sides = indices[inside], sides[:, inside]
    narrow = (side.astype(np.uint16) if side.max(initial=0) < 2**16 else side for side in sides)
    return _Part(next(narrow), indices, *narrow), too_long, counts


def _by_length(parts: Sequence[_Part], out: Words) -> tuple[list[int], list[Words]]:
    """Return the lengths in these parts, ascending, and for each the slice of `out` that it fills."""
    sizes = np.zeros(max(len(part.counts) for part in parts), dtype=np.int64)
    for part in parts:
        sizes[: len(part.counts)] += part.counts
    lengths = np.flatnonzero(sizes)
    return lengths.tolist(), np.split(out, np.cumsum(sizes[lengths])[:-1]) if len(lengths) else []


def _fill(parts: Sequence[_Part], key: int, length: int, out: Words) -> NDArray[np.int64]:
    """Write the sorted indices of one length to `out`; return the columns of their `Runs`, (S+1, R)."""
    rows = [rows for rows in (part.of(length) for part in parts) if rows]
    indices, *sides = (np.concatenate(column) for column in zip(*rows, strict=True))
    runs = _divided(indices, sides, key, out) if sides and len(indices) > _LARGE else _sorted(indices, sides, key, out)
    return np.concatenate([np.full((1, runs.shape[1]), length), runs])


def _sorted(indices: Words, sides: Sequence[Lengths], key: int, out: Words) -> NDArray[np.int64]:
    """Write indices to `out`, sorted by their sides; return the columns of their `Runs`."""
    order = _shuffled(indices, key)
    for side in reversed(sides):  # stable sorts: equal lengths keep the order of the later sides
        order = order[side[order].argsort(kind="stable")]
    out[:] = indices[order]
    lengths, begins = [side[order] for side in sides], np.zeros(len(order), dtype=bool)
    begins[0] = True
    for column in lengths:
        begins[1:] |= column[1:] != column[:-1]
    starts = np.flatnonzero(begins)
    return np.stack([*(column[starts] for column in lengths), np.diff(starts, append=len(order))])


def _divided(indices: Words, sides: Sequence[Lengths], key: int, out: Words) -> NDArray[np.int64]:
    """Do as `_sorted` for more examples than the cache holds: divide by the first side, then sort each length."""
    pieces = [slice(low, low + BLOCK) for low in range(0, len(indices), BLOCK)]
    first, *others = sides
    parts = [_Part(first[piece], indices[piece], *(side[piece] for side in others)) for piece in pieces]
    return _side_by_side(map(partial(_fill, parts, key), *_by_length(parts, out)), 1 + len(sides))


def _side_by_side(columns: Iterable[NDArray[np.int64]], height: int) -> NDArray[np.int64]:
    return np.concatenate([np.zeros((height, 0), dtype=np.int64), *columns], axis=1)


def _shuffled(indices: Words, key: int) -> NDArray[np.int64]:
    """Return a pseudo-random order of indices, by 16 bits of a keyed hash of each."""
    word, width = indices.dtype.type, 8 * indices.itemsize
    half, first, second = word(width // 2), *map(word, _FACTORS[indices.itemsize])
    hashed = indices ^ word(key % 2**width)
    for factor in (first, second):
        hashed *= factor
        hashed ^= hashed >> half
    hashed *= first
    order: NDArray[np.int64] = (hashed >> word(width - 16)).astype(np.uint16).argsort(kind="stable")
    return order


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
