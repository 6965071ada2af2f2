"""Charts of run logs.

Figures 1 to 4 of "Tricks for Training Sparse Translation Models", a benchmark's metrics, examples chosen by uncertainty
sampling (CA-MTL, figures 5 and 8), weights of sources (PEMT, figure 4) and the gates' distance from their start.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

import altair as alt
import numpy as np

from fairseq_mtmoe.analysis.charts import look
from fairseq_mtmoe.analysis.charts.look import Chart, Point, finished, known, lines, percent, with_last
from fairseq_mtmoe.analysis.questions import FIGURES, first_metric, moments, shares, shift, shown_layers, shown_tasks
from fairseq_mtmoe.analysis.rows import ALL, TIERS, Row, Run, Values
from fairseq_mtmoe.analysis.score_files import SMALL, TITLES

STEEP = 0.12  # first part of the x axis that the y axis of perplexity ignores
ALL_LAYERS = "all layers"
SELECTION_NOTE = (
    "Above: each task's share of the examples trained on since the previous point. Below: the model's uncertainty "
    "about a task's candidates, as entropy relative to its maximum."
)
SOURCES_NOTE = "Bars: the weights that a layer's gates give the sources, averaged over validation sentences."
MOVED_NOTE = (
    "Moved: the least share of these tokens that changed experts between the first and last update shown (total "
    "variation distance)."
)


def points_of(row: Row, x: Values, line: str, panel: str = "") -> list[Point]:
    """Return a row's points at finite positions on the x axis."""
    both = [(known(at), known(value)) for at, value in zip(x, row.value, strict=True)]
    return [{"x": at, "y": value, "line": line, "panel": panel} for at, value in both if at is not None]


def sampling(runs: Sequence[Run]) -> Chart:
    """Draw sampling probabilities, and the temperature below; runs side by side."""
    above: list[Point] = []
    below: list[Point] = []
    over, most = "epoch", 0
    for run in runs:
        over, x = sampling_axis(run.of("sampling"))
        pairs = run.of("sampling", metric="probability")
        most = max(most, len(pairs))
        for row in pairs:
            line = with_last(row.task, row.value, percent) if len(runs) == 1 else row.task
            above += points_of(row, x, line, run.name)
        for row in run.of("sampling", metric="temperature"):
            below += points_of(row, x, "temperature", run.name)
    parts = [lines(above, "" if below else over, "sampling probability", log=True, axis="~%",
                   size=(380, max(220, 12 * most)), columns=len(runs), sides="shared")] if above else []  # fmt: skip
    if below:
        parts.append(lines(below, over, "temperature", size=(380, 80), columns=len(runs), sides="shared"))
    unit = "task" if runs[0].unit == "task" else "language pair"
    return finished(_stacked(parts), f"Sampling probability by {unit}")


def _stacked(parts: Iterable[Chart]) -> Chart:
    return alt.vconcat(*parts).resolve_scale(color="independent", strokeDash="independent")


def sampling_axis(rows: Sequence[Row]) -> tuple[str, Values]:
    """Return the x axis and the positions on it.

    It is updates if an epoch has several values, else epochs.
    """
    epochs, updates = rows[0].moments.epoch, rows[0].moments.update
    is_within = len(set(epochs.tolist())) < len(epochs) and not np.isnan(updates).any()
    return ("update", updates) if is_within else ("epoch", epochs)


def experts(
    runs: Sequence[Run], tasks: Sequence[str] = (), layers: Sequence[str] = (), updates: Sequence[int] = (), *,
    named: bool = False,
) -> Chart:  # fmt: skip
    """Draw experts' shares of validation tokens: a row per task, a column per layer.

    With several runs, or `named`, columns name the run, too.
    """
    rows = list(tasks) or shown_tasks(runs[0])
    data = {task: f"{task}, {percent(share)} of data" if (share := runs[0].data.get(task)) else task for task in rows}
    bars = [
        {**bar, "row": data[task]}
        for run in runs
        for layer in layers or shown_layers(run, len(runs))
        for task in rows
        for bar in _bars(run, layer, task, updates, named or len(runs) > 1, len(runs) > 1)
    ]
    names = list(dict.fromkeys(bar["moment"] for bar in bars if bar["moment"]))
    highest = max((bar["share"] or 0.0 for bar in bars), default=1.0) or 1.0
    ramp = look.colors(names, look.EARLY_TO_LATE[-min(3, len(names)) :], (0.85, 0))
    base = alt.Chart().encode(x=alt.X("expert:O", title="expert", axis=alt.Axis(labelOverlap=True, labelAngle=0)))
    bar = base.transform_filter("isValid(datum.share)").mark_bar().encode(
        y=alt.Y("share:Q", title=None, axis=alt.Axis(format="%", tickCount=4),
                scale=alt.Scale(domain=[0, 1.2 * highest])),
        xOffset=alt.XOffset("moment:N", sort=names),
        color=alt.Color("moment:N", title=None, sort=None, scale=ramp),
    )  # fmt: skip
    even = alt.Chart().mark_rule(color=look.GREY, strokeDash=[2, 2]).encode(y="even:Q")
    text = alt.Chart().mark_text(align="right", baseline="top", fontSize=9, y=2)
    label = text.encode(x=alt.value(250), text="moved:N")
    chart = alt.layer(bar, even, label, data=look.data_of(bars)).properties(width=250, height=100)
    header = alt.Header(title=None, labelFontWeight="bold", labelFontSize=10)
    grid = chart.facet(
        row=alt.Row("row:N", sort=look.order_of(bars, "row"), header=header),
        column=alt.Column("column:N", sort=look.order_of(bars, "column"), header=header), spacing=12,
    )  # fmt: skip
    unit, subset = runs[0].unit, next((row.subset for row in runs[0].of("experts")), "")
    units, sides = ("examples", "") if unit == "task" else (
        "sentences", ", of the source in encoder layers and of the target in decoder layers")  # fmt: skip
    counted = f"Counted: tokens of the {unit}'s validation {units}{f' ({subset})' if subset else ''} without padding"
    notes = [f"{counted}{sides}. Dashed: equal shares.", *([MOVED_NOTE] if any(bar["moved"] for bar in bars) else [])]
    return finished(
        grid.resolve_scale(x="independent", xOffset="independent"), f"Experts' shares of a {unit}'s tokens", *notes
    )


def _bars(run: Run, layer: str, task: str, updates: Sequence[int], named: bool, several: bool) -> list[Point]:
    """Return one panel's bars: a group per expert with a bar per moment."""
    found = run.of("experts", layer=layer, task=task)
    at = run.of("experts")[0].moments.update
    shown = moments(at, updates)
    told = " / ".join(f"{at[index]:,.0f}" for index in shown)
    common: Point = {"named": several, "column": f"{run.name} {layer}, updates {told}" if named else layer}
    values = shares(found[0]) if found else np.full((len(at), 1), np.nan)
    indices = [index for index in shown if not np.isnan(values[index]).any()]
    if not indices:
        return [{**common, "share": None, "moment": "", "moved": "not logged"}]
    names = [f"update {at[index]:,.0f}" for index in shown]
    if several and len(shown) <= 3:
        names = ["early", "middle", "late"][3 - len(shown) :]
    of_moment = dict(zip(shown, names, strict=True))
    moved = f"{100 * shift(values[indices[0]], values[indices[-1]]):.0f}% of tokens moved" if len(indices) > 1 else ""
    return [
        {**common, "expert": expert, "share": float(share), "moment": of_moment[index], "even": 1 / values.shape[1],
         "moved": moved if index == indices[0] and not expert else ""}
        for index in indices
        for expert, share in enumerate(values[index])
    ]  # fmt: skip


def _over(row: Row, over: str) -> Values:
    """Return a row's positions on the x axis `over`."""
    return row.moments.update if over == "updates" else row.moments.minutes


def perplexity(runs: Sequence[Run], over: str = "updates") -> Chart:
    """Draw perplexity of each tier and all pairs over updates or minutes.

    Several runs have a panel per tier.
    """
    rows = {(run.name, row.task): row for run in runs for row in run.of("tier", "all", metric="ppl")}
    found: list[Point] = []
    for group in (*TIERS, ALL):
        panel = "" if len(runs) == 1 else "all pairs" if group == ALL else f"{group}-resource pairs"
        for run in runs:
            if row := rows.get((run.name, group)):
                line = with_last(group, row.value) if len(runs) == 1 else run.name
                found += points_of(row, _over(row, over), line, panel)
                found += _sparse(run, row, over, {"y": None, "line": line, "panel": panel})
    # The first perplexities are hundreds of times the last ones: long lines may leave the panel at its top.
    xs = [point["x"] for point in found]
    steep = min(xs) + STEEP * (max(xs) - min(xs)) * (len(set(xs)) > look.FEW * len(runs))
    values = [point["y"] for point in found if point["y"] and point["x"] >= steep]
    low, high = (min(values) / 1.03, max(values) * 1.03) if values else (1.0, 10.0)
    size = (520, 340) if len(runs) == 1 else (360, 230)
    return finished(lines(found, over, "perplexity", log=True, axis=",~r", size=size, low=low, high=high),
                    "Validation perplexity")  # fmt: skip


def _sparse(run: Run, row: Row, over: str, common: Mapping[str, object]) -> list[Point]:
    """Return a point at the update at which a dense model became sparse."""
    updates = np.array([update for update, _ in run.sparsified[-1:]], np.float64)
    xs = np.interp(updates, row.moments.update, _over(row, over)) if over == "minutes" else updates
    found = [known(x) for x in xs.tolist()]
    return [{"x": x, **common, "sparse": "sparse from here"} for x in found if x is not None]


def metrics(runs: Sequence[Run], over: str = "updates") -> Chart:
    """Draw tasks' metrics and their averages in percent.

    Several runs have a panel per metric.
    """
    found: list[Point] = []
    measured = [(run, row, _title(row)) for run in runs for row in _measured(run)]
    order = list(dict.fromkeys(title for _, _, title in measured))
    for run, row, title in sorted(measured, key=lambda one: order.index(one[2])):
        line = with_last(title, row.value, "{:.1f}".format) if len(runs) == 1 else run.name
        found += points_of(row, _over(row, over), line, "" if len(runs) == 1 else title)
    size = (520, max(320, 16 * len(measured))) if len(runs) == 1 else (280, 180)
    return finished(lines(found, over, "percent", size=size, columns=3), "Metrics in validation")


def _measured(run: Run) -> list[Row]:
    """Return a row for each set by its main metric, and the rows of the averages."""
    means = [row for row in run.of("group", metric="mean") if row.task in (SMALL, ALL)]
    return [row for row in run.of("task") if row.metric == first_metric(run, row.task) != "loss"] + means


def _title(row: Row) -> str:
    return TITLES.get(row.task, row.task) if row.group == "group" else f"{row.task}, {row.metric}"


def selection(runs: Sequence[Run]) -> Chart:
    """Draw tasks' shares of trained examples and their candidates' entropy."""
    parts = []
    for metric, title in (("share", "share of trained examples"), ("entropy", "relative entropy")):
        found: list[Point] = []
        for run in runs:
            seen = [row.figure for row in run.of("selection", metric="share_of_data") if math.isfinite(row.figure)]
            panel = f"{run.name}: {percent(seen[0])} of the data" if seen else run.name
            for row in run.of("selection", metric=metric):
                line = with_last(row.task, row.value, percent) if len(runs) == 1 else row.task
                found += points_of(row, row.moments.update, line, panel)
        high = max((point["y"] or 0.0 for point in found), default=0.0) or 1.0
        parts.append(lines(found, "updates", title, axis="%", size=(380, 240), columns=len(runs), low=0.0, high=high,
                           sides="shared"))  # fmt: skip
    return finished(_stacked(parts), "Examples chosen by uncertainty sampling", SELECTION_NOTE)


def sources(runs: Sequence[Run]) -> Chart:
    """Draw the sources' weights: a panel per run, with a bar per layer and the mean.

    For several runs a first panel compares the means.
    """
    mean = f"mean over {ALL_LAYERS}"
    weights = [
        (row, run.name, mean) for run in runs if len(runs) > 1 for row in run.of("sources", metric="mean weight")
    ]
    for run in runs:
        rows = run.of("sources")
        panel = f"{run.name}: {rows[0].subset}, update {rows[0].moments.update[-1]:,.0f}"
        weights += [(row, row.layer or ALL_LAYERS, panel) for row in rows]
    names = list(dict.fromkeys(row.task for row, _, _ in weights))
    bars = [{"x": x, "y": known(row.figure), "line": row.task, "panel": panel, "order": names.index(row.task)}
            for row, x, panel in weights]  # fmt: skip
    chart = alt.Chart(look.data_of(bars)).mark_bar(stroke="white").encode(
        x=alt.X("x:N", title=None, sort=None, axis=alt.Axis(labelLimit=300)),
        y=alt.Y("y:Q", title=None, axis=alt.Axis(format="%"), stack="zero"),
        color=alt.Color("line:N", title=None, sort=None, scale=look.colors(names, ())),
        order=alt.Order("order:Q"),
        tooltip=["line:N", alt.Tooltip("y:Q", format=".1%")],
    ).properties(width=alt.Step(26), height=170)  # fmt: skip
    panels = look.panels(chart, 1, look.order_of(bars, "panel")).resolve_scale(x="independent")
    return finished(panels, "Weights of the sources", SOURCES_NOTE)


def movement(runs: Sequence[Run]) -> Chart:
    """Draw each layer's `blend`, gate movement and changed tokens over updates."""
    found: list[Point] = []
    for metric, title in FIGURES.items():
        for run in runs:
            panel = title if len(runs) == 1 else f"{run.name}: {title}"
            for row in run.of("gates", metric=metric):
                found += points_of(row, row.moments.update, row.layer, panel)
    return finished(lines(found, "updates", columns=len(runs), size=(420, 150)), "Change of the gates since the start")
