"""Keys: 64 bits for a sentence or a pair of sentences, by which equal ones are found without their text.

They are the same on every machine and in every version of the libraries, so that keys on disk stay what they are: each
is XXH3 (64 bits, seed 0) of code points in UTF-32, little-endian, and pairs of keys are mixed as below. Among 50
million different sentences some two have the same key with a probability of 1 in 15,000.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import xxhash
from numpy.typing import NDArray

from fairseq_mtmoe.data.corpora.cleaning.characters import CODES, Columns, folded

Keys = NDArray[np.uint64]


@dataclass(frozen=True)
class SideKeys:
    """What one side of sentence pairs is, for comparing: without case, spaces, punctuation and symbols.

    Attributes:
        sentence: equal where all letters and digits are (`characters.fold`).
        near: equal where all letters are, and where the same number of digits stands.
        counted: how many letters and digits there are.
    """

    sentence: Keys
    near: Keys
    counted: NDArray[np.int64]

    @classmethod
    def of(cls, columns: Columns) -> SideKeys:
        """The keys of these texts."""
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
    """A key for each text, of its letters and digits without case: the same for what differs in nothing else.

    Args:
        texts: normalised ones (`normalise`), in any language.
    """
    return SideKeys.of(Columns.of(texts)).sentence


def exact_keys(source: Sequence[str], target: Sequence[str]) -> Keys:
    """A key for each pair of normalised sentences, of every character of both."""
    pairs = zip(source, target, strict=True)
    return _array([xxhash.xxh3_64_intdigest(f"{one}\n{other}".encode("utf-32-le")) for one, other in pairs])


def mixed(first: Keys, second: Keys) -> Keys:
    """A key for each pair of keys, in which their order counts: the finaliser of SplitMix64 (Steele, Lea and Flood,
    "Fast splittable pseudorandom number generators", 2014) of second + first · the golden ratio."""
    bits = second + first * np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    key: Keys = bits ^ (bits >> np.uint64(31))
    return key


def are_among(keys: Keys, known: Keys) -> NDArray[np.bool_]:
    """Which of the keys are in `known`, which is sorted."""
    if not len(known):
        return np.zeros(len(keys), np.bool_)
    places = np.searchsorted(known, keys)
    found: NDArray[np.bool_] = known[np.minimum(places, len(known) - 1)] == keys
    return found


def _hashes(characters: NDArray[np.uint32], starts: NDArray[np.int64], ends: NDArray[np.int64]) -> Keys:
    data = memoryview(characters.astype("<u4", copy=False).tobytes())
    spans = zip((4 * starts).tolist(), (4 * ends).tolist(), strict=True)
    return _array([xxhash.xxh3_64_intdigest(data[start:end]) for start, end in spans])


def _array(keys: list[int]) -> Keys:
    return np.array(keys, np.uint64)


@cache
def _digits() -> NDArray[np.bool_]:
    entries = np.zeros(CODES, np.bool_)
    entries[[code for code in range(0x20000) if unicodedata.category(chr(code)) == "Nd"]] = True
    return entries
