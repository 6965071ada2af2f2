"""HTML pages: one file with texts, tables and charts.

A page needs no server and no network.

`page_of` makes a page of sections. `templates` is for pages of another form. The style of both
is `basics.css`.
"""

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from fairseq_mtmoe.core.errors import visible
from fairseq_mtmoe.core.tables import Table

HERE = Path(__file__).parent
Chart = Mapping[str, Any]
Part = str | Sequence[str] | Table | Chart
_SIGNS = str.maketrans({sign: f"\\{sign}" for sign in "\\`*_<>[]"})
# In JSON: no character can end the `<script>` element or a line of the script.
_SPELLED = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&\u2028\u2029"}


@dataclass(frozen=True)
class Section:
    """A part of a page with a title, whose parts stand below each other.

    A part is a text (a paragraph; between backticks is code), a list of texts (its points), a
    table, or a chart (a Vega-Lite specification with its points, such as Altair's
    `chart.to_dict()`). A reader unfolds a `folded` section.
    """

    title: str
    parts: Sequence[Part]
    folded: bool = False


def page_of(
    title: str, sections: Sequence[Section], about: str = "", refresh: float | None = None
) -> str:
    """Return a page of sections; `about` stands below its title.

    An open page with `refresh` loads itself again after this number of seconds. Texts and cells are
    data, never markup.
    """
    shown = [(section, [*map(_kind_of, section.parts)]) for section in sections]
    has_charts = any(kind == "chart" for _, parts in shown for kind, _ in parts)
    scripts = [_vega(), (HERE / "page.js").read_text(encoding="utf-8")] if has_charts else []
    return (
        templates(HERE)
        .get_template("page.html.j2")
        .render(
            title=title,
            about=about,
            refresh=refresh,
            sections=shown,
            style=Markup((HERE / "basics.css").read_text(encoding="utf-8")),
            scripts=[*map(Markup, scripts)],
        )
    )


def markdown_of(title: str, sections: Sequence[Section], about: str) -> str:
    """Return a page in Markdown, without its charts and folded sections."""
    paragraphs = [f"# {_plain(title)}", about]
    for section in sections:
        if section.folded:
            continue
        paragraphs.append(f"## {section.title}")
        for kind, part in map(_kind_of, section.parts):
            if kind == "text":
                paragraphs.append(part)
            elif kind == "points":
                paragraphs.append("\n".join(f"- {_plain(point)}" for point in part))
            elif kind == "table":
                rows = [[*map(_plain, row)] for row in part.rows]
                below = [[*map(_plain, row)] for row in part.below]
                paragraphs.append(replace(part, rows=rows, below=below).in_markdown())
    return "\n\n".join(paragraphs) + "\n"


def _plain(text: object) -> str:
    """Return a text that Markdown shows as it is."""
    return visible(text).translate(_SIGNS)


def _kind_of(part: Part) -> tuple[str, Any]:
    """Return how the template shows a part, and what it shows."""
    if isinstance(part, str):
        return "text", part
    if isinstance(part, Table):
        return "table", part
    if isinstance(part, Mapping):
        text = json.dumps(part, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return "chart", Markup(text.translate(_SPELLED))
    return "points", part


@cache
def _vega() -> str:
    import vl_convert

    bundle = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return str(bundle).replace("</script", "<\\/script")


@cache
def templates(folder: Path) -> Environment:
    """Return a folder's templates, which escape values and may include `basics.css`.

    Filters: `visible`, `coded` for sentences with code between backticks, `policy_hash`, and `n`
    for whole numbers.
    """
    environment = Environment(
        loader=FileSystemLoader([folder, HERE]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "n": "{:,}".format,
        "visible": visible,
        "coded": _coded,
        "policy_hash": _policy_hash,
    }
    return environment


def _policy_hash(text: str) -> str:
    """Return the hash that allows a script or style in a page's content policy."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _coded(text: object) -> Markup:
    """Return a sentence in HTML, with text between backticks as code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))
