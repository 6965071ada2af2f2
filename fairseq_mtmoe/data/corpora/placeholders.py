"""Placeholders that a program fills in: `%s`, `%(name)s`, `%1$d`, `{0}`, `{name!r:>10}`.

A translation is of use only if it has exactly those of its message, in any order.
"""

from __future__ import annotations

import re
from collections import Counter

_PERCENT = re.compile(
    r"""
    %(?P<name>\(\w+\))?         # %(name)s
    (?:\d++\$)?                 # %1$s: a position, which only says that the order has changed
    [#0+-]*+(?:\*|\d++)?(?:\.(?:\*|\d++))?  # possessive: a million zeros are not taken apart in every way
    (?:hh|h|ll|l|z|j|t|L)?      # C's lengths
    (?P<kind>[diouxXeEfFgGcrsap])(?(name)|(?!\w))  # %(count)dmin, but not 50%discount
    """,
    re.VERBOSE | re.ASCII,
)
_BRACES = re.compile(r"(?<!\{)\{[\w.\[\]]*(?:![rsa])?(?::[^{}]*)?\}(?!\})")


def placeholders(text: str) -> Counter[str]:
    """How often each placeholder occurs in `text`; `%1$s` counts as `%s`, and flags and widths do not count."""
    percent = (f"%{match['name'] or ''}{match['kind']}" for match in _PERCENT.finditer(text.replace("%%", "")))
    return Counter([*percent, *_BRACES.findall(text)])
