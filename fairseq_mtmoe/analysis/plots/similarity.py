"""Draws covariance similarity: between the tasks in each model, and beside what they gained (CA-MTL, figure 6)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fairseq_mtmoe.analysis.plots.matrices import Scale, apart, matrices_figure
from fairseq_mtmoe.analysis.plots.sheet import GREY, LABEL_SIZE, LOOKS, STYLE, Sheet, shades
from fairseq_mtmoe.analysis.similarity import ModelSimilarities

COLORS = "viridis"  # can be told apart with any colour vision, and in grey
LEAST = 0.05  # of the scale: what differs less looks alike
NOTE = (
    "CovSim of the inputs of the first block over all tokens of two tasks (equation 7 of CA-MTL): 0 in orthogonal "
    "subspaces, 1 along one line."
)
GAINED = (
    "Each task in a model of all tasks: its mean covariance similarity to the others, and its score beside that of the "
    "model that was trained on it alone. Crosses: the same similarity between these models, each of one task."
)


def similarity_figure(models: Sequence[ModelSimilarities]) -> Figure:
    """A panel of the tasks with each other for each model."""
    panels = {model.name: (model.tasks, model.between) for model in models}
    known = apart(panels)
    low, high = float(known.min()), float(known.max())
    low = min(low, high - LEAST)
    return matrices_figure(panels, Scale(COLORS, low, high), "How alike tasks look to the first block", NOTE)


def improvement_figure(together: Sequence[ModelSimilarities], alone: ModelSimilarities) -> Figure:
    """What tasks gained over their mean similarity to the others: a point for each task and model.

    Args:
        together: models of all tasks; one of them knows scores.
        alone: those of one task each.
    """
    tasks = alone.tasks
    sheet = Sheet(1, 5.2, [3.6], legend_entries=len(together) + 1, notes=[GAINED], top=0.6)
    colors = dict(zip(tasks, shades(len(tasks)), strict=True))
    with matplotlib.rc_context(STYLE):
        sheet.title("What tasks gained, and how alike they look")
        sheet.notes()
        axes = sheet.axes(0, 0)
        axes.grid()
        axes.axhline(0, color=GREY, linewidth=0.8)
        axes.set_xlabel("mean covariance similarity to the other tasks")
        axes.set_ylabel("score, % above single-task")
        for task in tasks:
            _draw_task(axes, task, together, alone, colors[task])
        markers = [*(LOOKS[number % len(LOOKS)].marker for number in range(len(together))), "x"]
        names = [*(model.name for model in together), alone.name]
        sheet.legend([
            Line2D([], [], color="black", marker=marker, linestyle="", label=name)
            for marker, name in zip(markers, names, strict=True)
        ])  # fmt: skip
    return sheet.figure


def _draw_task(
    axes: Axes, task: str, together: Sequence[ModelSimilarities], alone: ModelSimilarities, color: str
) -> None:
    """A task's points in all models, joined by a line."""
    gains = [model.improvements(alone).get(task, math.nan) for model in together]
    if np.isnan(gains).all():
        return
    means = [model.means[task] for model in together]
    axes.plot([alone.means[task], *means], [0.0, *gains], color=color, linewidth=0.7, gid=task)
    axes.plot([alone.means[task]], [0.0], color=color, marker="x", linestyle="")
    for number, point in enumerate(zip(means, gains, strict=True)):
        axes.plot(*([value] for value in point), color=color, marker=LOOKS[number % len(LOOKS)].marker, linestyle="")
    last = max(index for index, gain in enumerate(gains) if not math.isnan(gain))
    axes.annotate(task, (means[last], gains[last]), (4, 3), textcoords="offset points", fontsize=LABEL_SIZE)
