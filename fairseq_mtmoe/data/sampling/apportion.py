"""How many of an epoch's examples each task gets."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def apportion(total: int, probabilities: NDArray[np.float64], offset: float) -> NDArray[np.int64]:
    """Split `total` into whole numbers with these shares: systematic sampling with one random number.

    Each count is `total · p` rounded up or down, the counts sum to `total` exactly, and over a uniformly random
    `offset` the expectation of each count is `total · p` exactly. A task with probability 0 gets nothing.

    Args:
        total: number of examples, at least 0.
        probabilities: (L,) not negative, with a sum above 0; they need not sum to 1.
        offset: in [0, 1).

    Returns:
        (L,) counts.
    """
    cumulated = np.cumsum(probabilities)
    bounds = np.floor(total * (cumulated / cumulated[-1]) + offset).astype(np.int64)
    # In floating point `total + offset` can round up to the next whole number.
    bounds = np.minimum(bounds, total)
    return np.diff(bounds, prepend=0)
