"""Who uses which expert in validation, at some moments, how evenly over all of them, and how far gates moved."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fairseq_mtmoe.analysis.expert_use import entropies
from fairseq_mtmoe.analysis.gates import gate_series
from fairseq_mtmoe.analysis.run_facts.fields import Entropy, Experts, Gates
from fairseq_mtmoe.analysis.run_facts.reading import number, of_first_subset
from fairseq_mtmoe.analysis.run_facts.training import evenly
from fairseq_mtmoe.analysis.run_log import Event
from fairseq_mtmoe.errors import UserError

MOST_MOMENTS = 30
MOST_SHARES = 200_000
"""Numbers of a page's heat maps: a few megabytes."""
MOST_ENTROPIES = 100
EVERYBODY = "all tokens"
"""The row of a layer that is not told whose tokens it has."""


@dataclass(frozen=True)
class ExpertCounts:
    """Tokens of each expert in validations of one subset.

    Attributes:
        updates: of the validations.
        layers: dotted paths, encoder first.
        tasks: names of rows, in the model's order; `EVERYBODY` is last.
        counts: at each update, by layer and task, (N,) tokens; what was not counted is not there.
    """

    updates: Sequence[int]
    layers: Sequence[str]
    tasks: Sequence[str]
    counts: Sequence[Mapping[str, Mapping[str, NDArray[np.float64]]]]

    def num_experts(self, layer: str) -> int:
        """Of one layer."""
        return next(len(row) for of in self.counts for row in of.get(layer, {}).values())

    def matrix(self, place: int, layer: str) -> NDArray[np.float64]:
        """(T, N) of the tasks that had tokens at one update."""
        rows = list(self.counts[place].get(layer, {}).values())
        return np.stack(rows) if rows else np.zeros((0, self.num_experts(layer)))


def expert_counts(events: Iterable[Event]) -> ExpertCounts:
    """Of the first validation subset that the log speaks of; nothing where no layer had a token.

    Raises:
        UserError: a layer has another number of experts at one update than at another.
    """
    chosen = of_first_subset(events, "experts")
    counts = [_counts(event) for event in chosen]
    layers = list(dict.fromkeys(layer for of in counts for layer, rows in of.items() if rows))
    tasks = list(dict.fromkeys(task for event in chosen for task in event.get("task_names", ())))
    if not layers:
        return ExpertCounts([], [], [], [])
    seen = {task for of in counts for rows in of.values() for task in rows}
    for layer in layers:
        if len({len(row) for of in counts for row in of.get(layer, {}).values()}) > 1:
            raise UserError(
                f"The run log must have the same number of experts in {layer} at all updates, but has not: it is of "
                "several runs, and each needs a folder of its own."
            )
    known = [task for task in [*tasks, EVERYBODY] if task in seen]
    return ExpertCounts([int(event["update"]) for event in chosen], layers, known, counts)


def _counts(event: Event) -> dict[str, dict[str, NDArray[np.float64]]]:
    names: Sequence[str] = event.get("task_names", [])
    found: dict[str, dict[str, NDArray[np.float64]]] = {}
    for layer, rows in event.get("layers", {}).items():
        whose = [EVERYBODY] if len(rows) == 1 != len(names) else names
        if len(rows) == len(whose):
            arrays = [np.asarray(row, dtype=np.float64) for row in rows]
            found[layer] = {name: row for name, row in zip(whose, arrays, strict=True) if row.sum() > 0}
    return found


def experts_of(found: ExpertCounts, most_shares: int = MOST_SHARES) -> Experts:
    """Shares at so many moments that these are not more numbers than `most_shares`, at two of them in any case."""
    sizes = {layer: found.num_experts(layer) for layer in found.layers}
    at_once = max(1, sum(sizes.values()) * len(found.tasks))
    places = evenly(len(found.updates), max(2, min(MOST_MOMENTS, most_shares // at_once)))
    return {
        "updates": [found.updates[place] for place in places],
        "layers": list(found.layers),
        "tasks": list(found.tasks),
        "num_experts": sizes,
        "shares": [
            [[_shares(found.counts[place].get(layer, {}).get(task)) for task in found.tasks] for layer in found.layers]
            for place in places
        ],
        "thinned": len(places) < len(found.updates),
    }


def entropy_of(found: ExpertCounts) -> Entropy:
    """Of every layer and task, in shares of log N; None where nothing was counted."""
    places = evenly(len(found.updates), MOST_ENTROPIES)

    def value(layer: str, task: str, place: int) -> float | None:
        row = found.counts[place].get(layer, {}).get(task)
        return None if row is None else number(float(entropies(row[None])[0]), 4)

    return {
        "updates": [found.updates[place] for place in places],
        "layers": list(found.layers),
        "tasks": list(found.tasks),
        "values": [[[value(layer, task, place) for place in places] for task in found.tasks] for layer in found.layers],
    }


def gates_of(events: Iterable[Event]) -> Gates | None:
    """Of the first validation subset that the log speaks of; None where nothing was logged."""
    chosen = of_first_subset(events, "gates")
    chosen = [chosen[place] for place in evenly(len(chosen), MOST_ENTROPIES)]
    series = gate_series(chosen)
    if not series.figures:
        return None
    figures = {
        name: {layer: [number(value, 4) for value in values] for layer, values in rows.items()}
        for name, rows in series.figures.items()
    }
    return {"updates": series.updates, "figures": figures}


def _shares(row: NDArray[np.float64] | None) -> list[float]:
    return [] if row is None else [round(share, 4) for share in (row / row.sum()).tolist()]
