"""Draws how alike tasks are: a square of numbers for each model or layer, a row and a column for each task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fairseq_mtmoe.analysis.plots.sheet import GREY, STYLE, Sheet, text_width

Matrix = NDArray[np.float64]
Panel = tuple[Sequence[str], Matrix]  # the tasks, and what there is between them

COLUMNS = 4
MOST_NUMBERS = 12  # tasks, up to which cells have room for numbers


@dataclass(frozen=True)
class Scale:
    """Which colour a number has.

    Attributes:
        colors: matplotlib's name of the colours.
        low, high: the numbers at their ends.
    """

    colors: str
    low: float
    high: float

    def is_dark(self, value: float) -> bool:
        """Whether what is written on it must be white."""
        place = (value - self.low) / max(self.high - self.low, 1e-9)
        red, green, blue, _ = matplotlib.colormaps[self.colors](place)
        return bool(0.3 * red + 0.59 * green + 0.11 * blue < 0.5)


def apart(panels: Mapping[str, Panel]) -> Matrix:
    """The finite numbers between different tasks."""
    values = np.concatenate([matrix[~np.eye(len(matrix), dtype=bool)] for _, matrix in panels.values()])
    known: Matrix = values[np.isfinite(values)]
    return known


def matrices_figure(panels: Mapping[str, Panel], scale: Scale, title: str, note: str) -> Figure:
    """A panel for each, under its name; the first one's is bold."""
    tasks = max((tasks for tasks, _ in panels.values()), key=len)
    names = text_width([name for tasks, _ in panels.values() for name in tasks])
    alike = len({tuple(tasks) for tasks, _ in panels.values()}) == 1  # names stand at the sheet's edges alone
    gap_x, gap_y = (0.25, 0.35) if alike else (names, names + 0.3)
    columns = min(COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    size = max(1.8, (0.4 if len(tasks) <= MOST_NUMBERS else 0.16) * len(tasks))
    sheet = Sheet(columns, size, [size] * rows, gap_x=gap_x, gap_y=gap_y, left=names, top=0.7, bottom=names,
                  notes=[note])  # fmt: skip
    with matplotlib.rc_context(STYLE):
        sheet.title(title)
        sheet.notes()
        for index, (name, (of_panel, matrix)) in enumerate(panels.items()):
            row, column = divmod(index, columns)
            axes = sheet.axes(row, column)
            _draw(axes, of_panel, matrix, scale)
            axes.set_title(name, fontsize=8, fontweight="bold" if index == 0 else "normal")
            if alike:
                axes.tick_params(labelleft=column == 0, labelbottom=index + columns >= len(panels))
    return sheet.figure


def _draw(axes: Axes, tasks: Sequence[str], matrix: Matrix, scale: Scale) -> None:
    shown = np.where(np.eye(len(tasks), dtype=bool), np.nan, matrix)  # a task with itself is not asked for
    axes.imshow(shown, cmap=scale.colors, vmin=scale.low, vmax=scale.high, gid="similarity")
    axes.set_xticks(range(len(tasks)), tasks, rotation=90, fontsize=7.5)
    axes.set_yticks(range(len(tasks)), tasks, fontsize=7.5)
    axes.tick_params(length=0)
    if len(tasks) > MOST_NUMBERS:
        return
    for row, column in zip(*np.nonzero(np.isfinite(shown)), strict=True):
        value = float(shown[row, column])
        color = "white" if scale.is_dark(value) else "black"
        axes.text(column, row, _short(value), ha="center", va="center", fontsize=6.5, color=color)
    for index in np.flatnonzero(np.isnan(matrix).all(axis=1)):
        axes.text(index, index, "none", ha="center", va="center", fontsize=6, color=GREY)


def _short(value: float) -> str:
    """Such as `.12`, `−.05` and `0`."""
    hundredths = round(100 * value)
    return f"{hundredths / 100:.2f}".replace("0.", ".").replace("-", "−") if hundredths else "0"
