"""Text normalisation, and which sentence pairs are worth training on.

`normalise` is applied to all text, references included, so that a system is never marked down for a difference that
nobody can see. The tests on pairs (`why_dropped`) are for harvested text only: files of plain text are someone's
chosen corpus already.
"""

from __future__ import annotations

import itertools
import re
import sys
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Literal

from fairseq_mtmoe.data.corpora.placeholders import placeholders

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

# Control characters that are no white space, soft hyphens, byte order marks. Joiners are letters to some scripts: kept.
INVISIBLE = re.compile("[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\u00ad\ufeff]")
# What other programs take for the end of a line, where it is inside one.
_BREAK = re.compile("[\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")
_NO_WORD = re.compile(r"[\W_]+")
LENGTH_PADDING = 10
"""Added to both lengths before their ratio is taken: short names may differ more."""

WIDE = 3
"""How many Latin letters one wide (CJK) character stands for, roughly."""


def normalise(text: str) -> str:
    """One line in Unicode NFC, single spaces, without control and invisible formatting characters."""
    return " ".join(normal_form("NFC", INVISIBLE.sub("", text)).split())


@dataclass(frozen=True)
class Changes:
    """What `normalise` changes of some lines, besides white space."""

    removed: int = 0  # characters: controls and invisible ones
    breaks: int = 0  # characters inside lines that some programs take for a line's end, made spaces
    respelled: int = 0  # lines that were not in Unicode NFC


def changes_of(lines: Iterable[str]) -> Changes:
    """What `normalise` changes of these lines."""
    removed = breaks = respelled = 0
    for line in lines:
        if line.isprintable() and unicodedata.is_normalized("NFC", line):
            continue  # most lines; none of the characters in question is printable
        visible, count = INVISIBLE.subn("", line)
        removed += count
        breaks += len(_BREAK.findall(line))
        respelled += not unicodedata.is_normalized("NFC", visible)
    return Changes(removed, breaks, respelled)


def message_key(text: str) -> str:
    """What makes two messages the same for splitting: letters and digits, without case, marks and punctuation."""
    folded = normal_form("NFKC", text).casefold()
    return _NO_WORD.sub(" ", folded).strip()


def normal_form(form: Literal["NFC", "NFKC"], text: str) -> str:
    """A Unicode normal form. Where more than 30 marks follow one character, which no language needs, they are taken 30
    at a time, as in the stream-safe format of Unicode's annex 15: to sort a million of them takes days."""
    if len(text) < 1000:
        return unicodedata.normalize(form, text)
    cuts = [match.end() for match in _long_marks().finditer(text)]
    pieces = [text[start:end] for start, end in itertools.pairwise([0, *cuts, len(text)])]
    return "".join(unicodedata.normalize(form, piece) for piece in pieces)


@cache
def _long_marks() -> re.Pattern[str]:
    """30 combining marks with another one behind them."""
    marks = "".join(chr(code) for code in range(sys.maxunicode + 1) if unicodedata.combining(chr(code)))
    return re.compile(f"[{marks}]{{30}}(?=[{marks}])")


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


def _has_letter(text: str) -> bool:
    return any(character.isalpha() for character in text)


def _length_ratio(source: str, target: str) -> float:
    shorter, longer = sorted((_width(source) + LENGTH_PADDING, _width(target) + LENGTH_PADDING))
    return longer / shorter


def _width(text: str) -> int:
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in text)
    return len(text) + (WIDE - 1) * wide
