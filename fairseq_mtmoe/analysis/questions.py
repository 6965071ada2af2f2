"""Figures derived from rows for charts, pages and training: shares, movement, …."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fairseq_mtmoe.analysis.rows import EVERYBODY, Row, Run, Values, of_kind

LEAST_SHARE = 0.1
"""Share of a fair share, 1/N: an expert with less of every task's tokens is unused."""
FIGURES = {
    "blend": "blend",
    "moved": "distance of the weights from their start, in lengths of the start",
    "changed": "share of tokens with another expert than at the start",
}
"""The figures that validations log of each layer's gate, in words."""
LAST = 3
"""Number of validations that must agree: one alone may be chance."""
LEAST_MOVED = 0.1
"""Distance from the start, in lengths of the first weights."""
LEAST_BLEND = 0.01
"""`blend` scales a factor of at most about 1, so this is about 1% of an output."""


def entropies(counts_TN: Values) -> Values:
    """(T,) Return −Σ p log p / log N over each task's shares p of N experts.

    It is 0 if one expert gets all tokens and 1 if all get equally many; NaN without tokens, and for a single expert.
    """
    totals_T = counts_TN.sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        shares_TN = counts_TN / totals_T[:, None]
        terms_TN = np.where(shares_TN > 0, -shares_TN * np.log(shares_TN), 0.0)
        found_T: Values = terms_TN.sum(axis=1) / np.log(counts_TN.shape[1])
    return np.where(totals_T > 0, found_T, np.nan)


def used_experts(counts_TN: Values) -> NDArray[np.bool_]:
    """(N,) Return which experts get `LEAST_SHARE` of a fair share of some task."""
    totals_T = counts_TN.sum(axis=1)
    known_TN = counts_TN[totals_T > 0] / totals_T[totals_T > 0, None]
    found_N: NDArray[np.bool_] = (known_TN * counts_TN.shape[1] >= LEAST_SHARE).any(axis=0)
    return found_N


def gate_similarities(weight_TNH: NDArray[np.floating]) -> Values:
    """(T, T) Return cosines between T tasks' gates; NaN for a gate of zeros.

    The mean over a gate's rows, which adds the same to the scores of all experts, is subtracted first.
    """
    weights = weight_TNH.astype(np.float64)
    rows = (weights - weights.mean(axis=1, keepdims=True)).reshape(len(weights), -1)
    lengths = np.linalg.norm(rows, axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        cosines: Values = rows @ rows.T / np.outer(lengths, lengths)
    return cosines


def plane_of(table_KD: NDArray[np.floating]) -> tuple[Values, tuple[float, float]]:
    """Return two principal components of K embeddings, (K, 2), and variance shares.

    An axis has the sign that makes the coordinate of its furthest embedding positive.
    """
    centred_KD = table_KD.astype(np.float64) - table_KD.astype(np.float64).mean(axis=0)
    left_KR, lengths_R, _ = np.linalg.svd(centred_KD, full_matrices=False)
    points_K2 = np.pad(left_KR * lengths_R, ((0, 0), (0, 2)))[:, :2]
    furthest = np.take_along_axis(points_K2, np.abs(points_K2).argmax(axis=0)[np.newaxis], axis=0)
    first, second, *_ = np.pad(lengths_R**2, (0, 2)) / max(float((lengths_R**2).sum()), 1e-300)
    return points_K2 * np.where(furthest < 0, -1.0, 1.0), (float(first), float(second))


def unmoved(validations: Sequence[Mapping[str, Mapping[str, float | None]]]) -> dict[str, list[str]]:
    """Return layers whose gates hardly learned in these validations, by reason.

    A gate's gradients are proportional to `blend`: while that is near 0, the gate moves by chance.
    """

    def most(layer: str, name: str) -> float:
        values = [one.get(layer, {}).get(name) for one in validations]
        return max(math.inf if value is None else abs(value) for value in values)

    found: dict[str, list[str]] = {}
    for layer in validations[-1] if validations else ():
        if most(layer, "moved") < LEAST_MOVED:
            found.setdefault(f"weights moved by less than {LEAST_MOVED:g} of their first length", []).append(layer)
        elif most(layer, "blend") < LEAST_BLEND:
            found.setdefault(f"`blend` is between -{LEAST_BLEND:g} and {LEAST_BLEND:g}", []).append(layer)
    return found


def shares(row: Row) -> Values:
    """(M, N) Return each expert's share of the tokens; NaN where none were counted."""
    found: Values = row.value / row.value.sum(axis=1, keepdims=True)
    return found


def shift(before_N: Values, after_N: Values) -> float:
    """Return the least share of tokens that moved: the total variation distance."""
    return float(np.abs(before_N - after_N).sum() / 2)


def moments(updates: Values, wanted: Sequence[int] = ()) -> list[int]:
    """Return indices of the updates nearest to the wanted ones, by default three.

    The default is an early, a middle and a late update.
    """
    if not len(updates):
        return []
    targets = wanted or (updates[0], (updates[0] + updates[-1]) / 2, updates[-1])
    return sorted({int(np.abs(updates - target).argmin()) for target in targets})


def evenly(count: int, most: int) -> list[int]:
    """Return at most `most` indices of `count`, evenly from the first to the last."""
    return sorted({round(index) for index in np.linspace(0, count - 1, min(count, most)).tolist()})


def expert_tasks(run: Run) -> list[str]:
    """Return the tasks whose experts are counted, in the model's order."""
    return [task for task in dict.fromkeys(row.task for row in run.of("experts")) if task != EVERYBODY]


def fixed_layers(run: Run) -> set[str]:
    """Return the layers with fixed gates, in which each task has an expert for itself."""
    gates = [str(event.get("options", {}).get("expert_gates")) for event in of_kind(run.events, "run")]
    if "fixed" not in ",".join(gates):  # a pattern of gates is a list
        return set()
    layers = {row.layer for row in run.of("experts")}
    choosing = {row.layer for row in run.of("experts") if ((row.value > 0).sum(axis=1) > 1).any()}
    return layers - choosing


def expert_layers(run: Run) -> list[str]:
    """Return the layers that know their tokens' tasks, encoder first."""
    return list(dict.fromkeys(row.layer for row in run.of("experts") if row.task != EVERYBODY))


def shown_tasks(run: Run) -> list[str]:
    """Return the two languages with the most and the two with the least training data.

    A benchmark has up to ten tasks instead.
    """
    ranked = sorted(expert_tasks(run), key=lambda task: -run.data.get(task, 0.0))
    most = 10 if run.unit == "task" else 4
    return ranked if len(ranked) <= most else ranked[: most // 2] + ranked[-(most // 2) :]


def shown_layers(run: Run, runs: int) -> list[str]:
    """Return up to four expert layers, evenly spread; with several runs, the last."""
    layers = expert_layers(run)
    return layers[-1:] if runs > 1 else [layers[index] for index in evenly(len(layers), 4)]


def first_metric(run: Run, task: str) -> str:
    """Return the metric of a benchmark's task that the averages use."""
    return next(row.metric for row in run.of("task", task=task))
