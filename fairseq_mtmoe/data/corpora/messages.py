"""Which harvested messages of programs are worth training on, and when two of them are the same.

Files of plain text are someone's chosen corpus already; corpora of any size have the rules of `cleaning`.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter

from fairseq_mtmoe.data.corpora.cleaning.characters import LENGTH_PADDING, WIDE
from fairseq_mtmoe.data.corpora.cleaning.normalising import normal_form

MAX_CHARACTERS = 400
"""Longer messages are mail templates and licences: a few of them would decide the padding of every batch."""

MAX_LENGTH_RATIO = 3.0

DROP_REASONS = {
    "empty": "no translation, or no letter in the message or its translation",
    "copy": "the translation is the message itself",
    "placeholders": "placeholders differ between message and translation",
    "length": f"longer than {MAX_CHARACTERS} characters, or one side over {MAX_LENGTH_RATIO:g} times the other",
    "duplicate": "the same message with the same translation again",
    "unequal": "lines of one file after the last line of the other",
    "reserved": "another wording or translation of a validation or test message",
}
"""Every reason for which a pair is left out, and what it means in a report."""

_NO_WORD = re.compile(r"[\W_]+")
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


def message_key(text: str) -> str:
    """What makes two messages the same for splitting: letters and digits, without case, marks and punctuation."""
    folded = normal_form("NFKC", text).casefold()
    return _NO_WORD.sub(" ", folded).strip()


def why_dropped(source: str, target: str) -> str | None:
    """The reason (a key of `DROP_REASONS`) to leave out a pair of normalised sentences, or None to keep it."""
    source_key, target_key = message_key(source), message_key(target)
    if not _has_letter(source_key) or not _has_letter(target_key):
        return "empty"
    if source_key == target_key:
        return "copy"
    if placeholders(source) != placeholders(target):
        return "placeholders"
    if max(len(source), len(target)) > MAX_CHARACTERS or _length_ratio(source, target) > MAX_LENGTH_RATIO:
        return "length"
    return None


def placeholders(text: str) -> Counter[str]:
    """How often each placeholder occurs that a program fills in: `%s`, `%(name)s`, `%1$d`, `{0}`, `{name!r:>10}`.

    A translation is of use only if it has exactly those of its message, in any order. `%1$s` counts as `%s`, and flags
    and widths do not count.
    """
    percent = (f"%{match['name'] or ''}{match['kind']}" for match in _PERCENT.finditer(text.replace("%%", "")))
    return Counter([*percent, *_BRACES.findall(text)])


def _has_letter(text: str) -> bool:
    return any(character.isalpha() for character in text)


def _length_ratio(source: str, target: str) -> float:
    shorter, longer = sorted((_width(source) + LENGTH_PADDING, _width(target) + LENGTH_PADDING))
    return longer / shorter


def _width(text: str) -> int:
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in text)
    return len(text) + (WIDE - 1) * wide
