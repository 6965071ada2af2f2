"""What experts, gates and task embeddings have learned: how even, how alike, how far from their start."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]
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


def entropies(counts_TN: Matrix) -> Matrix:
    """(T,) −Σ p log p of each task's shares p of N experts, divided by log N: from 0, all on one, to 1, even.

    NaN of a task without tokens, and of a single expert.
    """
    totals_T = counts_TN.sum(axis=1)
    num_experts = counts_TN.shape[1]
    if num_experts < 2:
        return np.full(len(counts_TN), np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        shares_TN = counts_TN / totals_T[:, None]
        terms_TN = np.where(shares_TN > 0, -shares_TN * np.log(shares_TN), 0.0)
    found_T: Matrix = terms_TN.sum(axis=1) / np.log(num_experts)
    return np.where(totals_T > 0, found_T, np.nan)


def used_experts(counts_TN: Matrix) -> NDArray[np.bool_]:
    """(N,) which experts get `LEAST_SHARE` of their fair share, or more, of some task's tokens (or shares of them)."""
    totals_T = counts_TN.sum(axis=1)
    known_TN = counts_TN[totals_T > 0] / totals_T[totals_T > 0, None]
    found_N: NDArray[np.bool_] = (known_TN * counts_TN.shape[1] >= LEAST_SHARE).any(axis=0)
    return found_N


def gate_similarities(weight_TNH: NDArray[np.floating]) -> Matrix:
    """(T, T) cosines between the gates that T tasks have in a layer; NaN beside a gate that chooses nothing.

    What a gate's rows have in common is taken away first: it adds the same to the scores of all experts, and so changes
    neither the choice nor the weight. Experts are the same in all gates of a layer, so rows need no matching.
    """
    weights = weight_TNH.astype(np.float64)
    rows = (weights - weights.mean(axis=1, keepdims=True)).reshape(len(weights), -1)
    lengths = np.linalg.norm(rows, axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        cosines: Matrix = rows @ rows.T / np.outer(lengths, lengths)
    return cosines


def plane_of(table_KD: NDArray[np.floating]) -> tuple[Matrix, tuple[float, float]]:
    """Principal components of K embeddings: coordinates on the first two, (K, 2), and their shares of the variance.

    The sign of an axis is that with which the embedding furthest out on it has a positive coordinate.
    """
    centred_KD = table_KD.astype(np.float64) - table_KD.astype(np.float64).mean(axis=0)
    left_KR, lengths_R, _ = np.linalg.svd(centred_KD, full_matrices=False)
    places_KR = np.zeros((len(table_KD), 2))
    count = min(2, len(lengths_R))
    places_KR[:, :count] = left_KR[:, :count] * lengths_R[:count]
    furthest = np.take_along_axis(places_KR, np.abs(places_KR).argmax(axis=0)[np.newaxis], axis=0)
    places_KR *= np.where(furthest < 0, -1.0, 1.0)
    variances = np.zeros(2)
    variances[:count] = lengths_R[:count] ** 2
    first, second = variances / max(float((lengths_R**2).sum()), 1e-300)
    return places_KR, (float(first), float(second))


def unmoved(validations: Sequence[Mapping[str, Mapping[str, float | None]]]) -> dict[str, list[str]]:
    """The layers whose gates have hardly learned, by what says so.

    A gate's gradients are proportional to `blend`: while that is near 0, the gate moves by chance.

    Args:
        validations: the last ones, which must agree; of each layer `blend` and `moved`, as the run log's event `gates`
            has them.
    """
    found: dict[str, list[str]] = {}
    for layer in validations[-1] if validations else ():
        if _most(validations, layer, "moved") < LEAST_MOVED:
            found.setdefault(f"weights moved by less than {LEAST_MOVED:g} of their first length", []).append(layer)
        elif _most(validations, layer, "blend") < LEAST_BLEND:
            found.setdefault(f"`blend` is between -{LEAST_BLEND:g} and {LEAST_BLEND:g}", []).append(layer)
    return found


def _most(validations: Sequence[Mapping[str, Mapping[str, float | None]]], layer: str, name: str) -> float:
    values = [one.get(layer, {}).get(name) for one in validations]
    return max(math.inf if value is None else abs(value) for value in values)
