"""The benchmarks' metrics, over a whole set, in percent, and how far chance in drawing the set may take them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray
from scipy.stats import bootstrap, spearmanr
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

Values = NDArray[np.float64]

RESAMPLES = 300  # sklearn takes milliseconds for each; the error is then known to 4%


def spearman(labels: Values, predictions: Values) -> float:
    """Rank correlation; 0 where one of the two is constant, which orders nothing."""
    if len(labels) < 2 or np.ptp(labels) == 0 or np.ptp(predictions) == 0:
        return 0.0
    return float(spearmanr(labels, predictions).statistic)


def f1(labels: Values, predictions: Values) -> float:
    """F1 of the class 1; MultiRC's F1a, over all answers of all questions. 0 where nothing is of the class."""
    return float(f1_score(labels, predictions, zero_division=0))


METRICS: Mapping[str, Callable[[Values, Values], float]] = {
    "accuracy": accuracy_score,
    "matthews": matthews_corrcoef,  # 0 where all predictions are the same
    "spearman": spearman,
    "f1": f1,
}


def score(metric: str, labels: Values, predictions: Values) -> float:
    """A metric in percent; NaN of nothing.

    Args:
        metric: one of `METRICS`.
        labels: (E,) classes, or values.
        predictions: (E,) the same.
    """
    return 100 * float(METRICS[metric](labels, predictions)) if len(labels) else math.nan


def standard_error(metric: str, labels: Values, predictions: Values) -> float:
    """The standard error of `score`, in percent; NaN of fewer than two examples.

    Of accuracy from the variance of a share; of other metrics the deviation over 300 sets that are drawn from the
    examples with replacement (the bootstrap), the same ones each time.
    """
    if len(labels) < 2:
        return math.nan
    if metric == "accuracy":
        share = METRICS[metric](labels, predictions)
        return 100 * math.sqrt(share * (1 - share) / len(labels))
    resampled = bootstrap(
        (labels, predictions), METRICS[metric], paired=True, vectorized=False, n_resamples=RESAMPLES,
        method="percentile", random_state=np.random.default_rng(0),
    )  # fmt: skip
    return 100 * float(resampled.standard_error)
