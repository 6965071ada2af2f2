"""Text normalisation, applied to all text, references included: no system is marked down for what nobody can see."""

from __future__ import annotations

import itertools
import re
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fairseq_mtmoe.data.corpora.cleaning.characters import CODES, Columns, table

# Control characters that are no white space, soft hyphens, byte order marks. Joiners are letters to some scripts: kept.
_INVISIBLE = re.compile("[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\u00ad\ufeff]")
# What other programs take for the end of a line, where it is inside one.
_BREAK = re.compile("[\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")


def normalise(text: str) -> str:
    """One line in Unicode NFC, single spaces, without control and invisible formatting characters."""
    return " ".join(normal_form("NFC", _INVISIBLE.sub("", text)).split())


def normalised(texts: Sequence[str]) -> list[str]:
    """`normalise` of each text, three times as fast: what needs nothing but NFC is found in one look."""
    columns = Columns.of(texts)
    spaces = columns.codes == ord(" ")
    # Two spaces together are inside a text, or at one of its ends: columns have a space on either side of a text.
    doubled = np.flatnonzero(spaces[1:] & spaces[:-1]) + 1
    irregular = np.flatnonzero(_irregular()[columns.codes])
    result = [normal_form("NFC", text) for text in texts]
    for row in columns.texts_at(np.concatenate([doubled, irregular])).tolist():
        result[row] = normalise(texts[row])
    return result


@cache
def _irregular() -> NDArray[np.bool_]:
    """White space other than a space, and what `normalise` removes."""
    characters = map(chr, range(CODES))
    return table(ord(one) for one in characters if one != " " and (one.isspace() or _INVISIBLE.match(one)))


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
        visible, count = _INVISIBLE.subn("", line)
        removed += count
        breaks += len(_BREAK.findall(line))
        respelled += not unicodedata.is_normalized("NFC", visible)
    return Changes(removed, breaks, respelled)


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
