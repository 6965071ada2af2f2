"""Draws what gates have learned: cosines between the weights of tasks' gates, in the mean over layers and layer by
layer; and how far gates are from their start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fairseq_mtmoe.analysis.gates import FIGURES, TaskGates, mean_similarity
from fairseq_mtmoe.analysis.plots.matrices import Panel, Scale, apart, matrices_figure
from fairseq_mtmoe.analysis.plots.sheet import (
    FEW,
    LOOKS,
    STYLE,
    Sheet,
    count_axis,
    label_ends,
    last_point,
    shades,
    text_width,
)
from fairseq_mtmoe.analysis.series import Run

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


def movement_figure(runs: Sequence[Run]) -> Figure:
    """Over updates a line for each layer, of `blend`, of the weights and of the tokens; runs side by side."""
    shown = [name for name in FIGURES if any(name in run.gates.figures for run in runs)]
    layers = {layer for run in runs for rows in run.gates.figures.values() for layer in rows}
    labels = text_width([f"{layer} 0.000" for layer in layers])
    sheet = Sheet(len(runs), 4.2, [max(1.7, 0.14 * len(layers))] * len(shown), right=labels, gap_x=labels + 0.6,
                  gap_y=0.45, top=0.85)  # fmt: skip
    with matplotlib.rc_context(STYLE):
        sheet.title("How far gates are from their start")
        for column, run in enumerate(runs):
            for row, name in enumerate(shown):
                axes = sheet.axes(row, column)
                axes.set_title(FIGURES[name], loc="left", fontsize=8)
                _draw(axes, run.gates.updates, run.gates.figures.get(name, {}))
                if row < len(shown) - 1:
                    axes.set_xlabel("")
            if len(runs) > 1:
                sheet.figure.axes[column * len(shown)].set_title(run.name, loc="right", fontweight="bold")
    return sheet.figure


def _draw(axes: Axes, updates: Sequence[int], rows: Mapping[str, Sequence[float]]) -> None:
    count_axis(axes, updates, "updates")
    axes.grid(axis="y")
    lines = []
    for (layer, values), color, look in zip(rows.items(), shades(len(rows)), cycle(LOOKS), strict=False):
        (line,) = axes.plot(
            updates, values, color=color, linestyle=look.linestyle, linewidth=1.3, gid=layer,
            marker="o" if len(updates) <= FEW else "", markersize=2.8,
        )  # fmt: skip
        lines.append(line)
    label_ends(axes, lines, [f"{line.get_gid()} {(last_point(line) or (0, 0))[1]:.3g}" for line in lines])
