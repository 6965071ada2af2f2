"""Draws the map of task embeddings, one panel for each run."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from fairseq_mtmoe.analysis.embeddings import TaskEmbeddingTable
from fairseq_mtmoe.analysis.plots.sheet import GREY, LABEL_SIZE, LOOKS, STYLE, Sheet, percent, shades, text_width

COLUMNS = 3
NOTE = "The first two principal components of the tasks' embeddings, with their shares of the variance between tasks."


def embeddings_figure(runs: Mapping[str, TaskEmbeddingTable]) -> Figure:
    """Where each task's embedding lies.

    Args:
        runs: their tables, by their names.
    """
    columns = min(COLUMNS, len(runs))
    right = text_width([task for table in runs.values() for task in table.tasks])
    sheet = Sheet(columns, 3.4, [3.4] * -(-len(runs) // columns), gap_x=right + 0.8, gap_y=0.9, right=right, top=0.75,
                  left=1.1, notes=[NOTE])  # fmt: skip
    with matplotlib.rc_context(STYLE):
        sheet.title("Map of the task embeddings")
        sheet.notes()
        for index, (name, table) in enumerate(runs.items()):
            axes = sheet.axes(index // columns, index % columns)
            places_K2, (first, second) = table.plane()
            axes.axhline(0, color=GREY, linewidth=0.5)
            axes.axvline(0, color=GREY, linewidth=0.5)
            for number, (task, color) in enumerate(zip(table.tasks, shades(len(table.tasks)), strict=True)):
                x, y = places_K2[number].tolist()
                look = LOOKS[number % len(LOOKS)]
                axes.plot([x], [y], color=color, marker=look.marker, linestyle="", gid=task)
                axes.annotate(task, (x, y), (4, 3), textcoords="offset points", fontsize=LABEL_SIZE)
            axes.set_xlabel(percent(first))
            axes.set_ylabel(percent(second))
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_major_locator(MaxNLocator(3))
                axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.2g}"))
            axes.set_aspect("equal", adjustable="datalim")
            axes.set_title(name if len(runs) > 1 else "", loc="left", fontweight="bold")
    return sheet.figure
