"""Markdown tables, and HTML pages from Jinja2 templates with a common style.

The style is `basics.css`.
"""

import base64
import hashlib
import re
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from tabulate import tabulate

from fairseq_mtmoe.errors import visible


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[object]], texts: int | Sequence[int] = 1) -> str:
    """Return a Markdown table; pipes in cells are escaped.

    texts: number of leading text columns, or their indices; they are left-aligned, numbers right-aligned.
    """
    of_text = range(texts) if isinstance(texts, int) else texts
    head, *body = ([str(cell).replace("|", "\\|") for cell in row] for row in (columns, *rows))
    sides = ["left" if index in of_text else "right" for index in range(len(columns))]
    return str(tabulate(body, head, tablefmt="pipe", colalign=sides, disable_numparse=True))


@cache
def templates(folder: Path) -> Environment:
    """Return a folder's templates, which escape values and may include `basics.css`.

    Filters: `visible`, `coded` for sentences with code between backticks, `policy_hash`, and `n` for whole numbers.
    """
    found = Environment(
        loader=FileSystemLoader([folder, Path(__file__).parent]), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    found.filters |= {"n": "{:,}".format, "visible": visible, "coded": _coded, "policy_hash": policy_hash}
    return found


def policy_hash(text: str) -> str:
    """Return the hash that allows a script or style in a page's content policy."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _coded(text: object) -> Markup:
    """Return a sentence in HTML, with text between backticks as code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))
