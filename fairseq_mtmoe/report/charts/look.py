"""Shapes, palette and files that all charts share. Sizes are in pixels.

A chart's points are mappings with `x`, `y`, `line` (the line's name), `panel` (the panel's name)
and other fields. Colours are Okabe and Ito's, or viridis for many lines: both palettes are safe for
every kind of colour vision.
"""

import math
import struct
import textwrap
import zlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import altair as alt

from fairseq_mtmoe import __version__
from fairseq_mtmoe.core.errors import visible
from fairseq_mtmoe.core.files import replacing

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#7a5cc0")
DASHES = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3], [12, 4], [4, 1])
EARLY_TO_LATE = ("#E69F00", "#0072B2", "#000000")  # from light to dark
GREY = "#737373"
FEW = 12  # a line with at most this number of points marks each of them
LEGEND_LINE = 13
NOTE_CHARACTERS = 110  # in a line of a note
END_SIZE = 12  # bytes of the chunk that ends a PNG

Point = dict[str, Any]
Chart = Any  # an Altair chart; its class depends on its content


@dataclass(frozen=True)
class Panel:
    """The form of each panel of a line chart.

    Attributes:
        x, y: the axes' titles.
        log: whether the vertical axis is logarithmic.
        axis: d3's format of the vertical axis.
        low, high: the ends of the vertical axis; by default those of the points.
        columns: number of panels beside each other.
        sides: whether the panels share their vertical axis.
    """

    x: str
    y: str = ""
    log: bool = False
    axis: str = ",.4~r"
    width: int = 420
    height: int = 260
    columns: int = 2
    low: float | None = None
    high: float | None = None
    sides: str = "independent"


def finite(value: float) -> float | None:
    """Return a number for JSON: None if it is not finite."""
    return float(value) if math.isfinite(value) else None


def number(value: float) -> str:
    """Format a figure in a few characters: `12.34`, `1,234`."""
    return f"{value:.2f}" if abs(value) < 100 else f"{value:,.0f}"


def percent(share: float) -> str:
    """Format a share with about two digits: `26%`, `4.4%`, `0.42%`."""
    digits = sum(share < bound for bound in (0.1, 0.01))
    return f"{share:.{digits}%}"


def lines(points: Sequence[Point], form: Panel) -> Chart:
    """Draw lines over `x`, in a panel per `panel`.

    A point that is `sparse` becomes a vertical line with this label.
    """
    names = order_of(points, "line")
    scale = alt.Scale(zero=False, nice=False, padding=5)
    y_scale = scale.copy()
    if form.log:
        y_scale.type = "log"
    if form.low is not None:
        y_scale.domain = [form.low, form.high]
    positions = order_of(points, "x")
    largest = max(positions, default=0)
    x_axis = alt.Axis(format="~s" if largest >= 10_000 else ",~f", tickMinStep=1, grid=False)
    legend = alt.Legend(title=None, symbolType="stroke")
    dashes = alt.Scale(domain=names, range=[*DASHES])
    base = alt.Chart().encode(
        x=alt.X("x:Q", title=form.x, axis=x_axis, scale=scale),
        color=alt.Color("line:N", scale=colors(names), legend=legend),
        strokeDash=alt.StrokeDash("line:N", legend=legend, scale=dashes),
    )
    y_axis = alt.Axis(format=form.axis, tickCount=6)
    tooltip: list[Any] = [
        "line:N",
        alt.Tooltip("x:Q", title=form.x, format=","),
        alt.Tooltip("y:Q", title=form.y or "value", format=form.axis),
    ]
    curves = base.transform_filter("!datum.sparse").encode(
        y=alt.Y("y:Q", title=form.y or None, scale=y_scale, axis=y_axis), tooltip=tooltip
    )
    marks: Any = {"filled": True, "size": 28} if len(positions) <= FEW else False
    became_sparse = base.transform_filter("datum.sparse")
    chart = alt.layer(
        curves.mark_line(point=marks, clip=form.low is not None),
        became_sparse.mark_rule().encode(tooltip="sparse:N"),
        became_sparse.mark_text(align="left", dx=3, y=6, fontSize=9).encode(text="sparse:N"),
        # shows the tooltip near a line
        curves.mark_point(opacity=0, size=90, clip=form.low is not None),
        data=alt.InlineData([*points]),
    )
    faceted = panels(chart.properties(width=form.width, height=form.height), form.columns, points)
    return faceted.resolve_scale(y=form.sides).resolve_axis(x="independent")


def order_of(points: Iterable[Point], field: str) -> list[Any]:
    """Return a field's values in order of appearance, as Vega-Lite sorts by default."""
    return list(dict.fromkeys(point[field] for point in points))


def colors(names: Sequence[str], few: Sequence[str] = PALETTE) -> alt.Scale:
    """Return a colour per name: of `few`, or of viridis without its pale end."""
    if len(names) <= len(few):
        return alt.Scale(domain=list(names), range=list(few))
    step = 0.85 / max(1, len(names) - 1)
    ends = [-step, 0.85 + step]  # Vega leaves out both
    return alt.Scale(domain=list(names), scheme=alt.SchemeParams("viridis", extent=ends))


def panels(chart: Chart, columns: int, points: Iterable[Point]) -> Chart:
    """Facet the chart: one panel per `panel` of the points, under its name."""
    names = order_of(points, "panel")
    size, padding = (11, 4) if any(names) else (0, 0)
    header = alt.Header(
        title=None,
        labelFontSize=size,
        labelFontWeight="bold",
        labelAnchor="start",
        labelPadding=padding,
    )
    facet = alt.Facet("panel:N", title=None, sort=names, header=header)
    return chart.facet(facet, columns=columns, spacing=18)


def heat(
    cells: Sequence[Point], scale: alt.Scale, axis: str = ".2f", written: bool = False
) -> Chart:
    """Draw a heat map of `value` over `column` and `row`, in a panel per `panel`.

    With `written`, cells are larger and show their values in d3's format `axis`.
    """
    step = 30 if written else 14
    base = alt.Chart().encode(
        x=alt.X(
            "column:O", title=None, sort=None, axis=alt.Axis(labelAngle=-90, labelOverlap=True)
        ),
        y=alt.Y("row:O", title=None, sort=None),
    )
    tooltip = ["row:N", "column:N", alt.Tooltip("value:Q", format=axis)]
    color = alt.Color("value:Q", title=None, scale=scale, legend=alt.Legend(format=axis))
    layers = [base.mark_rect().encode(color=color, tooltip=tooltip)]
    if written:
        ink = alt.condition("datum.dark", alt.value("white"), alt.value("black"))
        text = base.transform_filter("isValid(datum.value)").mark_text(fontSize=9)
        layers.append(text.encode(text=alt.Text("value:Q", format=axis), color=ink))
    chart = alt.layer(*layers, data=alt.InlineData([*cells])).properties(
        width=step * most(cells, "column"), height=step * most(cells, "row")
    )
    return panels(chart, 4, cells).resolve_scale(x="independent", y="independent")


def most(points: Sequence[Point], field: str) -> int:
    """Return the largest number of distinct values of a field in a panel."""
    values = defaultdict(set)
    for point in points:
        values[point["panel"]].add(point[field])
    return max(map(len, values.values()))


def finished(chart: Chart, title: str, *notes: str) -> Chart:
    """Return the chart with its title, its notes and the common style."""
    subtitle: list[str] = []
    for note in notes:
        subtitle += textwrap.wrap(note, NOTE_CHARACTERS, break_on_hyphens=False)
    text = alt.TitleParams(
        title,
        subtitle=subtitle,
        anchor="start",
        fontSize=14,
        subtitleFontSize=10,
        subtitleColor=GREY,
        offset=8,
    )
    styled = chart.properties(title=text, background="white").configure_view(stroke=None)
    styled = styled.configure_axis(
        domainColor="#888",
        tickColor="#888",
        gridColor="#e6e6e6",
        labelFontSize=10,
        titleFontSize=11,
        titleFontWeight="normal",
    ).configure_legend(
        symbolLimit=0,
        labelLimit=420,
        labelFontSize=10,
        symbolStrokeWidth=2,
        symbolSize=260,
        columns=1,
    )
    return styled.configure_line(strokeWidth=1.8)


def spec_of(chart: Chart) -> Any:
    """Return a chart's Vega-Lite specification, with invisible characters spelled out."""
    return _spelled(chart.to_dict())


def _spelled(value: Any) -> Any:
    # vl-convert would end its input at a NUL.
    if isinstance(value, dict):
        return {visible(name): _spelled(child) for name, child in value.items()}
    if isinstance(value, list):
        return [*map(_spelled, value)]
    return visible(value) if isinstance(value, str) else value


def save(chart: Chart, path: Path) -> None:
    """Write a chart as PNG with this package's version, whole or not at all."""
    import vl_convert

    content = vl_convert.vegalite_to_png(spec_of(chart), scale=2.0)
    with replacing(path) as partial:
        partial.write_bytes(_with_version(content))


def _with_version(png: bytes) -> bytes:
    """Return a PNG with this package's version as its text `Software`."""
    text = b"tEXtSoftware\0fairseq_mtmoe " + __version__.encode()
    length, checksum = len(text) - len(b"tEXt"), zlib.crc32(text)
    start = len(png) - END_SIZE
    return png[:start] + struct.pack(f">I{len(text)}sI", length, text, checksum) + png[start:]


def with_last(name: str, values: Iterable[float], form: Any = number) -> str:
    """Return a line's name with its last finite value."""
    last = [*filter(math.isfinite, values)][-1:]
    return " ".join([name, *map(form, last)])
