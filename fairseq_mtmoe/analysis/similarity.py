"""How alike the tasks' data looks to a model: covariance similarity (CA-MTL, equation 7, after Wu et al. 2020).

Of each task i, X_i (N_i, H) are the inputs of the first block, a row for each token of its data that is no padding. Its
covariance is X_iᵀX_i, which the paper does not centre, and neither do we. U_i D_i U_iᵀ is its best approximation of the
least rank that holds 99% of the sum of its singular values, and

    CovSim_ij = ‖(U_i D_i^½)ᵀ U_j D_j^½‖_F / (‖U_i D_i^½‖_F ‖U_j D_j^½‖_F),

from 0 for data in orthogonal subspaces to 1 for data along one line. A task is less than 1 alike to itself where its
data has more than one direction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]
Vector = NDArray[np.float64]
HELD = 0.99  # of the spectrum


@dataclass(frozen=True)
class TaskInputs:
    """What a model's first block is given of a task's data.

    Attributes:
        sums_HH: Σ x xᵀ over the tokens, (H, H).
        tokens: how many there are.
        factor_HR: of the sums, see `factor`.
    """

    sums_HH: Matrix
    tokens: int
    factor_HR: Matrix

    @classmethod
    def of(cls, sums_HH: Matrix, tokens: int) -> TaskInputs:
        """With the factor of these sums."""
        return cls(sums_HH, tokens, factor(sums_HH))

    @property
    def rank(self) -> int:
        """How many directions hold 99% of the spectrum."""
        return len(self.factor_HR.T)


def factor(covariance_HH: Matrix) -> Matrix:
    """U D^½ of a covariance, (H, R), R the least rank that holds 99% of the spectrum."""
    values_H, vectors_HH = np.linalg.eigh(covariance_HH)
    values_H = values_H[::-1].clip(min=0)  # rounding leaves some a little below 0
    held_H = np.cumsum(values_H)
    rank = int(np.searchsorted(held_H, HELD * held_H[-1])) + 1
    factor_HR: Matrix = vectors_HH[:, ::-1][:, :rank] * np.sqrt(values_H[:rank])
    return factor_HR


def similarity(one_HR: Matrix, other_HS: Matrix) -> float:
    """CovSim of two tasks by their factors."""
    length = np.linalg.norm(one_HR) * np.linalg.norm(other_HS)
    return float(np.linalg.norm(one_HR.T @ other_HS) / length)


def similarities(rows: Sequence[TaskInputs], columns: Sequence[TaskInputs]) -> Matrix:
    """CovSim of each of the first with each of the others."""
    return np.array([[similarity(row.factor_HR, column.factor_HR) for column in columns] for row in rows])


def means_with_others(similarities_TT: Matrix) -> Vector:
    """Each task's mean similarity to the T - 1 other tasks, CovSim_i, (T,)."""
    T = len(similarities_TT)
    assert T > 1
    means_T: Vector = (similarities_TT.sum(axis=1) - similarities_TT.diagonal()) / (T - 1)
    return means_T


@dataclass(frozen=True)
class ModelSimilarities:
    """How alike T tasks are to a model, or each to a model of its own.

    Attributes:
        name: of the model, or of the models.
        checkpoints: that were looked at.
        inputs: of each task, by its name.
        scores: of the tasks as far as known, in percent.
    """

    name: str
    checkpoints: Sequence[str]
    inputs: Mapping[str, TaskInputs]
    scores: Mapping[str, float]

    @property
    def tasks(self) -> list[str]:
        """Their names."""
        return list(self.inputs)

    @property
    def between(self) -> Matrix:
        """Of the tasks with each other, (T, T)."""
        return similarities(list(self.inputs.values()), list(self.inputs.values()))

    @property
    def means(self) -> dict[str, float]:
        """CovSim_i of each task."""
        return dict(zip(self.tasks, means_with_others(self.between).tolist(), strict=True))

    def means_across(self, other: ModelSimilarities) -> dict[str, float]:
        """Each task's mean similarity here to the other tasks there."""
        across_TT = similarities(list(self.inputs.values()), [other.inputs[task] for task in self.tasks])
        return dict(zip(self.tasks, means_with_others(across_TT).tolist(), strict=True))

    def improvements(self, other: ModelSimilarities) -> dict[str, float]:
        """By how many percent of the other's score this one's is above it, of each task with a score above 0 there."""
        return {
            task: 100 * (self.scores[task] / other.scores[task] - 1)
            for task in self.tasks
            if task in self.scores and other.scores.get(task, 0) > 0
        }
