"""A share of a task's examples, drawn once for a whole run: as in few-shot studies."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fairseq_mtmoe.data.sampling.permutation import derive_key, items_at


def stratified_share(strata_E: NDArray[np.integer], share: float, seed: int) -> NDArray[np.int64]:
    """A share of E examples in which every stratum (a label, for example) has about its share.

    The draws of one seed are nested: a smaller share's examples are among a larger one's. They are `share · E`,
    rounded, but at least one of each stratum; of S strata, each has its share of them to less than S examples.

    Args:
        strata_E: each example's stratum, from 0 on, (E,).
        share: above 0 and at most 1.
        seed: names the draw.

    Returns:
        the examples' numbers, ascending.
    """
    assert 0 < share <= 1 and len(strata_E)
    order = items_at(0, len(strata_E), len(strata_E), derive_key(seed)).astype(np.int64)
    drawn = strata_E[order]
    sizes = np.bincount(drawn)
    ranks = np.empty(len(drawn), dtype=np.int64)  # of each example among those of its stratum
    ranks[drawn.argsort(kind="stable")] = np.arange(len(drawn)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    # Every stratum is used up at the same pace, from the first of each on, which come before all others.
    paced = order[(ranks / sizes[drawn]).argsort(kind="stable")]
    count = max(round(share * len(strata_E)), np.count_nonzero(sizes))
    return np.sort(paced[:count])
