"""What charts, pages and training ask of figures: shares, entropies, what moved or is alike, what to show."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fairseq_mtmoe.analysis.rows import EVERYBODY, Row, Run, Values

LEAST_SHARE = 0.1
"""Of its fair share, 1/N of a task's tokens: an expert that gets less of every task is not used."""
FIGURES = {
    "blend": "blend",
    "moved": "distance of the weights from their start, in lengths of the start",
    "changed": "share of tokens with another expert than at the start",
}
"""What validations log of each layer's gate, in words."""
LAST = 3
"""Validations that must agree: what one of them says may be chance."""
LEAST_MOVED = 0.1
"""In lengths of the first weights."""
LEAST_BLEND = 0.01
"""What `blend` multiplies is near 1 at most for a decided gate of a few experts: this is about 1% of an output."""


def entropies(counts_TN: Values) -> Values:
    """(T,) −Σ p log p of each task's shares p of N experts, divided by log N: from 0, all on one, to 1, even.

    NaN of a task without tokens, and of a single expert.
    """
    totals_T = counts_TN.sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        shares_TN = counts_TN / totals_T[:, None]
        terms_TN = np.where(shares_TN > 0, -shares_TN * np.log(shares_TN), 0.0)
        found_T: Values = terms_TN.sum(axis=1) / np.log(counts_TN.shape[1])
    return np.where(totals_T > 0, found_T, np.nan)


def used_experts(counts_TN: Values) -> NDArray[np.bool_]:
    """(N,) which experts get `LEAST_SHARE` of their fair share, or more, of some task's tokens (or shares of them)."""
    totals_T = counts_TN.sum(axis=1)
    known_TN = counts_TN[totals_T > 0] / totals_T[totals_T > 0, None]
    found_N: NDArray[np.bool_] = (known_TN * counts_TN.shape[1] >= LEAST_SHARE).any(axis=0)
    return found_N


def gate_similarities(weight_TNH: NDArray[np.floating]) -> Values:
    """(T, T) cosines between the gates that T tasks have in a layer; NaN beside a gate that chooses nothing.

    What a gate's rows have in common, which adds the same to the scores of all experts, is taken away first.
    """
    weights = weight_TNH.astype(np.float64)
    rows = (weights - weights.mean(axis=1, keepdims=True)).reshape(len(weights), -1)
    lengths = np.linalg.norm(rows, axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        cosines: Values = rows @ rows.T / np.outer(lengths, lengths)
    return cosines


def plane_of(table_KD: NDArray[np.floating]) -> tuple[Values, tuple[float, float]]:
    """Principal components of K embeddings: coordinates on the first two, (K, 2), and their shares of the variance.

    The sign of an axis is that with which the embedding furthest out on it has a positive coordinate.
    """
    centred_KD = table_KD.astype(np.float64) - table_KD.astype(np.float64).mean(axis=0)
    left_KR, lengths_R, _ = np.linalg.svd(centred_KD, full_matrices=False)
    points_K2 = np.pad(left_KR * lengths_R, ((0, 0), (0, 2)))[:, :2]
    furthest = np.take_along_axis(points_K2, np.abs(points_K2).argmax(axis=0)[np.newaxis], axis=0)
    first, second, *_ = np.pad(lengths_R**2, (0, 2)) / max(float((lengths_R**2).sum()), 1e-300)
    return points_K2 * np.where(furthest < 0, -1.0, 1.0), (float(first), float(second))


def unmoved(validations: Sequence[Mapping[str, Mapping[str, float | None]]]) -> dict[str, list[str]]:
    """The layers whose gates have hardly learned in the last validations, which must agree, by what says so.

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
    """(M, N) each expert's share of the tokens; NaN where none were counted."""
    found: Values = row.value / row.value.sum(axis=1, keepdims=True)
    return found


def shift(before_N: Values, after_N: Values) -> float:
    """The least share of tokens that went to other experts between two moments: the total variation distance."""
    return float(np.abs(before_N - after_N).sum() / 2)


def moments(updates: Values, wanted: Sequence[int] = ()) -> list[int]:
    """Indices of the updates to show: those nearest to the wanted ones, else an early, a middle and a late one."""
    if not len(updates):
        return []
    targets = wanted or (updates[0], (updates[0] + updates[-1]) / 2, updates[-1])
    return sorted({int(np.abs(updates - target).argmin()) for target in targets})


def evenly(count: int, most: int) -> list[int]:
    """Indices of at most so many of `count` things, the first and the last among them, evenly between."""
    return sorted({round(index) for index in np.linspace(0, count - 1, min(count, most)).tolist()})


def expert_tasks(run: Run) -> list[str]:
    """The tasks whose experts are counted, in the model's order."""
    return [task for task in dict.fromkeys(row.task for row in run.of("experts")) if task != EVERYBODY]


def expert_layers(run: Run) -> list[str]:
    """The layers that know the tasks of their tokens, encoder first."""
    return list(dict.fromkeys(row.layer for row in run.of("experts") if row.task != EVERYBODY))


def shown_tasks(run: Run) -> list[str]:
    """The two languages with the most and the two with the least training data (all, if there are not more).

    Of a benchmark all tasks up to ten: it has few, and each asks for something else.
    """
    ranked = sorted(expert_tasks(run), key=lambda task: -run.data.get(task, 0.0))
    most = 10 if run.unit == "task" else 4
    return ranked if len(ranked) <= most else ranked[: most // 2] + ranked[-(most // 2) :]


def shown_layers(run: Run, runs: int) -> list[str]:
    """Up to four expert layers spread over the model, the first and the last among them; of several runs the last."""
    layers = expert_layers(run)
    return layers[-1:] if runs > 1 else [layers[index] for index in evenly(len(layers), 4)]


def first_metric(run: Run, task: str) -> str:
    """The metric of a benchmark's set that its averages are of."""
    return next(row.metric for row in run.of("task", task=task))
