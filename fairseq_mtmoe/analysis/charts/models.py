"""Charts of checkpoints and evaluations.

Gates, task embeddings and differences of scores.
"""

from collections.abc import Mapping, Sequence

import altair as alt
import numpy as np
from numpy.typing import NDArray

from fairseq_mtmoe.analysis.charts import look
from fairseq_mtmoe.analysis.charts.look import Chart, Point, finished, heat, percent
from fairseq_mtmoe.analysis.differences import Differences
from fairseq_mtmoe.analysis.questions import gate_similarities, plane_of
from fairseq_mtmoe.analysis.significance import LEVEL

Matrix = NDArray[np.float64]
Array = NDArray[np.floating]
Panels = Mapping[str, tuple[Sequence[str], Matrix]]  # tasks and the matrix between them, by the panel's title
MOST_WRITTEN = 12  # number of tasks up to which cells have room for numbers
LEAST_COSINE = 0.25  # least extent of the scale: chance stays pale
GATES_NOTE = (
    "Cosine between the weights of two tasks' gates, after subtracting the mean of all experts' rows, which does not "
    "affect routing. Near 0: the gates are unrelated, as at the start."
)
EMBEDDINGS_NOTE = "The first two principal components of the tasks' embeddings, with their shares of the variance."
DIFFERENCES_NOTE = (
    f"Lines: middle 95% of differences over bootstrap resamples. Filled: p < {LEVEL:g} by approximate randomisation."
)


def gates(runs: Mapping[str, tuple[Sequence[str], Mapping[str, Array]]]) -> Chart:
    """Draw cosines between tasks' gates.

    One run has a panel for the mean and for each layer; several runs have one panel each, with the mean.

    Args:
        runs: tasks, and weights (T, N, H) by layer, of each run.
    """
    found: dict[str, tuple[Sequence[str], Matrix]] = {}
    for name, (tasks, weights) in runs.items():
        layers = {layer: gate_similarities(weight) for layer, weight in weights.items()}
        found[name if len(runs) > 1 else "all layers"] = (tasks, np.mean(list(layers.values()), axis=0))
        if len(runs) == 1 and len(layers) > 1:
            found |= {layer: (tasks, matrix) for layer, matrix in layers.items()}
    limit = max([LEAST_COSINE, *np.abs(_apart(found))])
    # Orange and purple are safe for every colour vision; in grey the numbers show the sign.
    chart = _matrices(found, "purpleorange", (-limit, limit), middle=0)
    return finished(chart, "Similarity of the tasks' gates", GATES_NOTE)


def _apart(found: Panels) -> list[float]:
    """Return the finite numbers between different tasks."""
    values = np.concatenate([matrix[~np.eye(len(matrix), dtype=bool)] for _, matrix in found.values()])
    return [value for value in values.tolist() if np.isfinite(value)]


def _matrices(found: Panels, scheme: str, domain: tuple[float, float], middle: float | None = None) -> Chart:
    """Draw a square per panel; its diagonal is empty."""
    low, high = domain
    cells: list[Point] = []
    for panel, (tasks, matrix) in found.items():
        for row, column in np.ndindex(matrix.shape):
            value = look.known(float(matrix[row, column])) if row != column else None
            position = 0.5 if value is None else (value - low) / max(high - low, 1e-9)
            dark = bool(position < 0.5 if middle is None else abs(position - 0.5) > 0.35)
            cells.append({"row": tasks[row], "column": tasks[column], "value": value, "dark": dark, "panel": panel})
    most = max(len(tasks) for tasks, _ in found.values())
    written = most <= MOST_WRITTEN
    return heat(cells, scheme=scheme, domain=domain, middle=middle, step=30 if written else 14, written=written)


def embeddings(runs: Mapping[str, tuple[Sequence[str], Array]]) -> Chart:
    """Draw K tasks' embeddings (K, D) on two principal components, a panel per run."""
    found: list[Point] = []
    for name, (tasks, table_KD) in runs.items():
        points_K2, shares = plane_of(table_KD)
        panel = f"{name}: {percent(shares[0])} across, {percent(shares[1])} up"
        found += [
            {"x": float(x), "y": float(y), "line": task, "panel": panel}
            for task, (x, y) in zip(tasks, points_K2, strict=True)
        ]
    base = alt.Chart().encode(x=alt.X("x:Q", title=None), y=alt.Y("y:Q", title=None))
    text = base.mark_text(align="left", dx=6, fontSize=10).encode(text="line:N")
    chart = alt.layer(base.mark_point(filled=True, color=look.PALETTE[0]), text, data=look.data_of(found))
    sized = look.panels(chart.properties(width=320, height=320), 3, look.order_of(found, "panel"))
    separate = sized.resolve_scale(x="independent", y="independent")
    return finished(separate, "Task embeddings", EMBEDDINGS_NOTE)


def differences(found: Sequence[Differences]) -> Chart:
    """Draw differences from the first system with their intervals.

    There is a panel per metric, a row per pair and tier, and a dot per system.
    """
    points = [
        {"row": name, "y": of.difference, "low": of.interval[0], "high": of.interval[1], "line": one.other.name,
         "stands": of.is_significant, "panel": one.metric}
        for one in found
        for name, of in {**one.pairs, **one.groups}.items()
    ]  # fmt: skip
    others = list(dict.fromkeys(one.other.name for one in found))
    title = f"{others[0] if len(others) == 1 else 'others'} − {found[0].first.name}"
    chart = look.panels(dots(points, 12 * len(others) + 6), 3, look.order_of(points, "panel"))
    return finished(chart.resolve_scale(x="independent"), title, DIFFERENCES_NOTE)


def dots(points: list[Point] | str, step: int = 18) -> Chart:
    """Draw differences: a row per `row`, a dot per `line`.

    A dot is at `y` with a bar from `low` to `high`; it is filled if it `stands`.
    """
    base = alt.Chart().encode(
        y=alt.Y("row:N", title=None, sort=look.order_of(points, "row") or None, axis=alt.Axis(grid=True)),
        yOffset=alt.YOffset("line:N", sort=None),
        color=alt.Color("line:N", title=None, sort=None, scale=alt.Scale(range=[*look.PALETTE])),
    )
    x = alt.X("y:Q", title="difference")
    bar = base.mark_rule().encode(x=alt.X("low:Q", title="difference"), x2="high:Q")
    dot = base.mark_point(size=46, opacity=1).encode(
        x=x, fill=alt.condition("datum.stands", alt.Fill("line:N", sort=None, legend=None,
                                                         scale=alt.Scale(range=[*look.PALETTE])), alt.value("white")),
        tooltip=["line:N", "row:N", alt.Tooltip("y:Q", format="+.2f", title="difference")],
    )  # fmt: skip
    zero = alt.Chart().mark_rule(color=look.GREY).encode(x=alt.datum(0))
    chart = alt.layer(zero, bar, dot, data=look.data_of(points))
    return chart.properties(width=260, height=step * look.most(points, "row"))
