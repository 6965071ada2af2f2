"""Charts of run logs: sampling over epochs, experts of a language over training (figures 1, 3, 4 of "Tricks for
Training Sparse Translation Models"), validation perplexity (figure 2); a benchmark's metrics; what uncertainty sampling
trains on (CA-MTL, figures 5 and 8); what is borrowed from which source (PEMT, figure 4); how far gates moved.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import altair as alt
import numpy as np

from fairseq_mtmoe.analysis.charts import look
from fairseq_mtmoe.analysis.charts.look import Chart, Point, finished, known, lines, percent, with_last
from fairseq_mtmoe.analysis.questions import first_metric, moments, shares, shift, shown_layers, shown_tasks
from fairseq_mtmoe.analysis.routing import FIGURES
from fairseq_mtmoe.analysis.rows import ALL, TIERS, Row, Run, Values
from fairseq_mtmoe.analysis.score_files import SMALL, TITLES

STEEP = 0.12  # this first part of the x axis does not count for the y axis of perplexity
ALL_LAYERS = "all layers"
SELECTION_NOTE = (
    "Above: of which tasks the examples are that were trained on since the point before. Below: how uncertain the "
    "model is of a task's candidates, entropy in shares of the most that it can be."
)
SOURCES_NOTE = (
    "Each bar: the weights that the layers' gates give the sources, in the mean over the validation's sentences."
)
MOVED_NOTE = (
    "Moved: the least share of these tokens that changed their expert from the first to the last update shown (total "
    "variation distance)."
)


def points_of(row: Row, x: Values, line: str, panel: str = "") -> list[Point]:
    """A row's points at known places of the x axis."""
    return [
        {"x": known(place), "y": known(value), "line": line, "panel": panel}
        for place, value in zip(x, row.value, strict=True)
        if math.isfinite(place)
    ]


def sampling(runs: Sequence[Run]) -> Chart:
    """Sampling probability of every language pair over time, and below it the temperature; runs side by side."""
    above: list[Point] = []
    below: list[Point] = []
    over = "epoch"
    for run in runs:
        over, x = sampling_axis(run.of("sampling"))
        for row in run.of("sampling", metric="probability"):
            above += points_of(
                row, x, with_last(row.task, row.value, percent) if len(runs) == 1 else row.task, run.name
            )
        for row in run.of("sampling", metric="temperature"):
            below += points_of(row, x, "temperature", run.name)
    size = (380, max(220, 12 * max(len(run.of("sampling", metric="probability")) for run in runs)))
    parts = [
        lines(above, "", "sampling probability", log=True, axis="~%", size=size, columns=len(runs), sides="shared")
    ]
    parts += [lines(below, over, "temperature", size=(380, 80), columns=len(runs), sides="shared")]
    what = "task" if runs[0].unit == "task" else "language pair"
    return finished(alt.vconcat(*parts[not above :]).resolve_scale(color="independent", strokeDash="independent"),
                    f"How often each {what} is drawn")  # fmt: skip


def sampling_axis(rows: Sequence[Row]) -> tuple[str, Values]:
    """What values are drawn over, and their places: updates where epochs have several values, else epochs."""
    epochs, updates = rows[0].moments.epoch, rows[0].moments.update
    is_within = len(set(epochs.tolist())) < len(epochs) and not np.isnan(updates).any()
    return ("update", updates) if is_within else ("epoch", epochs)


def experts(
    runs: Sequence[Run],
    tasks: Sequence[str] = (),
    layers: Sequence[str] = (),
    updates: Sequence[int] = (),
    *,
    named: bool = False,
) -> Chart:
    """Each expert's share of a task's validation tokens: a row per task, a column per layer (and run).

    Args:
        runs: runs with expert layers. Beside a task stands its share of the first run's training data.
        tasks: the rows, languages or a benchmark's tasks; without them see `shown_tasks`.
        layers: the columns of every run; without them up to four of one run, or the last one of several runs.
        updates: the moments to show; without them the first, the middle and the last one of each run.
        named: even a single run's name is in its columns, as it is one of several that are looked at.
    """
    named = named or len(runs) > 1
    rows = list(tasks) or shown_tasks(runs[0])
    data = {task: f"{task}, {percent(share)} of data" if (share := runs[0].data.get(task)) else task for task in rows}
    bars: list[Point] = []
    for run in runs:
        for layer in layers or shown_layers(run, len(runs)):
            for task in rows:
                bars += _bars(run, layer, task, updates, named, {"row": data[task], "named": len(runs) > 1})
    moved = any(point["moved"] for point in bars)
    names = list(dict.fromkeys(point["moment"] for point in bars if point["moment"]))
    highest = max((point["share"] or 0.0 for point in bars), default=1.0) or 1.0
    ramp = look.EARLY_TO_LATE[-len(names) :] if len(names) <= 3 else look.shades(len(names))[::-1]
    base = alt.Chart().encode(x=alt.X("expert:O", title="expert", axis=alt.Axis(labelOverlap=True, labelAngle=0)))
    bar = base.transform_filter("isValid(datum.share)").mark_bar().encode(
        y=alt.Y("share:Q", title=None, axis=alt.Axis(format="%", tickCount=4),
                scale=alt.Scale(domain=[0, 1.2 * highest])),
        xOffset=alt.XOffset("moment:N", sort=names),
        color=alt.Color("moment:N", title=None, sort=None, scale=alt.Scale(domain=names, range=list(ramp))),
    )  # fmt: skip
    even = alt.Chart().mark_rule(color=look.GREY, strokeDash=[2, 2]).encode(y="even:Q")
    said = (
        alt.Chart().mark_text(align="right", baseline="top", fontSize=9, y=2).encode(x=alt.value(250), text="moved:N")
    )
    chart = alt.layer(bar, even, said, data=look.data_of(bars)).properties(width=250, height=100)
    header = alt.Header(title=None, labelFontWeight="bold", labelFontSize=10)
    grid = chart.facet(
        row=alt.Row("row:N", sort=look.order_of(bars, "row"), header=header),
        column=alt.Column("column:N", sort=look.order_of(bars, "column"), header=header), spacing=12,
    )  # fmt: skip
    of_subset = f" ({subset})" if (subset := next((row.subset for row in runs[0].of("experts")), "")) else ""
    counted = {
        "task": f"Counted: the tokens of the task's validation examples{of_subset} without padding.",
    }.get(
        runs[0].unit,
        f"Counted: the tokens of the {runs[0].unit}'s validation sentences{of_subset} without padding, of the source "
        "in encoder layers and of the target in decoder layers.",
    )
    return finished(grid.resolve_scale(x="independent", xOffset="independent"),
                    f"Which experts a {runs[0].unit}'s tokens go to", f"{counted} Dashed: equal shares.",
                    *([MOVED_NOTE] if moved else []))  # fmt: skip


def _bars(run: Run, layer: str, task: str, updates: Sequence[int], named: bool, common: Point) -> list[Point]:
    """Of one panel: experts have no order, so each has a group of bars, one for each moment."""
    found = run.of("experts", layer=layer, task=task)
    at = run.of("experts")[0].moments.update
    shown = moments(at, updates)
    told = " / ".join(f"{at[place]:,.0f}" for place in shown)
    column = {"column": f"{run.name} {layer}, updates {told}" if named else layer}
    values = shares(found[0]) if found else None
    places = [place for place in shown if values is not None and not np.isnan(values[place]).any()]
    if values is None or not places:
        return [{**common, **column, "share": None, "moment": "", "moved": "not logged"}]
    names = [f"update {at[place]:,.0f}" for place in shown]
    if common["named"] and len(shown) <= 3:
        names = ["early", "middle", "late"][3 - len(shown) :]
    of_moment = dict(zip(shown, names, strict=True))
    moved = f"{100 * shift(values[places[0]], values[places[-1]]):.0f}% of tokens moved" if len(places) > 1 else ""
    return [
        {**common, **column, "expert": expert, "share": float(share), "moment": of_moment[place],
         "even": 1 / values.shape[1], "moved": moved if place == places[0] and not expert else ""}
        for place in places
        for expert, share in enumerate(values[place])
    ]  # fmt: skip


def _over(row: Row, over: str) -> Values:
    return row.moments.update if over == "updates" else row.moments.minutes


def perplexity(runs: Sequence[Run], over: str = "updates", start: float = 0.0) -> Chart:
    """Perplexity of every tier and of all pairs: in one panel for one run, in a panel per tier for several runs.

    Args:
        runs: runs with validation results, at known places of the x axis.
        over: the x axis, "updates" or "minutes".
        start: a first part of the updates that is left out.
    """
    rows = {(run.name, row.task): row for run in runs for row in run.of("tier", "all", metric="ppl")}
    groups = [name for name in (*TIERS, ALL) if any(name == task for _, task in rows)]
    found: list[Point] = []
    for group in groups:
        panel = "" if len(runs) == 1 else "all pairs" if group == ALL else f"{group}-resource pairs"
        for run in runs:
            row = rows.get((run.name, group))
            if row is not None:
                line = with_last(group, row.value) if len(runs) == 1 else run.name
                first = start * row.moments.update[-1]
                late = row.at(np.flatnonzero(row.moments.update >= first).tolist())
                found += points_of(late, _over(late, over), line, panel)
                found += _sparse(run, row, over, line, panel)
    # The first perplexities are hundreds of times the last ones: of long lines they may leave the panel at its top.
    places = [point["x"] for point in found]
    steep = min(places) + STEEP * (max(places) - min(places)) * (len(set(places)) > look.FEW * len(runs))
    values = [point["y"] for point in found if point["y"] and point["x"] >= steep]
    low, high = (min(values) / 1.03, max(values) * 1.03) if values else (1.0, 10.0)
    size = (520, 340) if len(runs) == 1 else (360, 230)
    return finished(lines(found, over, "perplexity", log=True, axis=",~r", size=size, low=low, high=high),
                    "Validation perplexity")  # fmt: skip


def _sparse(run: Run, row: Row, over: str, line: str, panel: str) -> list[Point]:
    """Where a dense model became sparse."""
    if not run.sparsified:
        return []
    update = run.sparsified[-1][0]
    place = (
        known(float(np.interp(update, row.moments.update, _over(row, over)))) if over == "minutes" else float(update)
    )
    return [] if place is None else [
        {"x": place, "y": None, "line": line, "panel": panel, "sparse": "sparse from here"}
    ]  # fmt: skip


def metrics(runs: Sequence[Run], over: str = "updates") -> Chart:
    """The metric of every task's set and the averages, in percent: lines of one run, or a panel each of several.

    Args:
        runs: of a benchmark, with validations, at known places of the x axis.
        over: the x axis, "updates" or "minutes".
    """
    found: list[Point] = []
    titles = [(row.task, _title(run, row)) for run in runs for row in _measured(run)]
    for task, title in dict(titles).items():
        for run in runs:
            for row in [row for row in _measured(run) if row.task == task and _title(run, row) == title]:
                if len(runs) == 1:
                    found += points_of(row, _over(row, over), with_last(title, row.value, lambda value: f"{value:.1f}"))
                else:
                    found += points_of(row, _over(row, over), run.name, title)
    size = (520, max(320, 16 * len(titles))) if len(runs) == 1 else (280, 180)
    return finished(lines(found, over, "percent", size=size, columns=3), "Metrics in validation")


def _measured(run: Run) -> list[Row]:
    """A row for each set, by its own metric, and those of the averages."""
    means = [row for row in run.of("group", metric="mean") if row.task in (SMALL, ALL)]
    return [row for row in run.of("task") if row.metric == first_metric(run, row.task) != "loss"] + means


def _title(run: Run, row: Row) -> str:
    return TITLES.get(row.task, row.task) if row.group == "group" else f"{row.task}, {row.metric}"


def selection(runs: Sequence[Run]) -> Chart:
    """Each task's share of what was trained on over updates, and its candidates' entropy; runs side by side."""
    parts = []
    for metric, title in (("share", "share of what was trained on"), ("entropy", "relative entropy")):
        found: list[Point] = []
        for run in runs:
            seen = run.of("selection", metric="share_of_data")[0].value[-1]
            panel = f"{run.name}: {percent(seen)} of the data" if math.isfinite(seen) else run.name
            for row in run.of("selection", metric=metric):
                line = with_last(row.task, row.value, percent) if len(runs) == 1 else row.task
                found += points_of(row, row.moments.update, line, panel)
        high = max((point["y"] or 0.0 for point in found), default=0.0) or 1.0
        parts.append(lines(found, "updates", title, axis="%", size=(380, 240), columns=len(runs), low=0.0, high=high,
                           sides="shared"))  # fmt: skip
    chart = alt.vconcat(*parts).resolve_scale(color="independent", strokeDash="independent")
    return finished(chart, "What uncertainty sampling trains on", SELECTION_NOTE)


def sources(runs: Sequence[Run]) -> Chart:
    """Of each run a panel with a bar for each layer, and the mean over all; of several one before with these means."""
    bars: list[Point] = []
    for run in runs if len(runs) > 1 else ():
        bars += [
            _weight(row, run.name, f"the mean over {ALL_LAYERS}") for row in run.of("sources", metric="mean weight")
        ]
    for run in runs:
        rows = run.of("sources")
        panel = f"{run.name}: {rows[0].subset}, update {rows[0].moments.update[-1]:,.0f}"
        bars += [_weight(row, row.layer or ALL_LAYERS, panel) for row in rows]
    names = list(dict.fromkeys(bar["line"] for bar in bars))
    chart = alt.Chart(look.data_of(bars)).mark_bar(stroke="white").encode(
        x=alt.X("x:N", title=None, sort=None, axis=alt.Axis(labelLimit=300)),
        y=alt.Y("y:Q", title=None, axis=alt.Axis(format="%"), stack="zero"),
        color=alt.Color("line:N", title=None, sort=None, scale=alt.Scale(range=look.shades(len(names)))),
        order=alt.Order("order:Q"),
        tooltip=["line:N", alt.Tooltip("y:Q", format=".1%")],
    ).properties(width=alt.Step(26), height=170)  # fmt: skip
    for bar in bars:
        bar["order"] = names.index(bar["line"])
    return finished(
        look.panels(chart, 1, look.order_of(bars, "panel")).resolve_scale(x="independent"),
        "What is borrowed from which source",
        SOURCES_NOTE,
    )


def _weight(row: Row, x: str, panel: str) -> Point:
    return {"x": x, "y": known(row.value[-1]), "line": row.task, "panel": panel}


def movement(runs: Sequence[Run]) -> Chart:
    """Over updates a line for each layer, of `blend`, of the weights and of the tokens; runs side by side."""
    found: list[Point] = []
    for metric, title in FIGURES.items():
        for run in runs:
            panel = title if len(runs) == 1 else f"{run.name}: {title}"
            for row in run.of("gates", metric=metric):
                found += points_of(row, row.moments.update, row.layer, panel)
    return finished(lines(found, "updates", columns=len(runs), size=(420, 150)), "How far gates are from their start")
