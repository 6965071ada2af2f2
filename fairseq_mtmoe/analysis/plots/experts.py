"""Draws which share of a language's or a task's tokens goes to which expert, early and late: figures 1, 3 and 4."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from fairseq_mtmoe.analysis.plots.sheet import GREY, STYLE, Sheet, percent, shades
from fairseq_mtmoe.analysis.series import Run, by_resource, moments, shift

MOMENT_COLORS = ("#E69F00", "#0072B2", "#000000")  # from early to late, light to dark
GROUP_WIDTH = 0.84  # of an expert's bars, in the distance between two experts
UNIFORM: dict[str, Any] = {"color": GREY, "linewidth": 0.8, "linestyle": (0, (1, 2))}


def experts_figure(
    runs: Sequence[Run],
    tasks: Sequence[str] = (),
    layers: Sequence[str] = (),
    updates: Sequence[int] = (),
    *,
    named: bool = False,
) -> Figure:
    """Each expert's share of a task's validation tokens: a row per task, a column per layer (and run).

    Args:
        runs: runs with expert layers. Beside a task stands its share of the first run's training data.
        tasks: the rows, languages or a benchmark's tasks; without them see `default_tasks`.
        layers: the columns of every run; without them up to four of one run, or the last one of several runs.
        updates: the moments to show; without them the first, the middle and the last one of each run.
        named: even a single run's name is in its columns, as it is one of several that are looked at.
    """
    named = named or len(runs) > 1
    rows = list(tasks) or default_tasks(runs[0])
    columns = [(run, layer) for run in runs for layer in (layers or default_layers(run, len(runs)))]
    entries = 1 + len(moments(runs[0].experts.updates, updates))
    top = 1.05 if named else 0.75
    sheet = Sheet(len(columns), 2.7, [1.45] * len(rows), gap_x=0.25, gap_y=0.25, top=top, legend_entries=entries,
                  notes=_notes(runs[0], entries > 2))  # fmt: skip
    with matplotlib.rc_context(STYLE):
        sheet.title(f"Which experts a {runs[0].unit}'s tokens go to")
        sheet.notes()
        grid = [[sheet.axes(row, column) for column in range(len(columns))] for row in range(len(rows))]
        for column, (run, layer) in enumerate(columns):
            shown = moments(run.experts.updates, updates)
            for row, task in enumerate(rows):
                _draw_shares(grid[row][column], run, layer, task, shown)
            title = f"{run.name}\n{layer}\nupdates {' / '.join(_names(run, shown))}" if named else layer
            grid[0][column].set_title(title, fontsize=8)
            grid[-1][column].set_xlabel("expert")
        for row, task in enumerate(rows):
            share = runs[0].data.get(task)
            grid[row][0].set_ylabel(f"{task}\n{percent(share)} of data" if share else task, fontweight="bold")
        _share_y(grid)
        _legend(sheet, runs, updates)
    return sheet.figure


def _notes(run: Run, can_move: bool) -> list[str]:
    """Which tokens are counted, and what a panel's "moved" means."""
    of_subset = f" ({run.experts.subset})" if run.experts.subset else ""
    counted = {
        "language": f"Counted: the tokens of the language's validation sentences{of_subset} without padding, of the "
        "source in encoder layers and of the target in decoder layers.",
        "task": f"Counted: the tokens of the task's validation examples{of_subset} without padding.",
    }[run.unit]
    moved = (
        "Moved: the least share of these tokens that changed their expert from the first to the last update shown "
        "(total variation distance)."
    )
    return [counted, moved] if can_move else [counted]


def default_tasks(run: Run) -> list[str]:
    """The two languages with the most and the two with the least training data (all, if there are not more).

    Of a benchmark all tasks up to ten: it has few, and each asks for something else.
    """
    ranked = by_resource(run.experts.tasks, run.data)
    most = 10 if run.unit == "task" else 4
    return ranked if len(ranked) <= most else ranked[: most // 2] + ranked[-(most // 2) :]


def default_layers(run: Run, runs: int) -> list[str]:
    """Up to four expert layers spread over the model, the first and the last among them; of several runs the last."""
    layers = run.experts.layers
    if runs > 1:
        return layers[-1:]
    count = min(4, len(layers))
    return [layers[round(index * (len(layers) - 1) / max(1, count - 1))] for index in range(count)]


def _draw_shares(axes: Axes, run: Run, layer: str, task: str, shown: Sequence[int]) -> None:
    logged = run.experts.shares.get(layer, {}).get(task, [])
    known = [index for index in shown if logged and logged[index]]
    if not known:
        axes.text(0.5, 0.5, "not logged", transform=axes.transAxes, ha="center", va="center", color=GREY)
        return
    # Experts have no order, so nothing joins them: a group of bars for each, one for each moment.
    experts, width = np.arange(len(logged[known[-1]])), GROUP_WIDTH / len(known)
    axes.axhline(1 / len(experts), gid="uniform", **UNIFORM)
    colors = dict(zip(shown, _colors(len(shown)), strict=True))
    for number, index in enumerate(known):
        bars = axes.bar(
            experts + (number + 0.5) * width - GROUP_WIDTH / 2, logged[index], width, color=colors[index], linewidth=0,
        )  # fmt: skip
        for bar in bars:
            bar.set_gid(f"{task} {run.experts.updates[index]}")
    axes.grid(axis="y")
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    if len(known) > 1:
        moved = f"{100 * shift(logged[known[0]], logged[known[-1]]):.0f}% of tokens moved"
        axes.text(0.99, 0.99, moved, transform=axes.transAxes, ha="right", va="top", fontsize=7, color="0.25")


def _colors(count: int) -> list[str]:
    """From light, early, to dark, late."""
    return list(MOMENT_COLORS[-count:]) if count <= len(MOMENT_COLORS) else list(reversed(shades(count)))


def _names(run: Run, shown: Sequence[int]) -> list[str]:
    return [f"{run.experts.updates[index]:,}" for index in shown]


def _legend(sheet: Sheet, runs: Sequence[Run], updates: Sequence[int]) -> None:
    names = [f"update {name}" for name in _names(runs[0], moments(runs[0].experts.updates, updates))]
    if len(runs) > 1 and len(names) <= 3:
        names = ["early", "middle", "late"][3 - len(names) :]
    handles = [Patch(color=color, label=name) for color, name in zip(_colors(len(names)), names, strict=True)]
    sheet.legend([*handles, Line2D([], [], label="equal shares", **UNIFORM)])


def _share_y(grid: Sequence[Sequence[Axes]]) -> None:
    highest = max((float(axes.dataLim.y1) for row in grid for axes in row if axes.patches), default=1.0)
    for row in grid:
        for column, axes in enumerate(row):
            axes.set_ylim(0, 1.15 * highest)
            axes.yaxis.set_major_locator(MaxNLocator(4))
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g}%"))
            axes.tick_params(labelleft=column == 0, labelbottom=row is grid[-1])
