"""Tables in Markdown, and pages in HTML that a reader opens from the disk: what all reports have in common.

Each page is one file from a Jinja2 template of its own room, beside the look that all have (`basics.css`).
"""

from __future__ import annotations

import base64
import hashlib
import re
import unicodedata
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from tabulate import tabulate

_JOINERS = "\u200c\u200d"  # are part of the spelling of Persian and many languages of India
_SPELLED = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[object]], texts: int | Sequence[int] = 1) -> str:
    """A table whose cells are shown as they are.

    Args:
        texts: how many of the first columns hold text, or which ones do; all others hold numbers, aligned to the right.
    """
    of_text = range(texts) if isinstance(texts, int) else texts
    table: str = tabulate(
        [[str(cell).replace("|", "\\|") for cell in row] for row in rows],
        [column.replace("|", "\\|") for column in columns],
        tablefmt="pipe",
        colalign=["left" if index in of_text else "right" for index in range(len(columns))],
        disable_numparse=True,
    )
    return table


@cache
def templates(folder: Path) -> Environment:
    """The templates of a folder, which may include its other files and `basics.css`.

    Whatever is put into a page is escaped; a name that the template has and nobody gave is an error. Filters for all:
    `visible`, `coded` for sentences with code between backticks, `policy_hash`, and `n` for whole numbers.
    """
    found = Environment(
        loader=FileSystemLoader([folder, Path(__file__).parent]), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    found.filters |= {"n": "{:,}".format, "visible": visible, "coded": _coded, "policy_hash": policy_hash}
    return found


def policy_hash(text: str) -> str:
    """What the policy of a page calls a script or style, so that no other is used."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def visible(text: object) -> str:
    """The text with controls, marks of direction, lone surrogates and private characters as `⟨U+202E⟩`."""
    line = str(text)
    if line.isascii() and line.isprintable():
        return line
    return "".join(
        f"⟨U+{ord(sign):04X}⟩" if unicodedata.category(sign) in _SPELLED and sign not in _JOINERS else sign
        for sign in line
    )


def _coded(text: object) -> Markup:
    """A sentence in HTML: what stands between backticks is code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))
