"""Keys of sentences and pairs, which find equal ones without their text.

Keys have 64 bits (XXH3, seed 0, of UTF-32).

Among 50 million different sentences some two have the same key with a probability of 1 in 15,000.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import xxhash
from numpy.typing import NDArray

from fairseq_mtmoe.corpora.cleaning.characters import ASSIGNED, CODES, Columns, table
from fairseq_mtmoe.multitask.sampling.permutation import GOLDEN, mix

Keys = NDArray[np.uint64]
NO_KEYS: Keys = np.zeros(0, np.uint64)
VERSION = 2  # of `fold`: keys in a folder of work are of one version

# Variation selectors and their like: nobody sees them.
_UNSEEN_MARKS = frozenset(
    (
        0x34F,
        0x17B4,
        0x17B5,
        *range(0x180B, 0x1810),
        *range(0xFE00, 0xFE10),
        *range(0xE0100, 0xE01F0),
    )
)


def fold(character: str) -> str:
    """Return a character's form in comparisons.

    Letters, marks and digits have one, without case. The form of others is empty.
    """
    folded = unicodedata.normalize("NFKC", character).casefold()
    if folded.startswith(" "):  # a mark by itself, such as `´`, is punctuation
        return ""
    return "".join(filter(_counts, folded.replace("i\u0307", "i")))  # `İ` is an `i` in upper case


def _counts(character: str) -> bool:
    category = unicodedata.category(character)
    return category[0] in "LN" or (category in ("Mn", "Mc") and ord(character) not in _UNSEEN_MARKS)


@cache
def folding() -> tuple[NDArray[np.uint32], NDArray[np.uint8], dict[int, str]]:
    """Return each `fold`'s first code point and length, and all of the longer ones."""
    first = np.zeros(CODES, np.uint32)
    count = np.zeros(CODES, np.uint8)
    more = {}
    for code in ASSIGNED:
        character = chr(code)
        if unicodedata.category(character) in ("Cn", "Co", "Cs", "Cc"):
            continue
        if folded := fold(character):
            first[code] = ord(folded[0])
            count[code] = len(folded)
            if len(folded) > 1:
                more[code] = folded
    return first, count, more


def folded(columns: Columns) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """Return the folded characters of all texts, and each text's number of them.

    The characters are concatenated.
    """
    first, count, more = folding()
    counts = count[columns.codes]
    characters = np.repeat(first[columns.codes], counts)
    several = np.flatnonzero(counts > 1)
    positions = np.cumsum(counts, dtype=np.int64)[several] - counts[several]
    codes = columns.codes[several]
    for code in np.unique(codes).tolist():
        for offset, part in enumerate(more[code]):
            characters[positions[codes == code] + offset] = ord(part)
    return characters, columns.sums(counts)


@dataclass(frozen=True)
class SideKeys:
    """One side of pairs: keys and lengths.

    Keys are of letters, marks and digits (`fold`). Other keys ignore digits' values.
    """

    sentence: Keys
    near: Keys
    counted: NDArray[np.int64]

    @classmethod
    def of(cls, columns: Columns) -> SideKeys:
        """Return the keys and lengths of one side's texts."""
        characters, counted = folded(columns)
        ends = np.cumsum(counted)
        sentence = _hashes(characters, ends - counted, ends)
        digits = _digits()[characters]
        near = sentence.copy()
        rows = np.unique(np.searchsorted(ends, np.flatnonzero(digits), side="right"))
        characters[digits] = ord("0")
        near[rows] = _hashes(characters, (ends - counted)[rows], ends[rows])
        return cls(sentence, near, counted)


def sentence_keys(texts: Sequence[str]) -> Keys:
    """Return a key for each normalised text.

    Keys are made from letters, marks and digits without case.
    """
    return SideKeys.of(Columns.of(texts)).sentence


def exact_keys(source: Sequence[str], target: Sequence[str]) -> Keys:
    """Return a key for each pair of normalised sentences, from all characters of both."""
    pairs = map("\n".join, zip(source, target, strict=True))
    return np.array([xxhash.xxh3_64_intdigest(pair.encode("utf-32-le")) for pair in pairs], "u8")


def mixed(first: Keys, second: Keys) -> Keys:
    """Return a key for each pair of keys, in order; see `mix`."""
    return mix(second + first * GOLDEN)


def are_among(keys: Keys, others: Keys) -> NDArray[np.bool_]:
    """Return which keys are in `others`, which must be sorted."""
    if not len(others):
        return np.zeros(len(keys), np.bool_)
    is_among: NDArray[np.bool_] = (
        others[np.minimum(np.searchsorted(others, keys), len(others) - 1)] == keys
    )
    return is_among


def _hashes(
    characters: NDArray[np.uint32], starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> Keys:
    data = memoryview(characters.astype("<u4", copy=False).tobytes())
    spans = zip((4 * starts).tolist(), (4 * ends).tolist(), strict=True)
    return np.array([xxhash.xxh3_64_intdigest(data[start:end]) for start, end in spans], np.uint64)


@cache
def _digits() -> NDArray[np.bool_]:
    return table(code for code in range(0x20000) if unicodedata.category(chr(code)) == "Nd")


KEYS_AT_ONCE = 1 << 22  # keys sorted at a time: 160 MB


def first_occurrences(keys: Keys) -> NDArray[np.bool_]:
    """Return a mask of the keys that occur for the first time.

    Parts of the keys are sorted in turn.
    """
    is_first = np.zeros(len(keys), np.bool_)
    number = len(keys) // KEYS_AT_ONCE + 1
    for part in range(number):  # keys are uniform
        first = (2**64 * part) // number
        last = (2**64 * (part + 1)) // number - 1
        rows = np.flatnonzero((keys >= np.uint64(first)) & (keys <= np.uint64(last)))
        _, places = np.unique(keys[rows], return_index=True)
        is_first[rows[places]] = True
    return is_first
