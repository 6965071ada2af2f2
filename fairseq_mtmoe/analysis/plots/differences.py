"""Draws how far systems are above the first one: a dot with its 95% interval for every pair, tier and all pairs."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fairseq_mtmoe.analysis.differences import Differences
from fairseq_mtmoe.analysis.plots.sheet import GREY, LABEL_SIZE, LOOKS, STYLE, Sheet, text_width
from fairseq_mtmoe.analysis.significance import LEVEL, Comparison

ROW = 0.16  # inches, of each system in a line
NOTE = (
    f"Lines: the middle 95% of the differences over bootstrap resamples. Filled: p < {LEVEL:g} by approximate "
    "randomisation."
)


def differences_figure(found: Sequence[Differences]) -> Figure:
    """A panel for each metric, a line for each pair; below them the tiers and all pairs.

    Args:
        found: of every system but the first, by the same metrics.
    """
    metrics = list(dict.fromkeys(one.metric for one in found))
    systems = list(dict.fromkeys(one.other.name for one in found))
    names = [*found[0].pairs, *found[0].groups]
    left = text_width(names)
    height = len(names) * ROW * (len(systems) + 0.6)
    entries = len(systems) if len(systems) > 1 else 0
    sheet = Sheet(len(metrics), 3.2, [height], left=left, bottom=0.65, legend_entries=entries, notes=[NOTE])
    with matplotlib.rc_context(STYLE):
        others = systems[0] if len(systems) == 1 else "others"
        sheet.title(f"{others} − {found[0].first.name}")
        sheet.notes()
        for column, metric in enumerate(metrics):
            axes = sheet.axes(0, column)
            _draw_panel(axes, [one for one in found if one.metric == metric], names)
            if column:
                axes.tick_params(axis="y", labelleft=False)
        if entries:
            sheet.legend([
                Line2D([], [], color=LOOKS[n % len(LOOKS)].color, marker=LOOKS[n % len(LOOKS)].marker, label=name)
                for n, name in enumerate(systems)
            ])  # fmt: skip
    return sheet.figure


def _draw_panel(axes: Axes, found: Sequence[Differences], names: Sequence[str]) -> None:
    """The differences of all systems by one metric."""
    axes.axvline(0, color=GREY, linewidth=0.8)
    axes.axhline(len(found[0].pairs) - 0.5, color=GREY, linewidth=0.5)
    axes.grid(axis="x")
    for number, one in enumerate(found):
        shift = (number - (len(found) - 1) / 2) / (len(found) + 0.6)
        for row, name in enumerate(names):
            is_pair = row < len(one.pairs)
            _draw_row(
                axes, one.pairs[name] if is_pair else one.groups[name], row + shift, number, f"{one.title} {name}"
            )
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_yticks(range(len(names)), names, fontsize=LABEL_SIZE)
    axes.set_xlabel(f"difference in {found[0].metric}")


def _draw_row(axes: Axes, one: Comparison, y: float, number: int, gid: str) -> None:
    look = LOOKS[number % len(LOOKS)]
    axes.plot(one.interval, [y, y], color=look.color, linewidth=1.0)
    face = look.color if one.is_significant else "white"
    axes.plot([one.difference], [y], color=look.color, marker=look.marker, markerfacecolor=face, linestyle="", gid=gid)
