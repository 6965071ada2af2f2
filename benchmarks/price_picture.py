"""The picture of `bench_prices.py`: prices against greedy over training."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator
from price_numbers import Runs

from fairseq_mtmoe.analysis.plots.sheet import GREY, LOOKS, STYLE, Sheet, count_axis

TICKS = (-50, -20, -10, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 10, 20, 50)


def over_updates(data_sets: Sequence[tuple[str, Runs]]) -> Figure:
    """By how many percent validation perplexity at prices differs from greedy's: a panel for each data set."""
    sheet = Sheet(len(data_sets), 2.8, [2.4], gap_x=0.75, top=0.75)
    with matplotlib.rc_context(STYLE):
        sheet.title("Perplexity at prices against greedy: seeds thin, their mean thick")
        for column, (title, runs) in enumerate(data_sets):
            axes, updates = sheet.axes(0, column), runs.updates()
            changes = [runs.against_greedy(update) for update in updates]
            axes.axhline(0, color=GREY, linewidth=0.9)
            for line in zip(*changes, strict=True):
                axes.plot(updates, line, color=LOOKS[2].color, linewidth=0.7, alpha=0.7)
            axes.plot(updates, [fmean(values) for values in changes], color=LOOKS[2].color, marker="o")
            # The first checkpoint may be far from all others.
            axes.set_yscale("symlog", linthresh=5)
            axes.yaxis.set_major_locator(FixedLocator(TICKS))
            axes.yaxis.set_minor_locator(NullLocator())
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:+g}%" if value else "0")
            axes.grid(axis="y")
            count_axis(axes, updates, "updates")
            axes.set_title(title, loc="left", fontweight="bold")
    return sheet.figure
