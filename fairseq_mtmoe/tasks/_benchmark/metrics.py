"""The benchmarks' metrics, over a whole set, in percent, and how far chance in drawing the set may take them.

scikit-learn and scipy are imported when they are used: translation does without, and a node may not have them.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fairseq_mtmoe.errors import UserError, raise_invalid

Values = NDArray[np.float64]

RESAMPLES = 300  # sklearn takes milliseconds for each; the error is then known to 4%


def check_installed(package: str = "scikit-learn", module: str = "sklearn.metrics") -> None:
    """Raise the `UserError` that says how to get a package, long before a validation asks for it.

    scikit-learn, which brings scipy along, is for all tasks, seqeval for the labels of words.
    """
    try:
        importlib.import_module(module)
    except ImportError as error:
        raise UserError(
            f"`{package}` must be installed for language understanding, but is not: `pip install "
            "'fairseq_mtmoe[nlu]'`, or the folder WHEELHOUSE-optional."
        ) from error


def accuracy(labels: Values, predictions: Values) -> float:
    """The share of examples that are right."""
    return float(np.mean(labels == predictions))


def matthews(labels: Values, predictions: Values) -> float:
    """Matthews' correlation of two classes; 0 where all predictions are the same."""
    from sklearn.metrics import matthews_corrcoef

    return float(matthews_corrcoef(labels, predictions))


def spearman(labels: Values, predictions: Values) -> float:
    """Rank correlation; 0 where one of the two is constant, which orders nothing."""
    if len(labels) < 2 or np.ptp(labels) == 0 or np.ptp(predictions) == 0:
        return 0.0
    from scipy.stats import spearmanr

    return float(spearmanr(labels, predictions).statistic)


def pearson(labels: Values, predictions: Values) -> float:
    """Linear correlation; 0 where one of the two is constant."""
    if len(labels) < 2 or np.ptp(labels) == 0 or np.ptp(predictions) == 0:
        return 0.0
    return float(np.corrcoef(labels, predictions)[0, 1])


def f1(labels: Values, predictions: Values) -> float:
    """F1 of the class 1; MultiRC's F1a, over all answers of all questions. 0 where nothing is of the class."""
    from sklearn.metrics import f1_score

    return float(f1_score(labels, predictions, zero_division=0))


def macro_f1(labels: Values, predictions: Values) -> float:
    """Mean F1 of the classes that occur, as SuperGLUE scores CB; an answer below 0 is of no class."""
    from sklearn.metrics import f1_score

    classes = np.union1d(labels, predictions[predictions >= 0])
    return float(f1_score(labels, predictions, labels=classes, average="macro", zero_division=0))


def entity_f1(found: Values, predicted: Values, there: Values) -> float:
    """F1 of entities, of which so many in each sentence were found, were predicted and are there; 0 of none."""
    return float(2 * found.sum() / max(predicted.sum() + there.sum(), 1))


METRICS: Mapping[str, Callable[..., float]] = {
    "accuracy": accuracy,
    "matthews": matthews,
    "spearman": spearman,
    "pearson": pearson,
    "f1": f1,
    "macro-f1": macro_f1,
    "entity-f1": entity_f1,
}


def check_metric(task: str, metric: str, known: Sequence[str], num_labels: int) -> None:
    """Raise the `UserError` that says why a task, whose kind of answer has `known` ones, cannot have a metric."""
    if metric not in known:
        raise_invalid(f"the metric of {task}", f"one of {', '.join(known)}", metric)
    if metric == "f1" and num_labels not in (0, 2):  # without labels it is of texts
        raise_invalid(f"the metric of {task}", "another than f1, which is for two labels", f"f1 of {num_labels}")
    if metric == "entity-f1":
        check_installed("seqeval", "seqeval.metrics")


def score(metric: str, *columns: Values) -> float:
    """A metric in percent; NaN of nothing.

    Args:
        metric: one of `METRICS`, or any where there is one column.
        columns: (U,) what each unit reached; or what the metric's function takes.
    """
    return 100 * _measured(metric, columns) if len(columns[0]) else math.nan


def standard_error(metric: str, *columns: Values) -> float:
    """The standard error of `score`, in percent; NaN of fewer than two units.

    Of accuracy, and of all means over units, from the variance of what these reached; of other metrics the deviation
    over 300 sets that are drawn from the units with replacement (the bootstrap), the same ones each time.
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
