"""Benchmark metrics of a whole data set, in percent, and their standard errors.

scikit-learn and scipy are imported on first use: translation does not need them, and a node may
lack them.
"""

import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairseq_mtmoe.core.errors import raise_invalid
from fairseq_mtmoe.nlu.data.tokenizer_files import check_installed

Values = NDArray[np.float64]

RESAMPLES = 300  # sklearn takes milliseconds per resample; this number gives the error to within 4%


def _sklearn(name: str, **options: Any) -> Callable[..., float]:
    """Return a metric of `sklearn.metrics` as a function of labels and predictions."""

    def metric(labels: Values, predictions: Values) -> float:
        return float(
            getattr(importlib.import_module("sklearn.metrics"), name)(
                labels, predictions, **options
            )
        )

    return metric


def correlation(labels: Values, predictions: Values, ranked: bool) -> float:
    """Return Spearman's (`ranked`) or Pearson's correlation; 0 for constant values."""
    if len(labels) < 2 or np.ptp(labels) == 0 or np.ptp(predictions) == 0:
        return 0.0
    if not ranked:
        return float(np.corrcoef(labels, predictions)[0, 1])
    from scipy.stats import spearmanr

    return float(spearmanr(labels, predictions).statistic)


def macro_f1(labels: Values, predictions: Values) -> float:
    """Return the mean F1 of the classes that occur, as SuperGLUE scores CB.

    Predictions below 0 belong to no class.
    """
    classes = np.union1d(labels, predictions[predictions >= 0])
    return _sklearn("f1_score", labels=classes, average="macro", zero_division=0)(
        labels, predictions
    )


def entity_f1(hits: Values, predicted: Values, there: Values) -> float:
    """Return the F1 of entities; 0 if there are none.

    Each argument has a number per sentence: entities that are predicted and right, predicted, and
    in the reference.
    """
    return float(2 * hits.sum() / max(predicted.sum() + there.sum(), 1))


METRICS: Mapping[str, Callable[..., float]] = {
    "accuracy": lambda labels, predictions: float(np.mean(labels == predictions)),
    "matthews": _sklearn("matthews_corrcoef"),
    "spearman": partial(correlation, ranked=True),
    "pearson": partial(correlation, ranked=False),
    # The F1 of class 1; in MultiRC, F1a over all answers of all questions.
    "f1": _sklearn("f1_score", zero_division=0),
    "macro-f1": macro_f1,
    "entity-f1": entity_f1,
}


def check_metric(task: str, metric: str, task_metrics: Sequence[str], num_labels: int) -> None:
    """Raise a `UserError` for a metric that a task cannot have.

    task_metrics: those of the task's type.
    """
    if metric not in task_metrics:
        raise_invalid(f"the metric of {task}", f"one of {', '.join(task_metrics)}", metric)
    if metric == "f1" and num_labels not in (0, 2):  # without labels, f1 compares texts
        raise_invalid(
            f"the metric of {task}",
            "another metric than f1, which requires two labels",
            f"f1 of {num_labels}",
        )
    if metric == "entity-f1":
        check_installed("seqeval", "seqeval.metrics")


def score(metric: str, *columns: Values) -> float:
    """Return a metric in percent; NaN without units.

    columns: a single column (U,), whose mean is the metric, or the metric's arguments.
    """
    return 100 * _measured(metric, columns) if len(columns[0]) else math.nan


def standard_error(metric: str, *columns: Values) -> float:
    """Return the standard error of `score` in percent; NaN for fewer than two units.

    For means over units, such as accuracy, it follows from their variance. For other metrics it is
    the standard deviation over 300 bootstrap resamples, the same ones each time.
    """
    if len(columns[0]) < 2:
        return math.nan
    if metric == "accuracy" and len(columns) == 2:
        columns = ((columns[0] == columns[1]).astype(np.float64),)
    if len(columns) == 1:
        return 100 * float(np.std(columns[0])) / math.sqrt(len(columns[0]))
    from scipy.stats import bootstrap

    resampled = bootstrap(
        columns,
        lambda *drawn: _measured(metric, drawn),
        paired=True,
        vectorized=False,
        n_resamples=RESAMPLES,
        method="percentile",
        random_state=np.random.default_rng(0),
    )
    return 100 * float(resampled.standard_error)


def _measured(metric: str, columns: Sequence[Values]) -> float:
    return float(np.mean(columns[0]) if len(columns) == 1 else METRICS[metric](*columns))
