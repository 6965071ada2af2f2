"""Draws a benchmark's metrics over training: every task of one run, or a panel per task for several runs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from fairseq_mtmoe.analysis.plots.sheet import (
    FEW,
    LOOKS,
    STYLE,
    Look,
    Sheet,
    count_axis,
    label_ends,
    last_point,
    shades,
    text_width,
)
from fairseq_mtmoe.analysis.series import MetricSeries, Run
from fairseq_mtmoe.analysis.task_scores import TITLES

COLUMNS = 3


def metrics_figure(runs: Sequence[Run], over: str = "updates") -> Figure:
    """The metric of every task's set and the averages, in percent.

    Args:
        runs: of a benchmark, with validations, at known places of the x axis.
        over: the x axis, "updates" or "minutes".
    """
    return _one_run(runs[0], over) if len(runs) == 1 else _several_runs(runs, over)


def _one_run(run: Run, over: str) -> Figure:
    lines = _lines(run.metrics)
    titles = {name: _title(run.metrics, name) for name in lines}
    labels = [f"{title} 00.0" for title in titles.values()]
    sheet = Sheet(1, 5.2, [max(3.4, 0.2 * len(lines))], right=text_width(labels))
    with matplotlib.rc_context(STYLE):
        sheet.title("Metrics in validation")
        axes = sheet.axes(0, 0)
        _prepare(axes, [run], over)
        looks = _looks(run.metrics)
        drawn = [_draw(axes, run, name, over, looks[name], name) for name in lines]
        label_ends(axes, drawn, [_label(titles[line.get_gid() or ""], line) for line in drawn])
        axes.set_ylabel("percent")
    return sheet.figure


def _several_runs(runs: Sequence[Run], over: str) -> Figure:
    panels = {name: _title(run.metrics, name) for run in reversed(runs) for name in _lines(run.metrics)}
    labels = text_width([f"{run.name} 00.0" for run in runs])
    columns = min(COLUMNS, len(panels))
    sheet = Sheet(
        columns, 2.8, [1.9] * -(-len(panels) // columns), right=labels, gap_x=labels + 0.5, gap_y=0.8, top=0.75
    )
    with matplotlib.rc_context(STYLE):
        sheet.title("Metrics in validation")
        for index, (name, title) in enumerate(panels.items()):
            axes = sheet.axes(index // columns, index % columns)
            _prepare(axes, runs, over)
            drawn = [
                _draw(axes, run, name, over, LOOKS[number % len(LOOKS)], run.name)
                for number, run in enumerate(runs)
                if name in _lines(run.metrics)
            ]
            label_ends(axes, drawn, [_label(str(line.get_gid()), line) for line in drawn])
            axes.set_title(title, loc="left", fontweight="bold" if name in TITLES else "normal")
            axes.set_ylabel("percent")
    return sheet.figure


def _lines(series: MetricSeries) -> dict[str, list[float]]:
    return {**series.sets, **series.averages}


def _title(series: MetricSeries, name: str) -> str:
    return TITLES.get(name, name) if name in series.averages else f"{name}, {series.metrics[name]}"


def _looks(series: MetricSeries) -> dict[str, Look]:
    """Averages black; sets in shades, with lines and markers that differ between neighbours."""
    kinds = zip(shades(len(series.sets)), cycle(LOOKS[1:]), strict=False)
    of_sets = [Look(color, look.linestyle, look.marker) for color, look in kinds]
    known = {"small": Look("#000000", "--", ""), "all": Look("#000000", "-", "o")}
    of_averages = {name: known.get(name, Look("#000000", ":", "")) for name in series.averages}
    return {**dict(zip(series.sets, of_sets, strict=True)), **of_averages}


def _prepare(axes: Axes, runs: Sequence[Run], over: str) -> None:
    axes.grid(axis="y")
    axes.yaxis.set_major_locator(MaxNLocator(6))
    count_axis(axes, [x for run in runs for x in _positions(run, over)], over)


def _draw(axes: Axes, run: Run, name: str, over: str, look: Look, gid: str) -> Line2D:
    values = _lines(run.metrics)[name]
    (line,) = axes.plot(
        _positions(run, over), values, color=look.color, linestyle=look.linestyle, marker=look.marker, markersize=3.5,
        markevery=max(1, len(values) // FEW), linewidth=2.2 if name in TITLES else 1.3, gid=gid,
    )  # fmt: skip
    return line


def _positions(run: Run, over: str) -> Sequence[float]:
    return run.metrics.updates if over == "updates" else run.metrics.minutes


def _label(name: str, line: Line2D) -> str:
    end = last_point(line)
    return name if end is None else f"{name} {end[1]:.1f}"
