"""Temperature sampling and heating: equations 1 and 2 of "Tricks for Training Sparse Translation Models"."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def temperature_probabilities(sizes: Sequence[float] | NDArray[np.float64], temperature: float) -> NDArray[np.float64]:
    """Equation 1: `p_l = s_l^(1/T) / Σ_m s_m^(1/T)`, for sizes of any magnitude and any finite T > 0.

    Args:
        sizes: (L,) examples of each task, at least one of them above zero; a task without examples gets 0.
        temperature: 1 samples in proportion to the sizes, a higher one more evenly.

    Returns:
        (L,) probabilities that sum to 1.
    """
    assert 0 < temperature < math.inf
    values = np.asarray(sizes, dtype=np.float64)
    assert values.max() > 0 and values.min() >= 0
    with np.errstate(divide="ignore", over="ignore"):
        # Relative to the largest before the division by T: nothing overflows, and the largest becomes 1.
        weights: NDArray[np.float64] = np.exp((np.log(values) - np.log(values.max())) / temperature)
    weights /= weights.sum()
    return weights


def heated_temperature(start: float, coefficient: float, duration: int, elapsed: int) -> float:
    """Equation 2: `T_e = T_s · sqrt(1 + k·e/C)`; from C on it stays `T_s · sqrt(1 + k)`.

    Args:
        start: T_s, the temperature of the first epoch.
        coefficient: k, the conduction coefficient; 0 keeps the temperature constant.
        duration: C, at least 1: a number of epochs, or of updates.
        elapsed: e, of the same kind, counted from 0.
    """
    assert coefficient >= 0 and duration >= 1 and elapsed >= 0
    return start * math.sqrt(1.0 + coefficient * min(elapsed, duration) / duration)
