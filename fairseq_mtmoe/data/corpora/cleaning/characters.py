"""Many texts as one array of code points, and tables with an entry for each code point.

A rule that asks something of every character of every text is one look-up in a table and one sum for each text: a
hundred times faster than a loop over characters, and five times faster than regular expressions. The tables are made
from Python's own Unicode data, so that they say what `unicodedata` says.
"""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from fontTools.unicodedata import script as script_of
from numpy.typing import NDArray

CODES = sys.maxunicode + 1
# Of the planes in between none has a character; the last two are for private use. Looking at each takes half a second.
_ASSIGNED = (*range(0x40000), *range(0xE0000, 0xE1000))
WIDE = 3
"""How many Latin letters one wide (CJK) character stands for, roughly."""

LENGTH_PADDING = 10
"""Added to both lengths before their ratio is taken: short texts may differ more."""

_NO_SCRIPT = frozenset({"Zyyy", "Zinh", "Zzzz"})  # common to all, inherited from the letter before, not known
# Variation selectors and their like: nobody sees them.
_UNSEEN_MARKS = frozenset(
    (0x34F, 0x17B4, 0x17B5, *range(0x180B, 0x1810), *range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))
)


@dataclass(frozen=True)
class Columns:
    """Texts one behind the other, with a space before each and one at the end.

    Attributes:
        codes: their code points, with the spaces.
        starts: where each begins. Up to the next one's start it has at least one entry, its space.
    """

    codes: NDArray[np.uint32]
    starts: NDArray[np.int64]

    @classmethod
    def of(cls, texts: Sequence[str]) -> Columns:
        """The columns of these texts."""
        text = f" {' '.join(texts)} " if texts else ""
        lengths = np.fromiter(map(len, texts), np.int64, len(texts))
        starts = np.cumsum(lengths + 1) - lengths
        return cls(np.frombuffer(text.encode("utf-32-le"), dtype="<u4"), starts)

    def sums(self, values: NDArray[np.generic]) -> NDArray[np.int64]:
        """The sum of `values`, one for each code point, over each text; those of spaces must be 0."""
        if not len(self.starts):
            return np.zeros(0, np.int64)
        return np.add.reduceat(values, self.starts, dtype=np.int64)

    def texts_at(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """The numbers of the texts that these places in `codes` lie in, each once."""
        return np.unique(np.searchsorted(self.starts, places, side="right") - 1)


def table(codes: Iterable[int]) -> NDArray[np.bool_]:
    """A table that is true for these code points."""
    entries = np.zeros(CODES, np.bool_)
    entries[list(codes)] = True
    return entries


@cache
def wide() -> NDArray[np.bool_]:
    """Characters that fill the place of two Latin ones: Chinese, Japanese, Korean."""
    return table(code for code in _ASSIGNED if unicodedata.east_asian_width(chr(code)) in "WF")


@cache
def scripts() -> tuple[dict[str, int], NDArray[np.uint8]]:
    """Every script's number, by its code of ISO 15924, and the number of each letter's or mark's script: 0 for what is
    neither or belongs to several scripts."""
    numbers: dict[str, int] = {}
    entries = np.zeros(CODES, np.uint8)
    for code in _ASSIGNED:
        if unicodedata.category(chr(code))[0] in "LM" and (script := script_of(chr(code))) not in _NO_SCRIPT:
            entries[code] = numbers.setdefault(script, len(numbers) + 1)
    return numbers, entries


@dataclass(frozen=True)
class Folding:
    """What each character is for comparing sentences.

    Attributes:
        first: the code point that it becomes, or the first of them.
        count: how many it becomes: 0 for what does not count.
        more: those that become several, with all of them.
    """

    first: NDArray[np.uint32]
    count: NDArray[np.uint8]
    more: dict[int, str]


def fold(character: str) -> str:
    """What a character is for comparing sentences: letters and digits in compatibility form, without case.

    Vowel signs (marks of combining class 0) are letters. Other marks count only in letters that have them, as in é.
    """
    folded = unicodedata.normalize("NFKC", character).casefold()
    return "".join(part for part in folded if _counts(part))


def _counts(character: str) -> bool:
    category = unicodedata.category(character)
    if category in ("Mn", "Mc"):
        return unicodedata.combining(character) == 0 and ord(character) not in _UNSEEN_MARKS
    return category[0] in "LN"


@cache
def folding() -> Folding:
    """`fold` for every character."""
    first, count = np.zeros(CODES, np.uint32), np.zeros(CODES, np.uint8)
    more = {}
    for code in _ASSIGNED:
        character = chr(code)
        if unicodedata.category(character) in ("Cn", "Co", "Cs", "Cc"):
            continue
        if folded := fold(character):
            first[code], count[code] = ord(folded[0]), len(folded)
            if len(folded) > 1:
                more[code] = folded
    return Folding(first, count, more)


def folded(columns: Columns) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """The folded characters of all texts, one behind the other, and how many each text has."""
    form = folding()
    counts = form.count[columns.codes]
    characters = np.repeat(form.first[columns.codes], counts)
    several = np.flatnonzero(counts > 1)
    if len(several):
        first = np.cumsum(counts, dtype=np.int64)[several] - counts[several]
        _spell_out(characters, first, columns.codes[several])
    return characters, columns.sums(counts)


def _spell_out(characters: NDArray[np.uint32], places: NDArray[np.int64], codes: NDArray[np.uint32]) -> None:
    """Write what the characters `codes` become to these places."""
    for code in np.unique(codes).tolist():
        for offset, part in enumerate(folding().more[code]):
            characters[places[codes == code] + offset] = ord(part)
