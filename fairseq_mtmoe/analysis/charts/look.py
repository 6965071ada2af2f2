"""What all charts share: shapes, palette, and files. Sizes are in pixels of a screen.

A chart's points are mappings: `x` and `y`, the `line` that they belong to, the `panel` that it is in, and others.
Colours are Okabe and Ito's, or viridis where there are many lines: both can be told apart with any colour vision.
"""

import math
import re
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import altair as alt

from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.io.files import replacing
from fairseq_mtmoe.io.pages import visible

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#7a5cc0")
DASHES = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3], [12, 4], [4, 1])
EARLY_TO_LATE = ("#E69F00", "#0072B2", "#000000")  # from light to dark
GREY = "#737373"
FEW = 12  # up to so many points of a line are marked one by one
LARGEST, LEGEND_LINE = 20_000, 13  # pixels
WIDTH = 110  # signs in a line of a note

Point = dict[str, Any]
Chart = Any  # of Altair, whose classes differ by what is in a chart
Sides = Literal["shared", "independent"]


def known(value: float) -> float | None:
    """A number for JSON, which has none that is not finite."""
    return float(value) if math.isfinite(value) else None


def number(value: float) -> str:
    """A figure in a few signs: `12.34`, `1,234`."""
    return f"{value:.2f}" if abs(value) < 100 else f"{value:,.0f}"


def percent(share: float) -> str:
    """A share with two digits or so: `26%`, `4.4%`, `0.42%`."""
    return f"{100 * share:.{0 if share >= 0.1 else 1 if share >= 0.01 else 2}f}%"


def data_of(points: list[Point] | str) -> alt.NamedData | alt.InlineData:
    """Points as a chart's data; a name where a page brings them."""
    return alt.NamedData(points) if isinstance(points, str) else alt.InlineData(points)


def lines(
    points: list[Point] | str, x: str, y: str = "", *, log: bool = False, axis: str = "",
    size: tuple[int, int] = (420, 260), columns: int = 2, low: float | None = None, high: float | None = None,
    sides: Sides = "independent", hover: bool = False,
) -> Chart:  # fmt: skip
    """Lines over moments, in a panel for each `panel`; where a point is `sparse`, a vertical line with this text.

    The vertical axis has numbers in d3's format `axis`, and ends at `low` and `high`; `sides` says whether each panel
    has its own. With `hover` every point says its values to a mouse near it.
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
    said = base.transform_filter("datum.sparse").mark_text(align="left", dx=3, y=6, fontSize=9).encode(text="sparse:N")
    near = [drawn.mark_point(opacity=0, size=90)] if hover else []
    line = drawn.mark_line(point=marked, clip=low is not None)
    chart = alt.layer(line, became_sparse, said, *near, data=data_of(points)).properties(width=size[0], height=size[1])
    return panels(chart, columns, order_of(points, "panel")).resolve_scale(y=sides)


def order_of(points: list[Point] | str, field: str) -> list[str]:
    """The values of a field in the order in which they come, which is no order for Vega-Lite; none of a page's data."""
    return [] if isinstance(points, str) else list(dict.fromkeys(point[field] for point in points if field in point))


def colors(names: Sequence[str], few: Sequence[str] = PALETTE, extent: tuple[float, float] = (0, 0.85)) -> alt.Scale:
    """One of few for each name, or else of viridis, without its end that is unreadable on white."""
    domain = list(names) or alt.Undefined
    if len(names) <= len(few):
        return alt.Scale(domain=domain, range=list(few))
    step = (extent[1] - extent[0]) / max(1, len(names) - 1)  # Vega leaves out both ends of what it is given
    ends = [extent[0] - step, extent[1] + step]
    return alt.Scale(domain=domain, scheme=alt.SchemeParams("viridis", extent=ends))


def panels(chart: Chart, columns: int, order: Sequence[str]) -> Chart:
    """A panel for each `panel` of the points, under its name."""
    header = alt.Header(title=None, labelFontSize=11, labelFontWeight="bold", labelAnchor="start", labelPadding=4)
    return chart.facet(alt.Facet("panel:N", title=None, sort=list(order), header=header), columns=columns, spacing=18)


def heat(
    cells: list[Point] | str, *, scheme: Any = "viridis", domain: tuple[float, float] | None = None,
    middle: float | None = None, axis: str = ".2f", step: int = 26, written: bool = False,
) -> Chart:  # fmt: skip
    """A map of `value` over `column` and `row` in cells of `step` pixels, in a panel for each `panel`.

    `middle` has the scheme's middle colour; values, in d3's format `axis`, stand in the cells if they are `written`.
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
    """Different values of a field in the panel that has the most."""
    found = [] if isinstance(points, str) else points
    of = {panel: {point[field] for point in found if point["panel"] == panel} for panel in order_of(points, "panel")}
    return max(map(len, of.values()), default=1)


def finished(chart: Chart, title: str, *notes: str) -> Chart:
    """The chart with its title, notes below it, and the look that all have."""
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
    """Write a chart as PNG, SVG or PDF, as the path's suffix says, completely or not at all; one not too large."""
    import vl_convert

    spec, suffix = shown(chart.to_dict()), Path(path).suffix[1:].lower()
    svg = vl_convert.vegalite_to_svg(spec)
    check_size(*map(float, re.findall(r' (?:width|height)="([^"]+)"', svg[: svg.index(">")])))
    to = {"png": lambda: vl_convert.svg_to_png(svg, scale=2.0), "pdf": lambda: vl_convert.svg_to_pdf(svg)}
    content = to.get(suffix, svg.encode)()
    with replacing(path) as partial:
        Path(partial).write_bytes(content)


def check_size(*sides: float) -> None:
    """Raise `UserError` where a chart has such a side."""
    if max(sides) > LARGEST:
        raise UserError(
            f"A picture must be at most {LARGEST:,} pixels wide and high, but this one would be {max(sides):,.0f}: "
            "draw fewer runs, languages or layers, or give shorter `--labels`."
        )


def shown(value: Any) -> Any:
    """A value of JSON whose texts have no sign that cannot be seen, which vl-convert would take for the end of all."""
    if isinstance(value, dict):
        return {visible(name): shown(one) for name, one in value.items()}
    if isinstance(value, list):
        return [shown(one) for one in value]
    return visible(value) if isinstance(value, str) else value


def with_last(name: str, values: Iterable[float], shown: Any = number) -> str:
    """A line's name with its last value."""
    last = [value for value in values if math.isfinite(value)][-1:]
    return f"{name} {shown(last[0])}" if last else name
