"""Pages in HTML that a reader opens from the disk: what those of different rooms have in common.

Each is one file from a Jinja2 template of its own room, beside the look that all have (`basics.css`).
"""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from fairseq_mtmoe.io.pages.visible import visible

__all__ = ["policy_hash", "templates", "visible"]


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
    found.filters |= {"n": _number, "visible": visible, "coded": _coded, "policy_hash": policy_hash}
    return found


def policy_hash(text: str) -> str:
    """What the policy of a page calls a script or style, so that no other is used."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _coded(text: object) -> Markup:
    """A sentence in HTML: what stands between backticks is code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def _number(value: int) -> str:
    return f"{value:,}"
