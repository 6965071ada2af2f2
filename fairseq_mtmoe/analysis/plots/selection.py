"""Draws what uncertainty sampling trained on: each task's share over time (CA-MTL, figure 8), and why (figure 5)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import cycle

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from fairseq_mtmoe.analysis.plots.sheet import (
    FEW,
    GREY,
    LOOKS,
    STYLE,
    Sheet,
    count_axis,
    label_ends,
    last_point,
    percent,
    shades,
    text_width,
)
from fairseq_mtmoe.analysis.series import Run

NOTE = (
    "Above: of which tasks the examples are that were trained on since the point before; dotted: all tasks alike. "
    "Below: how uncertain the model is of a task's candidates, entropy in shares of the most that it can be."
)


def selection_figure(runs: Sequence[Run]) -> Figure:
    """Each task's share of what was trained on over updates, and its candidates' entropy; runs side by side."""
    tasks = max(len(run.selection.trained) for run in runs)
    labels = text_width([f"{task} 0.0%" for run in runs for task in run.selection.trained])
    sheet = Sheet(len(runs), 4.6, (max(2.8, 0.13 * tasks), max(1.6, 0.13 * tasks)), right=labels, gap_x=labels + 0.5,
                  gap_y=0.2, top=0.5 if len(runs) == 1 else 0.75, notes=[NOTE])  # fmt: skip
    with matplotlib.rc_context(STYLE):
        sheet.title("What uncertainty sampling trains on")
        sheet.notes()
        for column, run in enumerate(runs):
            top, bottom = sheet.axes(0, column), sheet.axes(1, column)
            updates, shares = run.selection.updates, run.selection.shares
            _draw(top, updates, shares)
            top.axhline(1 / max(1, len(shares)), color=GREY, linestyle=":", linewidth=1)
            top.tick_params(labelbottom=False)
            top.set_xlabel("")
            _draw(bottom, updates, run.selection.entropies)
            if column == 0:
                top.set_ylabel("share of what was trained on")
                bottom.set_ylabel("relative entropy")
            seen = run.selection.share_of_data[-1]
            seen_text = "" if math.isnan(seen) else f"{percent(seen)} of the data"
            top.set_title(run.name if len(runs) > 1 else "", loc="left", fontweight="bold")
            top.set_title(seen_text, loc="right", fontsize=8)
    return sheet.figure


def _draw(axes: Axes, updates: Sequence[int], values: Mapping[str, Sequence[float]]) -> None:
    count_axis(axes, updates, "updates")
    axes.grid(axis="y")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g}%"))
    lines = []
    for (task, series), color, look in zip(values.items(), shades(len(values)), cycle(LOOKS), strict=False):
        (line,) = axes.plot(
            updates, series, color=color, linestyle=look.linestyle, linewidth=1.3, gid=task,
            marker="o" if len(updates) <= FEW else "", markersize=2.8,
        )  # fmt: skip
        lines.append(line)
    axes.set_ylim(bottom=0)
    label_ends(axes, lines, [f"{line.get_gid()} {percent((last_point(line) or (0, 0))[1])}" for line in lines])
