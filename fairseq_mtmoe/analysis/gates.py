"""How alike the gates of tasks are, from a model's weights alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class TaskGates:
    """The gates of a model that has one for each task.

    Attributes:
        tasks: the names of the T tasks.
        weights: by layer, (T, N, H): of each task a row for each expert.
    """

    tasks: list[str]
    weights: Mapping[str, NDArray[np.floating]]

    def similarities(self) -> dict[str, Matrix]:
        """Cosines between the tasks' gates in each layer, (T, T); NaN beside a gate that chooses nothing.

        What a gate's rows have in common is taken away first: it adds the same to the scores of all experts, and so
        changes neither the choice nor the weight. Experts are the same in all gates of a layer, so rows need no
        matching.
        """
        return {layer: _cosines(weight.astype(np.float64)) for layer, weight in self.weights.items()}


def _cosines(weight_TNH: Matrix) -> Matrix:
    rows = (weight_TNH - weight_TNH.mean(axis=1, keepdims=True)).reshape(len(weight_TNH), -1)
    lengths = np.linalg.norm(rows, axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        cosines: Matrix = rows @ rows.T / np.outer(lengths, lengths)
    return cosines


def mean_similarity(similarities: Mapping[str, Matrix]) -> Matrix:
    """The mean over the layers, (T, T)."""
    mean: Matrix = np.mean(list(similarities.values()), axis=0)
    return mean
