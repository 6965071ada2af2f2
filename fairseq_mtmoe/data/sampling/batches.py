"""Cutting examples that are in order into batches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fairseq_mtmoe.data.sampling.order import Runs
from fairseq_mtmoe.errors import raise_invalid


def batch_ends(
    runs: Runs, max_tokens: int | None = None, max_sentences: int | None = None, multiple: int = 1
) -> NDArray[np.int64]:
    """Where each batch ends: the batches of fairseq's `batch_by_size`, with work in proportion to the runs and batches.

    A batch takes as many examples as `max_tokens` and `max_sentences` allow, rounded down to a multiple of `multiple`
    unless there are fewer. What is left over at the end makes a batch too, which fairseq drops in some cases.

    Args:
        runs: the examples' lengths; the longest side counts.
        max_tokens: limit of the number of examples times the longest length.
        max_sentences: limit of the number of examples.
        multiple: `--required-batch-size-multiple`.

    Raises:
        UserError: an example is longer than `max_tokens`.
    """
    tokens = runs.lengths.max(axis=0)
    if max_tokens is not None and tokens.max(initial=0) > max_tokens:
        raise_invalid("--max-tokens", f"at least {tokens.max()}, the length of the longest example", max_tokens)
    total = int(runs.count.sum())
    # What counts is the longer length: runs in which it is the same are one.
    changes = np.flatnonzero(np.diff(tokens, prepend=-1))
    starts = [*(np.cumsum(runs.count) - runs.count)[changes].tolist(), total]
    sizes = np.full(len(changes), total if max_sentences is None else min(max_sentences, total))
    if max_tokens is not None:
        sizes = np.minimum(sizes, max_tokens // np.maximum(tokens[changes], 1))
    return np.array(_ends(starts, sizes.tolist(), multiple), dtype=np.int64)


def _ends(starts: Sequence[int], sizes: Sequence[int], multiple: int) -> list[int]:
    """The ends of batches of runs that begin at `starts` (R+1,), where the batches that a run allows have `sizes`."""

    def rounded(size: int) -> int:
        return size if size < multiple else size - size % multiple

    ends: list[int] = []
    start = run = 0  # of the batch that is being filled, and the run that is to be added to it
    size = smallest = starts[-1]
    while run < len(sizes):
        size = min(smallest, sizes[run])
        if start + size >= starts[run + 1]:
            smallest = size
            run += 1
            continue
        if start >= starts[run]:  # all of it is of one run: so are the next batches, as long as they are full
            whole = rounded(size)
            last = start + whole * -(-(starts[run + 1] - size - start) // whole)
            ends.extend(range(start + whole, last + 1, whole))
            start = last
        else:
            start += rounded(max(start + size, starts[run]) - start)
            ends.append(start)
        smallest = starts[-1]
        while starts[run] > start:  # to the examples that were rounded off
            run -= 1
    rest = starts[-1] - start
    return [*ends, *([start + rounded(rest)] if rest else []), *([starts[-1]] if rounded(rest) < rest else [])]
