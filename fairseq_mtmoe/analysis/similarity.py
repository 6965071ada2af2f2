"""Covariance similarity of tasks' data (CA-MTL, equation 7; Wu et al. 2020).

CovSim_ij = ‖(U_i D_i^½)ᵀ U_j D_j^½‖_F / (‖U_i D_i^½‖_F ‖U_j D_j^½‖_F), from 0 in orthogonal subspaces to 1 along one
line. U_i D_i U_iᵀ is the best approximation of X_iᵀX_i of the least rank that holds 99% of its spectrum. X_i, which is
not centred, has a row for each token of task i: its input of the first block.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairseq_mtmoe.analysis.tables import Table, as_json, bullets, document

Matrix = NDArray[np.float64]
HELD = 0.99  # share of the spectrum
NOTE = (
    "Covariance similarity (CA-MTL, equation 7) of two tasks' inputs of the model's first block. X has a row for each "
    "token, without padding, of a set's sequences; XᵀX (not centred) is taken in the least rank that holds 99% of the "
    "spectrum. Text that is in several sequences counts in each: a premise or passage once for every candidate (COPA, "
    "ReCoRD), and the overlap of a passage's windows once for every window. Mean: over a task's similarities to all "
    "others."
)
SINGLE_NOTE = (
    "Single-task: between models of one task each, task i in its own model with task j in its own. A model's column is "
    "the mean between the tasks in this one model, as in figure 6; `× single-task` compares the task in this model "
    "with the others in theirs. Score: improvement over the single-task model's score, in percent."
)


@dataclass(frozen=True)
class TaskInputs:
    """A task's inputs of the first block: Σ x·xᵀ, (H, H), over its tokens."""

    sums_HH: Matrix
    tokens: int

    @cached_property
    def factor_HR(self) -> Matrix:
        """U D^½ of the sums, (H, R); R is the least rank that holds 99% of the spectrum."""
        values_H, vectors_HH = np.linalg.eigh(self.sums_HH)
        values_H = values_H[::-1].clip(min=0)  # rounding leaves some slightly below 0
        held_H = np.cumsum(values_H)
        rank = int(np.searchsorted(held_H, HELD * held_H[-1])) + 1
        factor_HR: Matrix = vectors_HH[:, ::-1][:, :rank] * np.sqrt(values_H[:rank])
        return factor_HR


def similarity(one_HR: Matrix, other_HS: Matrix) -> float:
    """Return CovSim of two tasks by their factors."""
    return float(np.linalg.norm(one_HR.T @ other_HS) / (np.linalg.norm(one_HR) * np.linalg.norm(other_HS)))


@dataclass(frozen=True)
class ModelSimilarities:
    """Similarities of T tasks in one model or in their own; scores in percent."""

    name: str
    checkpoints: Sequence[str]
    inputs: Mapping[str, TaskInputs]
    scores: Mapping[str, float]

    @property
    def tasks(self) -> list[str]:
        """The tasks' names."""
        return list(self.inputs)

    def between(self, other: ModelSimilarities) -> Matrix:
        """(T, T) Return similarities of the tasks here to the tasks there."""
        columns = [other.inputs[task].factor_HR for task in self.inputs]
        return np.array([[similarity(row.factor_HR, column) for column in columns] for row in self.inputs.values()])

    def means(self, other: ModelSimilarities | None = None) -> dict[str, float]:
        """Return CovSim_i of each task: its mean similarity to the other tasks."""
        between_TT = self.between(other or self)
        means_T = (between_TT.sum(axis=1) - between_TT.diagonal()) / (len(between_TT) - 1)
        return dict(zip(self.inputs, means_T.tolist(), strict=True))

    def improvements(self, other: ModelSimilarities) -> dict[str, float]:
        """Return each task's score relative to the other model's, as a gain in percent.

        Tasks without a score above 0 there are left out.
        """
        known = [task for task in self.inputs if task in self.scores and other.scores.get(task, 0) > 0]
        return {task: 100 * (self.scores[task] / other.scores[task] - 1) for task in known}


def tables(models: Sequence[ModelSimilarities], alone: ModelSimilarities | None) -> dict[str, Table]:
    """Return a table per model, and one beside the single-task models, by title."""
    everything = [*models, *([alone] if alone else [])]
    found = {f"Similarities: {model.name}": _square(model) for model in everything}
    return {"Mean similarity to the other tasks": _beside(models, alone), **found} if alone else found


def _square(model: ModelSimilarities) -> Table:
    rows, means = [], model.means()
    for (task, inputs), values in zip(model.inputs.items(), model.between(model).tolist(), strict=True):
        cells = ["" if other == task else f"{value:.4f}" for other, value in zip(model.tasks, values, strict=True)]
        rows.append([task, f"{inputs.tokens:,}", str(inputs.factor_HR.shape[1]), *cells, f"{means[task]:.4f}"])
    return Table(["task", "tokens", "rank", *model.tasks, "mean"], rows)


def _beside(models: Sequence[ModelSimilarities], alone: ModelSimilarities) -> Table:
    columns: list[tuple[str, str, dict[str, float]]] = [(alone.name, ".4f", alone.means())]
    for model in models:
        means = model.means()
        columns += [
            (model.name, ".4f", means),
            ("change", "+.4f", {task: mean - columns[0][2][task] for task, mean in means.items()}),
            (f"{model.name} × {alone.name}", ".4f", model.means(alone)),
            ("score, %", "+.1f", model.improvements(alone)),
        ]
    rows = [[task, *(f"{of[task]:{form}}" if task in of else "" for _, form, of in columns)] for task in alone.tasks]
    mean = [f"{fmean(of.values()):{form}}" if of else "" for _, form, of in columns]
    return Table(["task", *(name for name, _, _ in columns)], rows, [["mean", *mean]])


def notes(alone: ModelSimilarities | None) -> list[str]:
    """Return the notes below the tables."""
    return [NOTE, *([SINGLE_NOTE] if alone else [])]


def to_markdown(
    models: Sequence[ModelSimilarities], alone: ModelSimilarities | None, settings: Mapping[str, object]
) -> str:
    """Return the tables, notes and settings in Markdown."""
    parts = [f"## {title}\n\n{table.in_markdown()}" for title, table in tables(models, alone).items()]
    return document([*parts, *notes(alone)], bullets(settings))


def to_json(
    models: Sequence[ModelSimilarities], alone: ModelSimilarities | None, settings: Mapping[str, object]
) -> str:
    """Return `{"settings", "models", "single_task"}` in JSON.

    A model is `{"checkpoints", "tasks": {task: {"tokens", "rank", …}}}`.
    """
    content = {"settings": dict(settings), "models": {model.name: _fields(model, alone) for model in models}}
    return as_json({**content, **({"single_task": _fields(alone, None)} if alone else {})})


def _fields(model: ModelSimilarities, alone: ModelSimilarities | None) -> dict[str, Any]:
    means, found = model.means(), {}
    optional = {"score": model.scores, "mean_with_single_task": model.means(alone) if alone else {},
                "score_improvement": model.improvements(alone) if alone else {}}  # fmt: skip
    for (task, inputs), row in zip(model.inputs.items(), model.between(model).tolist(), strict=True):
        others = {name: value for name, value in zip(model.tasks, row, strict=True) if name != task}
        more = {name: of[task] for name, of in optional.items() if task in of}
        counts = {"tokens": inputs.tokens, "rank": inputs.factor_HR.shape[1]}
        found[task] = {**counts, "mean": means[task], "similarities": others, **more}
    return {"checkpoints": list(model.checkpoints), "tasks": found}
