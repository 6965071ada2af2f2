"""Draws how alike the tasks' gates are: cosines between their weights, in the mean over layers and layer by layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fairseq_mtmoe.analysis.gates import Matrix, TaskGates, mean_similarity
from fairseq_mtmoe.analysis.plots.sheet import GREY, STYLE, Sheet, text_width

COLUMNS = 4
LEAST = 0.25  # of the scale: chance, some hundredths, stays pale
MOST_NUMBERS = 12  # tasks, up to which cells have room for numbers
# Orange and purple can be told apart with any colour vision; in grey the numbers say the sign.
COLORS = "PuOr"


def gates_figure(runs: Mapping[str, TaskGates]) -> Figure:
    """Of one run a panel for the mean over its layers, and one for each layer; of several the mean of each.

    Args:
        runs: their gates, by their names.
    """
    panels = _panels(runs)
    tasks = max((gates.tasks for gates in runs.values()), key=len)
    apart = np.concatenate([matrix[~np.eye(len(matrix), dtype=bool)] for _, matrix in panels.values()])
    known = apart[np.isfinite(apart)]
    limit = max([LEAST, *np.abs(known)])
    names = text_width([name for gates in runs.values() for name in gates.tasks])
    alike = len({tuple(gates.tasks) for gates in runs.values()}) == 1  # names stand at the sheet's edges alone
    gap_x, gap_y = (0.25, 0.35) if alike else (names, names + 0.3)
    columns = min(COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    size = max(1.8, (0.4 if len(tasks) <= MOST_NUMBERS else 0.16) * len(tasks))
    note = (
        "Cosine between the weights of two tasks' gates, without what all experts' rows have in common, which chooses "
        "nothing. Near 0: the gates have nothing to do with each other, as at the start."
    )
    sheet = Sheet(columns, size, [size] * rows, gap_x=gap_x, gap_y=gap_y, left=names, top=0.7, bottom=names,
                  notes=[note])  # fmt: skip
    with matplotlib.rc_context(STYLE):
        sheet.title("How alike the tasks' gates are")
        sheet.notes()
        for index, (name, (of_panel, matrix)) in enumerate(panels.items()):
            row, column = divmod(index, columns)
            axes = sheet.axes(row, column)
            _draw(axes, of_panel, matrix, limit)
            axes.set_title(name, fontsize=8, fontweight="bold" if index == 0 else "normal")
            if alike:
                axes.tick_params(labelleft=column == 0, labelbottom=index + columns >= len(panels))
    return sheet.figure


def _panels(runs: Mapping[str, TaskGates]) -> dict[str, tuple[list[str], Matrix]]:
    """By their titles, the tasks and the cosines of each panel."""
    if len(runs) > 1:
        return {name: (gates.tasks, mean_similarity(gates.similarities())) for name, gates in runs.items()}
    (gates,) = runs.values()
    layers = gates.similarities()
    panels = {"all layers": mean_similarity(layers), **(layers if len(layers) > 1 else {})}
    return {title: (gates.tasks, matrix) for title, matrix in panels.items()}


def _draw(axes: Axes, tasks: Sequence[str], matrix: Matrix, limit: float) -> None:
    shown = np.where(np.eye(len(tasks), dtype=bool), np.nan, matrix)  # the diagonal is 1, and says nothing
    axes.imshow(shown, cmap=COLORS, vmin=-limit, vmax=limit, gid="similarity")
    axes.set_xticks(range(len(tasks)), tasks, rotation=90, fontsize=7.5)
    axes.set_yticks(range(len(tasks)), tasks, fontsize=7.5)
    axes.tick_params(length=0)
    if len(tasks) > MOST_NUMBERS:
        return
    for row, column in zip(*np.nonzero(np.isfinite(shown)), strict=True):
        value = float(shown[row, column])
        color = "white" if abs(value) > 0.7 * limit else "black"
        axes.text(column, row, _short(value), ha="center", va="center", fontsize=6.5, color=color)
    for index in np.flatnonzero(np.isnan(matrix).all(axis=1)):
        axes.text(index, index, "none", ha="center", va="center", fontsize=6, color=GREY)


def _short(value: float) -> str:
    """Such as `.12`, `−.05` and `0`."""
    hundredths = round(100 * value)
    return f"{hundredths / 100:.2f}".replace("0.", ".").replace("-", "−") if hundredths else "0"
