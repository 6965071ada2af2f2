"""Putting the sentences of a draw into the order of their lengths.

By source, then target length; sentences of equal lengths in a pseudo-random order, so that batches mix the tasks. Two
steps, in which what is worked on at a time fits into the processor's cache, and is shared out among threads:

1. Each bundle of the draw's blocks is sorted by source length.
2. For each source length, what the bundles have of it is sorted by target length.

Lengths are sorted as 16-bit numbers, for which numpy has a radix sort: nothing is compared, and its speed does not
depend on the vector instructions of a processor.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from fairseq_mtmoe.data.sampling.draw import BLOCK, Block, Draw
from fairseq_mtmoe.data.sampling.permutation import Words

Lengths = NDArray[np.integer]
Limits = tuple[float, float]

_LARGE = 2 * BLOCK  # sentences of one source length that are divided by target length before they are shuffled
_FACTORS = {4: (0x9E3779B1, 0x85EBCA6B), 8: (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9)}  # by bytes of a word


@dataclass(frozen=True)
class Runs:
    """Sentences of equal lengths that follow each other: (R,) source and target lengths, and how many."""

    source: NDArray[np.int64]
    target: NDArray[np.int64]
    count: NDArray[np.int64]


@dataclass(frozen=True)
class Order:
    """The sentences of a draw in order: `indices` (V,), and their lengths as `runs`.

    `too_long` are the indices of sentences that were left out, and `counts` (L,) is how many each task has in all.
    """

    indices: Words
    runs: Runs
    too_long: Words
    counts: NDArray[np.int64]


def order_by_length(
    draw: Draw, lengths: Sequence[Lengths], key: int, limits: Limits | None = None, threads: int = 1
) -> Order:
    """Order a draw's sentences.

    Args:
        lengths: of each task's sentences: (n, 2), source and target.
        key: names the order of sentences of equal lengths.
        limits: the longest source and target that are let through.
        threads: how many share the work; the result is the same.
    """
    with ThreadPoolExecutor(threads) as pool:
        read = list(pool.map(partial(_read, draw, lengths, limits), _bundles(draw.blocks)))
        parts = [bundle.by_source for bundle in read]
        sizes = np.zeros(max(len(part.counts) for part in parts), dtype=np.int64)
        for part in parts:
            sizes[: len(part.counts)] += part.counts
        indices = np.empty(sizes.sum(), dtype=draw.numbering.index_type)
        sources = np.flatnonzero(sizes)
        places = np.split(indices, np.cumsum(sizes[sources])[:-1])
        runs = list(pool.map(partial(_fill, parts, key), sources.tolist(), places if len(sources) else ()))
    return Order(
        indices,
        Runs(*np.concatenate([np.zeros((3, 0), dtype=np.int64), *runs], axis=1)),
        np.concatenate([bundle.too_long for bundle in read]),
        np.sum([bundle.counts for bundle in read], axis=0),
    )


class _Part:
    """Columns sorted by one length; rows of equal lengths keep their order."""

    def __init__(self, lengths: Lengths, *columns: NDArray[np.integer]) -> None:
        order = lengths.argsort(kind="stable")
        self.columns = [column[order] for column in columns]
        self.counts = np.bincount(lengths, minlength=1)
        self.bounds = [0, *np.cumsum(self.counts).tolist()]

    def of(self, length: int) -> list[NDArray[np.integer]]:
        """The rows of one length."""
        if length >= len(self.counts):
            return []
        return [column[self.bounds[length] : self.bounds[length + 1]] for column in self.columns]


def _bundles(blocks: Sequence[Block]) -> list[list[Block]]:
    """Small blocks together: what is done for each costs as much as thousands of sentences."""
    bundles: list[list[Block]] = []
    size = BLOCK
    for block in blocks:
        size += block.high - block.low
        if size > BLOCK:
            bundles.append([])
            size = block.high - block.low
        bundles[-1].append(block)
    return bundles


@dataclass(frozen=True)
class _Read:
    by_source: _Part  # indices and target lengths
    too_long: Words
    counts: NDArray[np.int64]


def _read(draw: Draw, lengths: Sequence[Lengths], limits: Limits | None, bundle: Sequence[Block]) -> _Read:
    found = [draw.by_task(block) for block in bundle]
    indices = np.concatenate([indices for indices, _ in found])
    counts = np.zeros(len(lengths), dtype=np.int64)
    columns = np.empty((2, len(indices)), dtype=np.int32)
    filled = 0
    for task, sentences in itertools.chain.from_iterable(by_task for _, by_task in found):
        counts[task] += len(sentences)
        for side in (0, 1):
            columns[side, filled : filled + len(sentences)] = lengths[task][sentences, side]
        filled += len(sentences)
    source, target = columns
    too_long = indices[:0].copy()  # a view would keep all of them
    if limits is not None:
        outside = (source > limits[0]) | (target > limits[1])
        if outside.any():
            too_long, inside = indices[outside], ~outside
            indices, source, target = indices[inside], source[inside], target[inside]
    return _Read(_Part(_narrow(source), indices, _narrow(target)), too_long, counts)


def _narrow(lengths: Lengths) -> Lengths:
    return lengths.astype(np.uint16) if lengths.max(initial=0) < 2**16 else lengths


def _fill(parts: Sequence[_Part], key: int, source: int, place: Words) -> NDArray[np.int64]:
    """Put the indices of one source length into their `place`; returns the (3, R) columns of their `Runs`."""
    rows = [rows for rows in (part.of(source) for part in parts) if rows]
    indices, target = (np.concatenate(column) for column in zip(*rows, strict=True))
    counts = np.bincount(target)
    targets = np.flatnonzero(counts)
    runs = np.stack([np.full(len(targets), source), targets, counts[targets]])
    if len(indices) <= _LARGE:
        order = _shuffled(indices, key)
        place[:] = indices[order[target[order].argsort(kind="stable")]]
        return runs
    pieces = [slice(low, low + BLOCK) for low in range(0, len(indices), BLOCK)]
    parts = [_Part(target[piece], indices[piece]) for piece in pieces]
    filled = 0
    for length in targets.tolist():
        equal = np.concatenate([column for part in parts for column in part.of(length)])
        place[filled : filled + len(equal)] = equal[_shuffled(equal, key)]
        filled += len(equal)
    return runs


def _shuffled(indices: Words, key: int) -> NDArray[np.int64]:
    """A pseudo-random order of indices, by 16 bits of a keyed hash of each."""
    word, width = indices.dtype.type, 8 * indices.itemsize
    half, first, second = word(width // 2), *map(word, _FACTORS[indices.itemsize])
    hashed = indices ^ word(key % 2**width)
    for factor in (first, second):
        hashed *= factor
        hashed ^= hashed >> half
    hashed *= first
    order: NDArray[np.int64] = (hashed >> word(width - 16)).astype(np.uint16).argsort(kind="stable")
    return order
