"""Shapes, palette and files that all charts share. Sizes are in pixels.

A chart's points are mappings with `x`, `y`, `line` (the line's name), `panel` (the panel's name) and other fields.
Colours are Okabe and Ito's, or viridis for many lines: both palettes are safe for every kind of colour vision.
"""

import math
import re
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import altair as alt

from fairseq_mtmoe.errors import UserError, visible
from fairseq_mtmoe.io.files import replacing

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#7a5cc0")
DASHES = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3], [12, 4], [4, 1])
EARLY_TO_LATE = ("#E69F00", "#0072B2", "#000000")  # from light to dark
GREY = "#737373"
FEW = 12  # a line with at most this number of points marks each of them
LARGEST, LEGEND_LINE = 20_000, 13  # pixels
WIDTH = 110  # characters in a line of a note

Point = dict[str, Any]
Chart = Any  # an Altair chart; its class depends on its content
Sides = Literal["shared", "independent"]


def known(value: float) -> float | None:
    """Return a number for JSON: None if it is not finite."""
    return float(value) if math.isfinite(value) else None


def number(value: float) -> str:
    """Format a figure in a few characters: `12.34`, `1,234`."""
    return f"{value:.2f}" if abs(value) < 100 else f"{value:,.0f}"


def percent(share: float) -> str:
    """Format a share with about two digits: `26%`, `4.4%`, `0.42%`."""
    return f"{100 * share:.{0 if share >= 0.1 else 1 if share >= 0.01 else 2}f}%"


def data_of(points: list[Point] | str) -> alt.NamedData | alt.InlineData:
    """Return points as a chart's data; a text names data that a page provides."""
    return alt.NamedData(points) if isinstance(points, str) else alt.InlineData(points)


def lines(
    points: list[Point] | str, x: str, y: str = "", *, log: bool = False, axis: str = "",
    size: tuple[int, int] = (420, 260), columns: int = 2, low: float | None = None, high: float | None = None,
    sides: Sides = "independent", hover: bool = False,
) -> Chart:  # fmt: skip
    """Draw lines over `x`, in a panel per `panel`.

    A point that is `sparse` becomes a vertical line with this label. The vertical axis shows numbers in d3's format
    `axis` and ends at `low` and `high`; `sides` says whether the panels share it. With `hover`, a point shows its
    values when the mouse is near.
    """
    names = order_of(points, "line")
    short = "~s" if isinstance(points, list) and any((point["x"] or 0) >= 10_000 for point in points) else ",~f"
    check_size(LEGEND_LINE * len(names))
    moments = FEW + 1 if isinstance(points, str) else len({point["x"] for point in points})
    scale = alt.Scale(type="log" if log else "linear", zero=False, nice=False, padding=5,
                      domain=alt.Undefined if low is None and high is None else [low, high])  # fmt: skip
    legend = alt.Legend(title=None, symbolType="stroke")
    base = alt.Chart().encode(
        x=alt.X("x:Q", title=x, axis=alt.Axis(format=short, tickMinStep=1, grid=False),
                scale=alt.Scale(zero=False, nice=False, padding=5)),
        color=alt.Color("line:N", scale=colors(names), legend=legend),
        strokeDash=alt.StrokeDash("line:N", legend=legend,
                                  scale=alt.Scale(domain=names or alt.Undefined, range=[*DASHES])),
    )  # fmt: skip
    drawn = base.transform_filter("!datum.sparse").encode(
        y=alt.Y("y:Q", title=y or None, scale=scale,
                axis=alt.Axis(format=axis or ",.4~r", tickCount=6)),
        tooltip=[alt.Tooltip("line:N", title=" "), alt.Tooltip("x:Q", title=x, format=","),
                 alt.Tooltip("y:Q", title=y or "value", format=axis or ",.4~r")],
    )  # fmt: skip
    marked: Any = {"filled": True, "size": 28} if moments <= FEW else False
    became_sparse = base.transform_filter("datum.sparse").mark_rule().encode(tooltip="sparse:N")
    text = base.transform_filter("datum.sparse").mark_text(align="left", dx=3, y=6, fontSize=9).encode(text="sparse:N")
    near = [drawn.mark_point(opacity=0, size=90)] if hover else []
    line = drawn.mark_line(point=marked, clip=low is not None)
    chart = alt.layer(line, became_sparse, text, *near, data=data_of(points)).properties(width=size[0], height=size[1])
    faceted = panels(chart, columns, order_of(points, "panel")).resolve_scale(y=sides)
    return faceted.resolve_axis(x="independent")


def order_of(points: list[Point] | str, field: str) -> list[str]:
    """Return a field's values in order of appearance; empty for a page's data.

    Vega-Lite needs them, as it sorts by default.
    """
    return [] if isinstance(points, str) else list(dict.fromkeys(point[field] for point in points if field in point))


def colors(names: Sequence[str], few: Sequence[str] = PALETTE, extent: tuple[float, float] = (0, 0.85)) -> alt.Scale:
    """Return a colour per name: of `few`, or of viridis without its pale end."""
    domain = list(names) or alt.Undefined
    if len(names) <= len(few):
        return alt.Scale(domain=domain, range=list(few))
    step = (extent[1] - extent[0]) / max(1, len(names) - 1)  # Vega leaves out both ends of the extent
    ends = [extent[0] - step, extent[1] + step]
    return alt.Scale(domain=domain, scheme=alt.SchemeParams("viridis", extent=ends))


def panels(chart: Chart, columns: int, order: Sequence[str]) -> Chart:
    """Facet the chart: one panel per `panel` of the points, under its name."""
    header = alt.Header(title=None, labelFontSize=11, labelFontWeight="bold", labelAnchor="start", labelPadding=4)
    return chart.facet(alt.Facet("panel:N", title=None, sort=list(order), header=header), columns=columns, spacing=18)


def heat(
    cells: list[Point] | str, *, scheme: Any = "viridis", domain: tuple[float, float] | None = None,
    middle: float | None = None, axis: str = ".2f", step: int = 26, written: bool = False,
) -> Chart:  # fmt: skip
    """Draw a heat map of `value` over `column` and `row`, in a panel per `panel`.

    Cells are `step` pixels wide and high. The scheme's middle colour is at `middle`. With `written`, cells show
    their values in d3's format `axis`.
    """
    scale = alt.Scale(scheme=scheme, domain=list(domain) if domain else alt.Undefined,
                      domainMid=alt.Undefined if middle is None else middle)  # fmt: skip
    base = alt.Chart().encode(
        x=alt.X("column:O", title=None, sort=order_of(cells, "column") or None, axis=alt.Axis(labelAngle=-90)),
        y=alt.Y("row:O", title=None, sort=order_of(cells, "row") or None),
    )
    cell = base.mark_rect().encode(
        color=alt.Color("value:Q", title=None, scale=scale, legend=alt.Legend(format=axis)),
        tooltip=[alt.Tooltip("row:N", title=" "), alt.Tooltip("column:N", title=" "),
                 alt.Tooltip("value:Q", format=axis)],
    )  # fmt: skip
    text = base.transform_filter("isValid(datum.value)").mark_text(fontSize=9).encode(
        text=alt.Text("value:Q", format=axis),
        color=alt.condition("datum.dark", alt.value("white"), alt.value("black")),
    )  # fmt: skip
    chart = alt.layer(cell, *([text] if written else []), data=data_of(cells))
    sized = chart.properties(width=step * most(cells, "column"), height=step * most(cells, "row"))
    return panels(sized, 4, order_of(cells, "panel")).resolve_scale(x="independent", y="independent")


def most(points: list[Point] | str, field: str) -> int:
    """Return the largest number of distinct values of a field in a panel."""
    found = [] if isinstance(points, str) else points
    of = {panel: {point[field] for point in found if point["panel"] == panel} for panel in order_of(points, "panel")}
    return max(map(len, of.values()), default=1)


def finished(chart: Chart, title: str, *notes: str) -> Chart:
    """Return the chart with its title, its notes and the common style."""
    subtitle = [line for note in notes for line in textwrap.wrap(note, WIDTH, break_on_hyphens=False)]
    text = alt.TitleParams(title, subtitle=subtitle, anchor="start", fontSize=14, subtitleFontSize=10,
                           subtitleColor=GREY, offset=8)  # fmt: skip
    return (
        chart.properties(title=text, background="white")
        .configure_view(stroke=None)
        .configure_axis(domainColor="#888", tickColor="#888", gridColor="#e6e6e6", labelFontSize=10, titleFontSize=11,
                        titleFontWeight="normal")
        .configure_legend(symbolLimit=0, labelLimit=420, labelFontSize=10, symbolStrokeWidth=2, symbolSize=260,
                          columns=1)
        .configure_line(strokeWidth=1.8)
    )  # fmt: skip


def save(chart: Chart, path: str | Path) -> None:
    """Write a chart as PNG, SVG or PDF by the path's suffix, whole or not at all.

    Raises `UserError` if it is too large.
    """
    import vl_convert

    spec, suffix = shown(chart.to_dict()), Path(path).suffix[1:].lower()
    svg = vl_convert.vegalite_to_svg(spec)
    check_size(*map(float, re.findall(r' (?:width|height)="([^"]+)"', svg[: svg.index(">")])))
    to = {"png": lambda: vl_convert.svg_to_png(svg, scale=2.0), "pdf": lambda: vl_convert.svg_to_pdf(svg)}
    content = to.get(suffix, svg.encode)()
    with replacing(path) as partial:
        Path(partial).write_bytes(content)


def check_size(*sides: float) -> None:
    """Raise `UserError` if a side of a chart is too long."""
    if max(sides) > LARGEST:
        raise UserError(
            f"A picture must be at most {LARGEST:,} pixels wide and high, but this one would be {max(sides):,.0f}: "
            "draw fewer runs, languages or layers, or give shorter `--labels`."
        )


def shown(value: Any) -> Any:
    """Return a JSON value with invisible characters spelled out.

    vl-convert would end its input at a NUL.
    """
    if isinstance(value, dict):
        return {visible(name): shown(one) for name, one in value.items()}
    if isinstance(value, list):
        return [shown(one) for one in value]
    return visible(value) if isinstance(value, str) else value


def with_last(name: str, values: Iterable[float], shown: Any = number) -> str:
    """Return a line's name with its last finite value."""
    last = [value for value in values if math.isfinite(value)][-1:]
    return f"{name} {shown(last[0])}" if last else name
