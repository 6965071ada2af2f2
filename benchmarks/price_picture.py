"""The picture of `bench_prices.py`: prices against greedy over training."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator
from price_numbers import Runs

COLOR, GREY = "#0072B2", "0.45"
TICKS = (-50, -20, -10, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 10, 20, 50)


def over_updates(data_sets: Sequence[tuple[str, Runs]]) -> Figure:
    """By how many percent validation perplexity at prices differs from greedy's: a panel for each data set."""
    figure = Figure(figsize=(1.2 + 3.5 * len(data_sets), 3.4), dpi=150, layout="constrained")
    figure.suptitle("Perplexity at prices against greedy: seeds thin, their mean thick", fontweight="bold")
    for axes, (title, runs) in zip(figure.subplots(1, len(data_sets), squeeze=False)[0], data_sets, strict=True):
        updates = runs.updates()
        changes = [runs.against_greedy(update) for update in updates]
        axes.axhline(0, color=GREY, linewidth=0.9)
        for line in zip(*changes, strict=True):
            axes.plot(updates, line, color=COLOR, linewidth=0.7, alpha=0.7)
        axes.plot(updates, [fmean(values) for values in changes], color=COLOR, marker="o")
        # The first checkpoint may be far from all others.
        axes.set_yscale("symlog", linthresh=5)
        axes.yaxis.set_major_locator(FixedLocator(TICKS))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:+g}%" if value else "0")
        axes.grid(axis="y")
        axes.set_xlabel("updates")
        axes.set_title(title, loc="left", fontweight="bold")
    return figure
