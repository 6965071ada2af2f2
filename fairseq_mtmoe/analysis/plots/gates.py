"""Draws how alike the tasks' gates are: cosines between their weights, in the mean over layers and layer by layer."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from fairseq_mtmoe.analysis.gates import TaskGates, mean_similarity
from fairseq_mtmoe.analysis.plots.matrices import Panel, Scale, apart, matrices_figure

LEAST = 0.25  # of the scale: chance, some hundredths, stays pale
# Orange and purple can be told apart with any colour vision; in grey the numbers say the sign.
COLORS = "PuOr"
NOTE = (
    "Cosine between the weights of two tasks' gates, without what all experts' rows have in common, which chooses "
    "nothing. Near 0: the gates have nothing to do with each other, as at the start."
)


def gates_figure(runs: Mapping[str, TaskGates]) -> Figure:
    """Of one run a panel for the mean over its layers, and one for each layer; of several the mean of each.

    Args:
        runs: their gates, by their names.
    """
    panels = _panels(runs)
    limit = max([LEAST, *np.abs(apart(panels))])
    return matrices_figure(panels, Scale(COLORS, -limit, limit), "How alike the tasks' gates are", NOTE)


def _panels(runs: Mapping[str, TaskGates]) -> dict[str, Panel]:
    """By their titles, the tasks and the cosines of each panel."""
    if len(runs) > 1:
        return {name: (gates.tasks, mean_similarity(gates.similarities())) for name, gates in runs.items()}
    (gates,) = runs.values()
    layers = gates.similarities()
    panels = {"all layers": mean_similarity(layers), **(layers if len(layers) > 1 else {})}
    return {title: (gates.tasks, matrix) for title, matrix in panels.items()}
