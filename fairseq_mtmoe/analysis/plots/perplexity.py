"""Draws validation perplexity per tier over training, of one run or of several to compare: figure 2."""

from __future__ import annotations

import math
from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fairseq_mtmoe.analysis.plots.sheet import (
    FEW,
    GREY,
    LOOKS,
    STYLE,
    Look,
    Sheet,
    count_axis,
    label_ends,
    last_point,
    log_axis,
    text_width,
)
from fairseq_mtmoe.analysis.scores import ALL, TIERS
from fairseq_mtmoe.analysis.series import Run

STEEP = 0.12  # this first part of the x axis does not count for the y axis
GROUP_LOOKS = {ALL: LOOKS[0], "low": LOOKS[1], "mid": LOOKS[6], "high": LOOKS[2]}


def perplexity_figure(runs: Sequence[Run], over: str = "updates") -> Figure:
    """Perplexity of every tier and of all pairs: in one panel for one run, in a panel per tier for several runs.

    Args:
        runs: runs with validation results, at known places of the x axis.
        over: the x axis, "updates" or "minutes".
    """
    groups = [name for name in (*TIERS, ALL) if any(name in run.perplexity.groups for run in runs)]
    return _one_run(runs[0], groups, over) if len(runs) == 1 else _several_runs(runs, groups, over)


def _one_run(run: Run, groups: Sequence[str], over: str) -> Figure:
    sheet = Sheet(1, 5.2, [3.4], right=text_width(["high 00.00"]))
    with matplotlib.rc_context(STYLE):
        sheet.title("Validation perplexity")
        axes = sheet.axes(0, 0)
        _prepare(axes, [run], groups, over)
        lines = [_draw(axes, run, name, over, GROUP_LOOKS[name], name) for name in groups]
        _mark_sparsification(axes, run, over, GREY)
        label_ends(axes, lines, [_label(name, line) for name, line in zip(groups, lines, strict=True)])
        axes.set_ylabel("perplexity")
    return sheet.figure


def _several_runs(runs: Sequence[Run], groups: Sequence[str], over: str) -> Figure:
    labels = text_width([f"{run.name} 00.00" for run in runs])
    columns = min(2, len(groups))
    rows = -(-len(groups) // columns)
    sheet = Sheet(columns, 3.6, [2.4] * rows, right=labels, gap_x=labels + 0.6, gap_y=0.8, top=0.75)
    with matplotlib.rc_context(STYLE):
        sheet.title("Validation perplexity")
        for index, name in enumerate(groups):
            axes = sheet.axes(index // columns, index % columns)
            _prepare(axes, runs, [name], over)
            looks = [LOOKS[number % len(LOOKS)] for number in range(len(runs))]
            drawn = [(run, look) for run, look in zip(runs, looks, strict=True) if name in run.perplexity.groups]
            lines = [_draw(axes, run, name, over, look, run.name) for run, look in drawn]
            for run, look in drawn:
                _mark_sparsification(axes, run, over, look.color)
            label_ends(axes, lines, [_label(run.name, line) for (run, _), line in zip(drawn, lines, strict=True)])
            axes.set_title("all pairs" if name == ALL else f"{name}-resource pairs", loc="left", fontweight="bold")
            axes.set_ylabel("perplexity")
    return sheet.figure


def _prepare(axes: Axes, runs: Sequence[Run], groups: Sequence[str], over: str) -> None:
    span = [x for run in runs for x in _positions(run, over)]
    # The first perplexities are hundreds of times the last ones: of long lines they may leave the panel at its top.
    long = max(len(run.perplexity.updates) for run in runs) > FEW
    known = [x for x in span if not math.isnan(x)]
    start = min(known) + STEEP * (max(known) - min(known)) * long
    lines = [(_positions(run, over), run.perplexity.groups.get(name, [])) for run in runs for name in groups]
    values = [y for xs, ys in lines for x, y in zip(xs, ys, strict=False) if x >= start]
    log_axis(axes, values, lambda value: f"{value:,g}")
    count_axis(axes, span, over)


def _draw(axes: Axes, run: Run, group: str, over: str, look: Look, gid: str) -> Line2D:
    values = run.perplexity.groups[group]
    (line,) = axes.plot(
        _positions(run, over), values, color=look.color, linestyle=look.linestyle, marker=look.marker,
        markevery=max(1, len(values) // FEW), gid=gid,
    )  # fmt: skip
    return line


def _positions(run: Run, over: str) -> Sequence[float]:
    return run.perplexity.updates if over == "updates" else run.perplexity.minutes


def _mark_sparsification(axes: Axes, run: Run, over: str, color: str) -> None:
    """A vertical line where a dense model became sparse."""
    if run.sparsified_at is None:
        return
    where = float(np.interp(run.sparsified_at, run.perplexity.updates, _positions(run, over)))
    if math.isnan(where):
        return
    axes.axvline(where, color=color, linewidth=0.9, linestyle=(0, (2, 2)), gid="sparsified")
    top = ("data", "axes fraction")
    axes.annotate(" sparse from here", (where, 1.0), xycoords=top, va="top", fontsize=7, color="0.25")


def _label(name: str, line: Line2D) -> str:
    value = (last_point(line) or (0.0, math.nan))[1]
    return f"{name} {value:.2f}" if value < 100 else f"{name} {value:,.0f}"
