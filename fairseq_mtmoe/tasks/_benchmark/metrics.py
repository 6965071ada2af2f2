"""The benchmarks' metrics, over a whole set, in percent, and how far chance in drawing the set may take them.

scikit-learn and scipy are imported when they are used: translation does without, and a node may not have them.
"""

import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairseq_mtmoe.errors import UserError, raise_invalid

Values = NDArray[np.float64]

RESAMPLES = 300  # sklearn takes milliseconds for each; the error is then known to 4%


def check_installed(package: str = "scikit-learn", module: str = "sklearn.metrics") -> None:
    """Raise the `UserError` that says how to get a package, long before a validation asks for it."""
    try:
        importlib.import_module(module)
    except ImportError as error:
        raise UserError(
            f"`{package}` must be installed for language understanding, but is not: `pip install "
            "'fairseq_mtmoe[nlu]'`, or the folder WHEELHOUSE-optional."
        ) from error


def _sklearn(name: str, **options: Any) -> Callable[..., float]:
    """A metric of `sklearn.metrics` over labels and predictions."""

    def metric(labels: Values, predictions: Values) -> float:
        return float(getattr(importlib.import_module("sklearn.metrics"), name)(labels, predictions, **options))

    return metric


def correlation(labels: Values, predictions: Values, of_ranks: bool) -> float:
    """Spearman's or Pearson's correlation; 0 where one of the two is constant, which orders nothing."""
    if len(labels) < 2 or np.ptp(labels) == 0 or np.ptp(predictions) == 0:
        return 0.0
    if not of_ranks:
        return float(np.corrcoef(labels, predictions)[0, 1])
    from scipy.stats import spearmanr

    return float(spearmanr(labels, predictions).statistic)


def macro_f1(labels: Values, predictions: Values) -> float:
    """Mean F1 of the classes that occur, as SuperGLUE scores CB; an answer below 0 is of no class."""
    classes = np.union1d(labels, predictions[predictions >= 0])
    return _sklearn("f1_score", labels=classes, average="macro", zero_division=0)(labels, predictions)


def entity_f1(found: Values, predicted: Values, there: Values) -> float:
    """F1 of entities: how many of each sentence were found, were predicted and are there; 0 of none."""
    return float(2 * found.sum() / max(predicted.sum() + there.sum(), 1))


METRICS: Mapping[str, Callable[..., float]] = {
    "accuracy": lambda labels, predictions: float(np.mean(labels == predictions)),
    "matthews": _sklearn("matthews_corrcoef"),
    "spearman": partial(correlation, of_ranks=True),
    "pearson": partial(correlation, of_ranks=False),
    "f1": _sklearn("f1_score", zero_division=0),  # of the class 1; MultiRC's F1a, over all answers of all questions
    "macro-f1": macro_f1,
    "entity-f1": entity_f1,
}


def check_metric(task: str, metric: str, known: Sequence[str], num_labels: int) -> None:
    """Refuse a metric that a task cannot have, whose kind of answer has the `known` ones."""
    if metric not in known:
        raise_invalid(f"the metric of {task}", f"one of {', '.join(known)}", metric)
    if metric == "f1" and num_labels not in (0, 2):  # without labels it is of texts
        raise_invalid(f"the metric of {task}", "another than f1, which is for two labels", f"f1 of {num_labels}")
    if metric == "entity-f1":
        check_installed("seqeval", "seqeval.metrics")


def score(metric: str, *columns: Values) -> float:
    """Return a metric in percent, of what each unit reached, (U,), or of the columns that it takes; NaN of nothing."""
    return 100 * _measured(metric, columns) if len(columns[0]) else math.nan


def standard_error(metric: str, *columns: Values) -> float:
    """Return the standard error of `score`, in percent; NaN of fewer than two units.

    Of means over units, such as accuracy, from their variance; of other metrics the deviation over 300 sets that are
    drawn from the units with replacement (the bootstrap), the same ones each time.
    """
    if len(columns[0]) < 2:
        return math.nan
    if metric == "accuracy" and len(columns) == 2:
        columns = ((columns[0] == columns[1]).astype(np.float64),)
    if len(columns) == 1:
        return 100 * float(np.std(columns[0])) / math.sqrt(len(columns[0]))
    from scipy.stats import bootstrap

    resampled = bootstrap(
        columns, lambda *drawn: _measured(metric, drawn), paired=True, vectorized=False, n_resamples=RESAMPLES,
        method="percentile", random_state=np.random.default_rng(0),
    )  # fmt: skip
    return 100 * float(resampled.standard_error)


def _measured(metric: str, columns: Sequence[Values]) -> float:
    return float(np.mean(columns[0]) if len(columns) == 1 else METRICS[metric](*columns))
