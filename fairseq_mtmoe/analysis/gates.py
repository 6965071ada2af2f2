"""What gates have learned: how alike those of tasks are, and which have hardly moved from their start."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

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


@dataclass(frozen=True)
class GateSeries:
    """How far gates are from their start, validation by validation.

    Attributes:
        updates: of the validations.
        figures: by `blend`, `moved` and `changed`, as far as the log has them, and by layer: a value for each update;
            NaN where it is not known.
    """

    updates: list[int] = field(default_factory=list)
    figures: dict[str, dict[str, list[float]]] = field(default_factory=dict)


def gate_series(events: Sequence[Mapping[str, Any]]) -> GateSeries:
    """Of a run log's events `gates`."""
    layers = dict.fromkeys(layer for event in events for layer in event.get("layers", {}))
    found: dict[str, dict[str, list[float]]] = {}
    for name in FIGURES:
        rows = {layer: [_figure(event, layer, name) for event in events] for layer in layers}
        known = {layer: row for layer, row in rows.items() if not all(map(math.isnan, row))}
        found |= {name: known} if known else {}
    return GateSeries([int(event["update"]) for event in events], found)


def _figure(event: Mapping[str, Any], layer: str, name: str) -> float:
    value = event.get("layers", {}).get(layer, {}).get(name)
    return math.nan if value is None else float(value)


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
