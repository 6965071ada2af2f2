"""Draws how often each language pair, or task, is sampled, and the temperature that says so (equations 1 and 2)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fairseq_mtmoe.analysis.plots.sheet import (
    FEW,
    GREY,
    LABEL_SIZE,
    LOOKS,
    STYLE,
    Sheet,
    count_axis,
    label_ends,
    last_point,
    log_axis,
    percent,
    shades,
    text_width,
)
from fairseq_mtmoe.analysis.series import Run, SamplingSeries


def sampling_figure(runs: Sequence[Run]) -> Figure:
    """Sampling probability of every language pair over time, and below it the temperature; runs side by side."""
    series = [run.sampling for run in runs]
    pairs = max(len(one.probabilities) for one in series)
    labels = text_width([f"{pair} 0.00%" for one in series for pair in one.probabilities])
    sheet = Sheet(len(runs), 4.6, (max(2.8, 0.13 * pairs), 1.0), right=labels, gap_x=labels + 0.5, gap_y=0.2,
                  top=0.5 if len(runs) == 1 else 0.75)  # fmt: skip
    with matplotlib.rc_context(STYLE):
        sheet.title(f"How often each {'task' if runs[0].unit == 'task' else 'language pair'} is drawn")
        for column, run in enumerate(runs):
            top, bottom = sheet.axes(0, column), sheet.axes(1, column)
            _draw_probabilities(top, run.sampling, series)
            _draw_temperature(bottom, run.sampling, series)
            if column == 0:
                top.set_ylabel("sampling probability")
                bottom.set_ylabel("temperature")
            if len(runs) > 1:
                top.set_title(run.name, loc="left", fontweight="bold")
    return sheet.figure


def _draw_probabilities(axes: Axes, series: SamplingSeries, all_series: Sequence[SamplingSeries]) -> None:
    _, moments = series.moments
    count_axis(axes, moments, "")
    axes.tick_params(labelbottom=False)
    every = [value for one in all_series for values in one.probabilities.values() for value in values]
    log_axis(axes, every, lambda value: f"{100 * value:g}%")
    pairs = series.probabilities
    lines = []
    for index, (pair, color) in enumerate(zip(pairs, shades(len(pairs)), strict=True)):
        (line,) = axes.plot(
            moments, pairs[pair], color=color, linestyle=LOOKS[index % 4].linestyle, gid=pair,
            linewidth=1.7 if len(pairs) <= 16 else 1.1, marker="o" if len(moments) <= FEW else "", markersize=2.8,
        )  # fmt: skip
        lines.append(line)
    label_ends(axes, lines, [f"{line.get_gid()} {percent((last_point(line) or (0, 0))[1])}" for line in lines])


def _draw_temperature(axes: Axes, series: SamplingSeries, all_series: Sequence[SamplingSeries]) -> None:
    unit, moments = series.moments
    count_axis(axes, moments, unit)
    axes.grid(axis="y")
    marker = "o" if len(moments) <= FEW else ""
    (line,) = axes.plot(moments, series.temperatures, color="black", marker=marker, gid="temperature")
    known = [value for one in all_series for value in one.temperatures if not math.isnan(value)]
    if not known:
        axes.text(0.5, 0.5, "no temperature", transform=axes.transAxes, ha="center", va="center", color=GREY)
        axes.set_yticks([])
    else:
        space = 0.15 * (max(known) - min(known)) or 0.2
        axes.set_ylim(min(known) - space, max(known) + space)
        axes.yaxis.set_major_locator(MaxNLocator(4))
    end = last_point(line)
    if end:
        axes.annotate(f"T = {end[1]:.3g}", end, (1.045, end[1]), textcoords=("axes fraction", "data"), va="center",
                      fontsize=LABEL_SIZE, annotation_clip=False)  # fmt: skip
