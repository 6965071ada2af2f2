"""Charts of the experts' shares of each task's tokens."""

from collections.abc import Sequence

import altair as alt
import numpy as np

from fairseq_mtmoe.report.charts import look
from fairseq_mtmoe.report.charts.look import Chart, Point, finished, finite, percent
from fairseq_mtmoe.report.routing import fixed_layers, shares
from fairseq_mtmoe.report.rows import ALL_TOKENS, Run, Values, evenly

MOST_TASKS = 10
MOST_LANGUAGES = 4
MOST_LAYERS = 4
MOVED_NOTE = (
    "Moved: the least share of these tokens that changed experts between the first and last update "
    "shown (total variation distance)."
)


def expert_layers(run: Run) -> list[str]:
    """Return the layers that know their tokens' tasks, encoder first."""
    return list(dict.fromkeys(row.layer for row in run.of("experts") if row.task != ALL_TOKENS))


def shown_tasks(run: Run) -> list[str]:
    """Return the two languages with the most and the two with the least training data.

    A benchmark has up to ten tasks instead.
    """
    tasks = dict.fromkeys(row.task for row in run.of("experts") if row.task != ALL_TOKENS)
    ranked = sorted(tasks, key=lambda task: -run.data.get(task, 0.0))
    most = MOST_TASKS if run.unit == "task" else MOST_LANGUAGES
    del ranked[most // 2 : -(most // 2)]
    return ranked


def shown_layers(run: Run, runs: int) -> list[str]:
    """Return up to four expert layers, evenly spread; with several runs, the last."""
    layers = expert_layers(run)
    if runs > 1:
        return layers[-1:]
    return [layers[index] for index in evenly(len(layers), MOST_LAYERS)]


def experts(runs: Sequence[Run]) -> Chart | None:
    """Draw experts' shares of validation tokens: a row per task, a column per layer."""
    runs = [*filter(expert_layers, runs)]
    if not runs:
        return None
    bars: list[Point] = []
    for run in runs:
        for layer in shown_layers(run, len(runs)):
            for task in shown_tasks(runs[0]):
                share = runs[0].data.get(task)
                label = f"{task}, {percent(share)} of data" if share else task
                for bar in _bars(run, layer, task, len(runs) > 1):
                    bars.append({**bar, "row": label})
    drawn = [bar for bar in bars if bar["moment"]]
    names = look.order_of(drawn, "moment")
    highest = max((bar["share"] for bar in drawn), default=0.0) or 1.0
    ramp = look.colors(names, look.EARLY_TO_LATE[-len(names) :])
    base = alt.Chart().encode(
        x=alt.X("expert:O", title="expert", axis=alt.Axis(labelOverlap=True, labelAngle=0))
    )
    share_scale = alt.Scale(domain=[0, 1.2 * highest])
    bar_marks = (
        base.transform_filter("isValid(datum.share)")
        .mark_bar()
        .encode(
            y=alt.Y(
                "share:Q", title=None, axis=alt.Axis(format="%", tickCount=4), scale=share_scale
            ),
            xOffset=alt.XOffset("moment:N", sort=names),
            color=alt.Color("moment:N", title=None, sort=None, scale=ramp),
        )
    )
    even = alt.Chart().mark_rule(color=look.GREY, strokeDash=[2, 2]).encode(y="even:Q")
    text = alt.Chart().mark_text(align="right", baseline="top", fontSize=9, y=2)
    label = text.encode(x=alt.value(250), text="moved:N")
    chart = alt.layer(bar_marks, even, label, data=alt.InlineData(bars)).properties(
        width=250, height=100
    )
    header = alt.Header(title=None, labelFontWeight="bold", labelFontSize=10)
    grid = chart.facet(
        row=alt.Row("row:N", sort=look.order_of(bars, "row"), header=header),
        column=alt.Column("column:N", sort=look.order_of(bars, "column"), header=header),
        spacing=12,
    )
    resolved = grid.resolve_scale(x="independent", xOffset="independent")
    return finished(
        resolved, f"Experts' shares of a {runs[0].unit}'s tokens", _counted(runs[0]), MOVED_NOTE
    )


def _counted(run: Run) -> str:
    """Return a sentence on the tokens that are counted."""
    subset = run.of("experts")[0].subset
    where = f" ({subset})" if subset else ""  # which an event may lack
    side = ", of the source in encoder layers and of the target in decoder layers"
    if run.unit == "task":
        side = ""
    counted = f"tokens of the {run.unit}'s validation examples{where} without padding{side}"
    return f"Counted: {counted}. Dashed: equal shares."


def _bars(run: Run, layer: str, task: str, several: bool) -> list[Point]:
    """Return one panel's bars: a group per expert with a bar per moment."""
    updates = run.of("experts")[0].update
    indices = evenly(len(updates), 3)
    numbers = [*map("{:,.0f}".format, updates[indices])]
    column = layer
    names = [*map("update {}".format, numbers)]
    if several:
        column = f"{run.name} {layer}, updates {' / '.join(numbers)}"
        names = ["early", "middle", "late"][3 - len(indices) :]
    bars: list[Point] = []
    counted: list[Values] = []
    for row in run.of("experts", layer=layer, task=task):
        shares_MN = shares(row.value)
        for index, name in zip(indices, names, strict=True):
            shares_N = shares_MN[index]
            if np.isnan(shares_N).any():
                continue
            counted.append(shares_N)
            for expert, share in enumerate(shares_N.tolist()):
                bar = {"expert": expert, "share": share, "even": 1 / len(shares_N)}
                bars.append({**bar, "column": column, "moment": name, "moved": ""})
    if not bars:
        return [{"column": column, "share": None, "moment": "", "moved": "not logged"}]
    if len(counted) > 1:
        moved = np.abs(counted[0] - counted[-1]).sum() / 2  # the total variation distance
        bars[0]["moved"] = f"{moved:.0%} of tokens moved"
    return bars


def expert_map(runs: Sequence[Run]) -> Chart | None:
    """Draw each task's shares of experts at the last validation, in a panel per layer."""
    cells: list[Point] = []
    for run in runs:
        fixed = fixed_layers(run)
        for layer in shown_layers(run, len(runs)):
            if layer in fixed:
                continue
            panel = layer if len(runs) == 1 else f"{run.name}, {layer}"
            for row in run.of("experts", layer=layer):
                for expert, share in enumerate(shares(row.value)[-1]):
                    cell = {"row": row.task, "column": expert, "panel": panel}
                    cells.append({**cell, "value": finite(share)})
    if not cells:
        return None
    note = "Each expert's share of a row's validation tokens at the last validation."
    return finished(
        look.heat(cells, alt.Scale(scheme="blues"), ".1%"), "Who uses which expert", note
    )
