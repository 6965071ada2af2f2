"""What figures and pages ask of rows: shares, entropies, what moved, which moments and tasks to show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fairseq_mtmoe.analysis.routing import entropies
from fairseq_mtmoe.analysis.rows import EVERYBODY, Row, Run, Values


def shares(row: Row) -> Values:
    """(M, N) each expert's share of the tokens; NaN where none were counted."""
    found: Values = row.value / row.value.sum(axis=1, keepdims=True)
    return found


def entropy(row: Row) -> Values:
    """(M,) how evenly tokens are spread over experts, from 0 to 1; NaN where none were counted."""
    return entropies(row.value)


def shift(before_N: Values, after_N: Values) -> float:
    """The least share of tokens that went to other experts between two moments: the total variation distance."""
    return float(np.abs(before_N - after_N).sum() / 2)


def moments(updates: Values, wanted: Sequence[int] = ()) -> list[int]:
    """Places of the updates to show: those nearest to the wanted ones, else an early, a middle and a late one."""
    if not len(updates):
        return []
    targets = wanted or (updates[0], (updates[0] + updates[-1]) / 2, updates[-1])
    return sorted({int(np.abs(updates - target).argmin()) for target in targets})


def evenly(count: int, most: int) -> list[int]:
    """Places of at most so many of `count` things, the first and the last among them, evenly between."""
    if count <= most:
        return list(range(count))
    return sorted({round(place) for place in np.linspace(0, count - 1, most).tolist()})


def by_resource(tasks: Sequence[str], data: Mapping[str, float]) -> list[str]:
    """The tasks with the most training data first; tasks of which nothing is known keep their order, last."""
    return sorted(tasks, key=lambda task: -data.get(task, 0.0))


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
    ranked = by_resource(expert_tasks(run), run.data)
    most = 10 if run.unit == "task" else 4
    return ranked if len(ranked) <= most else ranked[: most // 2] + ranked[-(most // 2) :]


def shown_layers(run: Run, runs: int) -> list[str]:
    """Up to four expert layers spread over the model, the first and the last among them; of several runs the last."""
    layers = expert_layers(run)
    return layers[-1:] if runs > 1 else [layers[place] for place in evenly(len(layers), 4)]


def first_metric(run: Run, task: str) -> str:
    """The metric of a benchmark's set that its averages are of."""
    return next(row.metric for row in run.of("task", task=task))
