"""Charts of gates, task embeddings and differences of evaluations' scores."""

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np
from numpy.typing import NDArray

from fairseq_mtmoe.report.charts import look
from fairseq_mtmoe.report.charts.look import Chart, Point, finished, percent
from fairseq_mtmoe.report.differences import Differences
from fairseq_mtmoe.report.significance import LEVEL

Matrix = NDArray[np.float64]
Array = NDArray[np.floating]
MOST_WRITTEN = 12  # number of tasks up to which cells have room for numbers
LEAST_COSINE = 0.25  # least extent of the scale: chance stays pale
GATES_NOTE = (
    "Cosine between the weights of two tasks' gates, after subtracting the mean of all experts' "
    "rows, which does not affect routing. Near 0: the gates are unrelated, as at the start."
)
EMBEDDINGS_NOTE = (
    "The first two principal components of the tasks' embeddings, with their shares of the "
    "variance."
)
DIFFERENCES_NOTE = (
    "Lines: middle 95% of differences over bootstrap resamples. Filled: "
    f"p < {LEVEL:g} by approximate randomisation."
)
EMBEDDINGS = "task_embeddings.weight"  # suffix of the parameter's key
GATE = "moe.gate.weight"


def task_gates(state: Mapping[str, Any]) -> dict[str, Array]:
    """Return a checkpoint's task gates, (T, N, H), by layer; empty without them."""
    gates = {}
    for key, weight in state["model"].items():
        if key.endswith(GATE) and weight.ndim == 3:
            gates[key.removesuffix(f".{GATE}")] = weight.float().numpy()
    return gates


def task_embeddings(state: Mapping[str, Any]) -> Array | None:
    """Return a checkpoint's task embeddings, (K, D); None without them."""
    for key, weight in state["model"].items():
        if key.endswith(EMBEDDINGS):
            return np.asarray(weight.float())
    return None


def task_names(state: Mapping[str, Any]) -> list[str]:
    """Return the tasks that a checkpoint's gates and embeddings belong to, in order."""
    return str(state["cfg"]["model"]["task_names"]).split(",")


def gate_similarities(weight_TNH: Array) -> Matrix:
    """Return cosines between T tasks' gates, (T, T); NaN for a gate of zeros.

    The mean over a gate's rows, which adds the same to the scores of all experts, is subtracted
    first.
    """
    weights = weight_TNH.astype(np.float64)
    rows = (weights - weights.mean(axis=1, keepdims=True)).reshape(len(weights), -1)
    with np.errstate(invalid="ignore", divide="ignore"):
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows @ rows.T)


def gates(states: Mapping[str, Mapping[str, Any]]) -> Chart | None:
    """Draw cosines between tasks' gates in checkpoints, by the runs' names.

    One run has a panel for the mean and for each layer; several runs have one panel each, with the
    mean.
    """
    cells: list[Point] = []
    for name, state in states.items():
        panels = {layer: gate_similarities(weight) for layer, weight in task_gates(state).items()}
        if not panels:
            continue
        mean = np.mean(list(panels.values()), axis=0)
        if len(states) > 1:
            panels = {name: mean}
        elif len(panels) > 1:
            panels = {"all layers": mean, **panels}
        tasks = task_names(state)
        for panel, matrix in panels.items():
            np.fill_diagonal(matrix, np.nan)
            for (row, column), value in np.ndenumerate(matrix):
                cell: Point = {"row": tasks[row], "column": tasks[column], "panel": panel}
                cells.append({**cell, "value": look.finite(value)})
    if not cells:
        return None
    limit = max(LEAST_COSINE, *[abs(cell["value"] or 0.0) for cell in cells])
    for cell in cells:
        cell["dark"] = abs(cell["value"] or 0.0) > 0.7 * limit
    # Orange and purple are safe for every colour vision; in grey the numbers show the sign.
    scale = alt.Scale(scheme="purpleorange", domain=[-limit, limit], domainMid=0)
    chart = look.heat(cells, scale, written=look.most(cells, "row") <= MOST_WRITTEN)
    return finished(chart, "Similarity of the tasks' gates", GATES_NOTE)


def plane_of(table_KD: Array) -> tuple[Matrix, tuple[float, float]]:
    """Return two principal components of K embeddings, (K, 2), and variance shares.

    An axis has the sign that makes the coordinate of its furthest embedding positive.
    """
    table_KD = table_KD.astype(np.float64)
    left_KR, lengths_R, _ = np.linalg.svd(table_KD - table_KD.mean(axis=0), full_matrices=False)
    points_K2 = np.pad(left_KR * lengths_R, ((0, 0), (0, 2)))[:, :2]
    furthest = np.take_along_axis(points_K2, np.abs(points_K2).argmax(axis=0)[np.newaxis], axis=0)
    variances_R = np.pad(lengths_R**2, (0, 2))
    first, second, *_ = variances_R / max(float(variances_R.sum()), 1e-300)
    return points_K2 * np.where(furthest < 0, -1.0, 1.0), (float(first), float(second))


def embeddings(states: Mapping[str, Mapping[str, Any]]) -> Chart | None:
    """Draw the plane of the task embeddings in checkpoints, by the runs' names."""
    points: list[Point] = []
    for name, state in states.items():
        table_KD = task_embeddings(state)
        if table_KD is None:
            continue
        points_K2, (across, up) = plane_of(table_KD)
        panel = f"{name}: {percent(across)} across, {percent(up)} up"
        for task, (x, y) in zip(task_names(state), points_K2.tolist(), strict=True):
            points.append({"x": x, "y": y, "line": task, "panel": panel})
    if not points:
        return None
    base = alt.Chart().encode(x=alt.X("x:Q", title=None), y=alt.Y("y:Q", title=None))
    text = base.mark_text(align="left", dx=6, fontSize=10).encode(text="line:N")
    dots = base.mark_point(filled=True, color=look.PALETTE[0])
    chart = alt.layer(dots, text, data=alt.InlineData(points)).properties(width=320, height=320)
    faceted = look.panels(chart, 3, points).resolve_scale(x="independent", y="independent")
    return finished(faceted, "Task embeddings", EMBEDDINGS_NOTE)


def differences(comparisons: Sequence[Differences]) -> Chart:
    """Draw differences from the first system with their intervals.

    There is a panel per metric, a row per pair and tier, and a dot per system, which is filled
    where the difference is significant.
    """
    points: list[Point] = []
    for compared in comparisons:
        for name, comparison in {**compared.pairs, **compared.groups}.items():
            low, high = comparison.interval
            point = {"row": name, "y": comparison.difference, "low": low, "high": high}
            about = {"line": compared.other.name, "panel": compared.metric}
            points.append({**point, **about, "stands": comparison.is_significant})
    others = look.order_of(points, "line")
    title = f"{others[0] if len(others) == 1 else 'others'} − {comparisons[0].first.name}"
    palette = alt.Scale(range=[*look.PALETTE])
    base = alt.Chart().encode(
        y=alt.Y("row:N", title=None, sort=look.order_of(points, "row"), axis=alt.Axis(grid=True)),
        yOffset=alt.YOffset("line:N", sort=None),
        color=alt.Color("line:N", title=None, sort=None, scale=palette),
    )
    bars = base.mark_rule().encode(x=alt.X("low:Q", title="difference"), x2="high:Q")
    filled = alt.Fill("line:N", sort=None, legend=None, scale=palette)
    dots = base.mark_point(size=46, opacity=1).encode(
        x=alt.X("y:Q", title="difference"),
        fill=alt.condition("datum.stands", filled, alt.value("white")),
        tooltip=["line:N", "row:N", alt.Tooltip("y:Q", format="+.2f")],
    )
    zero = alt.Chart().mark_rule(color=look.GREY).encode(x=alt.datum(0))
    height = (12 * len(others) + 6) * look.most(points, "row")
    chart = alt.layer(zero, bars, dots, data=alt.InlineData(points)).properties(
        width=260, height=height
    )
    faceted = look.panels(chart, 3, points)
    return finished(faceted.resolve_scale(x="independent"), title, DIFFERENCES_NOTE)
