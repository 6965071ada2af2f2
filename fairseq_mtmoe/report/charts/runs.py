"""Charts of run logs.

Figures 1 to 4 of "Tricks for Training Sparse Translation Models", a benchmark's metrics, examples
chosen by uncertainty sampling (CA-MTL, figures 5 and 8), weights of sources (PEMT, figure 4) and
the gates' distance from their start.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import altair as alt
import numpy as np

from fairseq_mtmoe.report.charts import look
from fairseq_mtmoe.report.charts.look import (
    Chart,
    Panel,
    Point,
    finished,
    finite,
    lines,
    percent,
    with_last,
)
from fairseq_mtmoe.report.routing import entropies, routed_layers
from fairseq_mtmoe.report.rows import ALL, TIERS, Row, Run, Values, first_by_task
from fairseq_mtmoe.report.score_files import TITLES

STEEP = 0.12  # first part of the x axis that the y axis of perplexity ignores
ALL_LAYERS = "all layers"
SELECTION_NOTE = (
    "Above: each task's share of the examples trained on since the previous point. Below: the "
    "model's uncertainty about a task's candidates, as entropy relative to its maximum."
)
SOURCES_NOTE = (
    "Bars: the weights that a layer's gates give the sources, averaged over validation sentences."
)
TRAINING = {
    "loss": "loss",
    "nll_loss": "loss without label smoothing",
    "gnorm": "gradient norm",
    "lr": "learning rate",
    "clip": "clipped updates, %",
    "skipped": "skipped updates so far",
    "loss_scale": "loss scale",
}
SPEED = {
    "wps": "tokens per second",
    "ups": "updates per second",
    "wpb": "tokens per update",
    "bsz": "examples per update",
    "padding": "padding, share of positions",
    "gb_free": "free memory, GB",
    "expert_comm_ms": "all-to-all, ms per update",
}
GATES = {
    "blend": "blend",
    "moved": "distance of the weights from their start, in lengths of the start",
    "changed": "share of tokens with another expert than at the start",
}


def points_of(row: Row, x: Values, line: str, panel: str = "") -> list[Point]:
    """Return a row's points at finite positions on the x axis."""
    points = []
    for position, value in zip(x, row.value, strict=True):
        if math.isfinite(position):
            points.append({"x": float(position), "y": finite(value), "line": line, "panel": panel})
    return points


def _named(runs: Sequence[Run], row: Row, name: str, form: object = look.number) -> str:
    """Return a line's name; of a single run with its last value."""
    return with_last(name, row.value, form) if len(runs) == 1 else name


def sampling(runs: Sequence[Run]) -> Chart:
    """Draw sampling probabilities, and the temperature below; runs side by side."""
    probabilities: list[Point] = []
    temperatures: list[Point] = []
    for run in runs:
        first = run.of("sampling")[0]
        x_title = "epoch"
        x = first.epoch
        has_repeated_epochs = len(np.unique(x)) < len(x)
        if has_repeated_epochs and not np.isnan(first.update).any():
            x_title = "update"
            x = first.update
        for row in run.of("sampling", metric="probability"):
            probabilities += points_of(row, x, _named(runs, row, row.task, percent), run.name)
        for row in run.of("sampling", metric="temperature"):
            temperatures += points_of(row, x, "temperature", run.name)
    form = Panel(x_title, width=380, columns=len(runs), sides="shared")
    parts = []
    if probabilities:
        height = _height(probabilities, 220)
        shown = replace(form, y="sampling probability", log=True, axis="~%", height=height)
        parts.append(lines(probabilities, shown))
    if temperatures:
        parts.append(lines(temperatures, replace(form, y="temperature", height=80)))
    unit = "task" if runs[0].unit == "task" else "language pair"
    return finished(_stacked(parts), f"Sampling probability by {unit}")


def _height(points: Sequence[Point], least: int) -> int:
    """Return the height of a panel beside whose legend there is room for all lines."""
    return max(least, look.LEGEND_LINE * len(look.order_of(points, "line")))


def _stacked(parts: Sequence[Chart]) -> Chart:
    return alt.vconcat(*parts).resolve_scale(color="independent", strokeDash="independent")


Titled = Callable[[Run], Iterable[tuple[str, Row]]]


def _compared(
    runs: Sequence[Run], titled: Titled, over: str, form: Any = look.number
) -> list[Point]:
    """Return points of runs' titled rows over updates or minutes.

    A single run has a line per title with its last value, and several runs have a panel per title.
    """
    points: list[Point] = []
    for run in runs:
        for title, row in titled(run):
            line = with_last(title, row.value, form)
            panel = ""
            if len(runs) > 1:
                line = run.name
                panel = title
            x = row.update
            became_sparse = run.sparsified[-1:]
            if over == "minutes":
                became_sparse = np.interp(became_sparse, x, row.minutes)
                x = row.minutes
            points += points_of(row, x, line, panel)
            for position in became_sparse[np.isfinite(became_sparse)].tolist():
                point = {"x": position, "y": None, "line": line, "panel": panel}
                points.append({**point, "sparse": "sparse from here"})
    return points


def perplexity(runs: Sequence[Run], over: str = "updates") -> Chart | None:
    """Draw perplexity of each tier and all pairs over updates or minutes.

    Several runs have a panel per tier.
    """
    points = _compared(runs, _perplexities, over)
    low, high = _range_without_start(points, len(runs))
    width, height = (520, 340) if len(runs) == 1 else (360, 230)
    form = Panel(
        over, "perplexity", log=True, axis=",~r", width=width, height=height, low=low, high=high
    )
    title = f"Validation perplexity over {over}"
    return finished(lines(points, form), title) if points else None


def _perplexities(run: Run) -> Iterator[tuple[str, Row]]:
    """Yield the rows of tiers and of all pairs, with titles."""
    for group in (*TIERS, ALL):
        for row in run.of("tier", "all", metric="ppl", task=group):
            yield f"{group} pairs", row


def _range_without_start(points: Sequence[Point], runs: int) -> tuple[float, float]:
    """Return the range of perplexities after the steep start of long lines.

    The first perplexities are hundreds of times the last ones: long lines may leave the panel at
    its top.
    """
    positions = look.order_of(points, "x")
    start = min(positions, default=0.0)
    if len(positions) > look.FEW * runs:
        start += STEEP * (max(positions) - start)
    values = [point["y"] for point in points if point["y"] and point["x"] >= start]
    return (min(values) / 1.03, max(values) * 1.03) if values else (1.0, 10.0)


def pairs(runs: Sequence[Run]) -> Chart:
    """Draw the perplexity of each pair, in a panel per run."""
    points: list[Point] = []
    for run in runs:
        for row in run.of("pair", metric="ppl"):
            points += points_of(row, row.update, _named(runs, row, row.task), run.name)
    low, high = _range_without_start(points, len(runs))
    form = Panel(
        "updates",
        "perplexity",
        log=True,
        axis=",~r",
        height=_height(points, 300),
        low=low,
        high=high,
        sides="shared",
    )
    return finished(lines(points, form), "Validation perplexity by pair")


def metrics(runs: Sequence[Run], over: str = "updates") -> Chart | None:
    """Draw tasks' metrics and their averages in percent.

    Several runs have a panel per metric.
    """
    points = _compared(runs, _main_metrics, over, "{:.1f}".format)
    width, height = (520, _height(points, 320)) if len(runs) == 1 else (280, 180)
    form = Panel(over, "percent", width=width, height=height, columns=3)
    title = f"Metrics in validation over {over}"
    return finished(lines(points, form), title) if points else None


def _main_metrics(run: Run) -> Iterator[tuple[str, Row]]:
    """Yield each set's row of its first metric, and the averages, with titles."""
    for row in first_by_task(run.of("task")).values():
        if row.metric != "loss":
            yield f"{row.task}, {row.metric}", row
    for row in run.of("group", metric="mean"):
        if row.task in TITLES:
            yield TITLES[row.task], row


def training(runs: Sequence[Run], titles: Mapping[str, str], title: str) -> Chart | None:
    """Draw figures of training, in a panel per metric with its title."""
    points: list[Point] = []
    for metric, panel in titles.items():
        for run in runs:
            for row in run.of("train", metric=metric):
                points += points_of(row, row.update, run.name, panel)
    form = Panel("updates", width=280, height=150, columns=3)
    return finished(lines(points, form), title) if points else None


def selection(runs: Sequence[Run]) -> Chart:
    """Draw tasks' shares of trained examples and their candidates' entropy."""
    parts = []
    for metric, title in (("share", "share of trained examples"), ("entropy", "relative entropy")):
        points: list[Point] = []
        for run in runs:
            panel = run.name
            for row in run.of("selection", metric="share_of_data"):
                if math.isfinite(row.figure):
                    panel = f"{run.name}: {percent(row.figure)} of the data"
            for row in run.of("selection", metric=metric):
                line = _named(runs, row, row.task, percent)
                points += points_of(row, row.update, line, panel)
        high = max((point["y"] or 0.0 for point in points), default=0.0) or 1.0
        form = Panel("updates", title, axis="%", width=380, height=240, columns=len(runs))
        parts.append(lines(points, replace(form, low=0.0, high=high, sides="shared")))
    return finished(_stacked(parts), "Examples chosen by uncertainty sampling", SELECTION_NOTE)


def sources(runs: Sequence[Run]) -> Chart:
    """Draw the sources' weights: a panel per run, with a bar per layer and the mean.

    For several runs a first panel compares the means.
    """
    bars: list[Point] = []
    if len(runs) > 1:
        for run in runs:
            for row in run.of("sources", metric="mean weight"):
                bars.append(_weight(row, run.name, f"mean over {ALL_LAYERS}"))
    for run in runs:
        for row in run.of("sources"):
            panel = f"{run.name}: {row.subset}, update {row.update[-1]:,.0f}"
            bars.append(_weight(row, row.layer or ALL_LAYERS, panel))
    names = look.order_of(bars, "line")
    for bar in bars:
        bar["order"] = names.index(bar["line"])
    chart = (
        alt.Chart(alt.InlineData(bars))
        .mark_bar(stroke="white")
        .encode(
            x=alt.X("x:N", title=None, sort=None, axis=alt.Axis(labelLimit=300)),
            y=alt.Y("y:Q", title=None, axis=alt.Axis(format="%"), stack="zero"),
            color=alt.Color("line:N", title=None, sort=None, scale=look.colors(names, ())),
            order=alt.Order("order:Q"),
            tooltip=["line:N", alt.Tooltip("y:Q", format=".1%")],
        )
        .properties(width=alt.Step(26), height=170)
    )
    panels = look.panels(chart, 1, bars).resolve_scale(x="independent")
    return finished(panels, "Weights of the sources", SOURCES_NOTE)


def _weight(row: Row, x: str, panel: str) -> Point:
    return {"x": x, "y": finite(row.figure), "line": row.task, "panel": panel}


def movement(runs: Sequence[Run]) -> Chart:
    """Draw each layer's `blend`, gate movement and changed tokens over updates."""
    points: list[Point] = []
    for metric, words in GATES.items():
        for run in runs:
            panel = words if len(runs) == 1 else f"{run.name}: {words}"
            for row in run.of("gates", metric=metric):
                points += points_of(row, row.update, row.layer, panel)
    form = Panel("updates", height=150, columns=len(runs))
    return finished(lines(points, form), "Change of the gates since the start")


def balance(runs: Sequence[Run]) -> Chart | None:
    """Draw the entropy of experts' loads over all tasks; None without experts."""
    points: list[Point] = []
    for run in runs:
        for layer, updates, counts in routed_layers(run):
            for update, counts_KN in zip(updates, counts, strict=True):
                (entropy,) = entropies(counts_KN.sum(axis=0, keepdims=True))
                point = {"x": float(update), "y": finite(entropy), "line": layer, "panel": run.name}
                points.append(point)
    note = (
        "Entropy of the experts' shares of all validation tokens: 1 is uniform, 0 is one expert "
        "for all."
    )
    form = Panel("updates", "entropy", height=200, sides="shared")
    return finished(lines(points, form), "Balance of the experts", note) if points else None
