"""Draws how much of each source task a target task borrows: PEMT, figure 4, and layer by layer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter

from fairseq_mtmoe.analysis.plots.sheet import STYLE, Sheet, percent, shades
from fairseq_mtmoe.analysis.series import Run

ALL_LAYERS = "all layers"
HATCHES = ("", "///", "...", "\\\\\\", "xxx", "---", "++")  # a second time what colours say
MOST_NUMBERS = 16  # bars beside each other, up to which they have room for numbers
NOTE = "Each bar: the weights that the layers' gates give the sources, in the mean over the validation's sentences."

Bars = Mapping[str, Sequence[float]]  # by what stands below it, each source's weight


def sources_figure(runs: Sequence[Run]) -> Figure:
    """Of each run a panel with a bar for each layer, and the mean over all; of several one before with these means.

    Args:
        runs: runs that borrow.
    """
    names = list(dict.fromkeys(name for run in runs for name in run.sources.sources))
    panels = {run.name: _bars_of(run, names) for run in runs}
    titles = {run.name: f"{run.sources.target}, update {run.sources.update:,}" for run in runs}
    if len(runs) > 1:
        panels = {"": {run.name: panels[run.name][ALL_LAYERS] for run in runs}, **panels}
        titles[""] = f"the mean over {ALL_LAYERS}"
    width = max(4.6, 0.42 * max(map(len, panels.values())))
    longest = max(len(label) for bars in panels.values() for label in bars)
    below = 0.25 + 0.055 * longest
    sheet = Sheet(1, width, [1.7] * len(panels), gap_y=0.35 + below, bottom=0.2 + below, top=0.85,
                  legend_entries=len(names), notes=[NOTE])  # fmt: skip
    looks = _looks(names)
    with matplotlib.rc_context(STYLE):
        sheet.title("What is borrowed from which source")
        sheet.notes()
        sheet.legend([Patch(facecolor=color, hatch=hatch, edgecolor="white", label=name)
                      for name, (color, hatch) in looks.items()])  # fmt: skip
        for row, (name, bars) in enumerate(panels.items()):
            axes = sheet.axes(row, 0)
            axes.set_title(name if len(runs) > 1 else "", loc="left", fontweight="bold")
            axes.set_title(titles[name], loc="right", fontsize=8)
            _draw(axes, bars, looks)
    return sheet.figure


def _bars_of(run: Run, names: Sequence[str]) -> dict[str, list[float]]:
    """The weights of all sources, 0 of those that the run has not."""
    sources = run.sources
    bars = {ALL_LAYERS: sources.mean(), **sources.layers}
    found = {label: dict(zip(sources.sources, weights, strict=False)) for label, weights in bars.items()}
    return {label: [weights.get(name, 0.0) for name in names] for label, weights in found.items()}


def _looks(names: Sequence[str]) -> dict[str, tuple[str, str]]:
    return {
        name: (color, HATCHES[index % len(HATCHES)])
        for index, (name, color) in enumerate(zip(names, shades(len(names)), strict=True))
    }


def _draw(axes: Axes, bars: Bars, looks: Mapping[str, tuple[str, str]]) -> None:
    places = range(len(bars))
    bottoms = [0.0] * len(bars)
    for index, (name, (color, hatch)) in enumerate(looks.items()):
        heights = [0.0 if math.isnan(weights[index]) else weights[index] for weights in bars.values()]
        axes.bar(places, heights, 0.8, bottoms, color=color, hatch=hatch, edgecolor="white", linewidth=0, gid=name)
        if len(bars) <= MOST_NUMBERS:
            for place, height, bottom in zip(places, heights, bottoms, strict=True):
                if height >= 0.09:
                    box = {"facecolor": "white", "alpha": 0.75, "pad": 0.6, "linewidth": 0}
                    axes.text(place, bottom + height / 2, percent(height), fontsize=5.5, ha="center", va="center",
                              bbox=box)  # fmt: skip
        bottoms = [bottom + height for bottom, height in zip(bottoms, heights, strict=True)]
    axes.set_xticks(list(places), list(bars), rotation=90, fontsize=6.5)
    axes.set_ylim(0, max([1.0, *bottoms]))
    axes.set_xlim(-0.6, len(bars) - 0.4)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g}%"))
