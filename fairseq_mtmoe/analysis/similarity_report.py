"""Covariance similarities of models as tables, Markdown and JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from fairseq_mtmoe.analysis.similarity import ModelSimilarities
from fairseq_mtmoe.analysis.tables import Table

NOTE = (
    "Covariance similarity (CA-MTL, equation 7) of two tasks: of the inputs of the model's first block, a row for each "
    "token of the set's sequences that is no padding, by XᵀX (not centred) in the least rank that holds 99% of the "
    "spectrum. A text that is in several sequences counts in each: a premise or passage once for every candidate "
    "(COPA, ReCoRD), and what overlapping windows of a passage share once for every window. Mean: over a task's "
    "similarities to all others."
)
SINGLE_NOTE = (
    "Single-task: between models of one task each, task i in its own model with task j in its own. A model's column is "
    "the mean between the tasks in this one model, as in figure 6; `× single-task` has the task in this model with the "
    "others in theirs. Score: by how many percent of the single-task model's it is above it."
)


def tables(models: Sequence[ModelSimilarities], alone: ModelSimilarities | None) -> dict[str, Table]:
    """By their titles: a table of each model, and one of all beside the single-task models, if there are some."""
    everything = [*models, *([alone] if alone else [])]
    found = {f"Similarities: {model.name}": _square(model) for model in everything}
    return {"Mean similarity to the other tasks": _beside(models, alone), **found} if alone else found


def _square(model: ModelSimilarities) -> Table:
    between = model.between
    rows = [
        [task, f"{model.inputs[task].tokens:,}", str(model.inputs[task].rank),
         *("" if column == row else f"{between[row, column]:.4f}" for column in range(len(between))),
         f"{model.means[task]:.4f}"]
        for row, task in enumerate(model.tasks)
    ]  # fmt: skip
    return Table(["task", "tokens", "rank", *model.tasks, "mean"], rows)


def _beside(models: Sequence[ModelSimilarities], alone: ModelSimilarities) -> Table:
    columns = ["task", alone.name]
    cells: list[dict[str, float]] = [alone.means]
    signs = [""]
    for model in models:
        columns += [model.name, "change", f"{model.name} × {alone.name}", "score, %"]
        means = model.means
        change = {task: means[task] - alone.means[task] for task in means}
        cells += [means, change, model.means_across(alone), model.improvements(alone)]
        signs += ["", "+", "", "+"]
    digits = [1 if column == "score, %" else 4 for column in columns[1:]]
    shape = list(zip(cells, signs, digits, strict=True))
    rows = [[task, *(_cell(of.get(task), sign, digit) for of, sign, digit in shape)] for task in alone.tasks]
    mean = [_cell(fmean(of.values()) if of else None, sign, digit) for of, sign, digit in shape]
    return Table(columns, rows, [["mean", *mean]])


def _cell(value: float | None, sign: str, digits: int) -> str:
    return "" if value is None else f"{value:{sign}.{digits}f}"


def notes(alone: ModelSimilarities | None) -> list[str]:
    """What stands below the tables."""
    return [NOTE, *([SINGLE_NOTE] if alone else [])]


def to_markdown(
    models: Sequence[ModelSimilarities], alone: ModelSimilarities | None, settings: Mapping[str, object]
) -> str:
    """The tables, what they say, and what they are of."""
    parts = [f"## {title}\n\n{table.in_markdown()}" for title, table in tables(models, alone).items()]
    lines = [f"- {name}: {value}" for name, value in settings.items()]
    return "\n\n".join([*parts, *notes(alone), "\n".join(lines)]) + "\n"


def to_json(
    models: Sequence[ModelSimilarities], alone: ModelSimilarities | None, settings: Mapping[str, object]
) -> str:
    """`{"settings", "models": {name: {"checkpoints", "tasks": {task: {"tokens", "rank", …}}}}, "single_task"}`."""
    content = {"settings": dict(settings), "models": {model.name: _fields(model, alone) for model in models}}
    if alone is not None:
        content["single_task"] = _fields(alone, None)
    return json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _fields(model: ModelSimilarities, alone: ModelSimilarities | None) -> dict[str, Any]:
    between, means = model.between.tolist(), model.means
    across = model.means_across(alone) if alone else {}
    gained = model.improvements(alone) if alone else {}
    found: dict[str, dict[str, Any]] = {}
    for task, row in zip(model.tasks, between, strict=True):
        inputs = model.inputs[task]
        found[task] = {"tokens": inputs.tokens, "rank": inputs.rank, "mean": means[task]}
        found[task]["similarities"] = {
            name: value for name, value in zip(model.tasks, row, strict=True) if name != task
        }
        found[task] |= {"score": model.scores[task]} if task in model.scores else {}
        found[task] |= {"mean_with_single_task": across[task]} if task in across else {}
        found[task] |= {"score_improvement": gained[task]} if task in gained else {}
    assert all(math.isfinite(task["mean"]) for task in found.values())
    return {"checkpoints": list(model.checkpoints), "tasks": found}
