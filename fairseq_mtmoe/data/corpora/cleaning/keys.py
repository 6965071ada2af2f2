"""Keys of sentences and pairs: 64 bits (XXH3, seed 0, of UTF-32), by which equal ones are found without their text.

Among 50 million different sentences some two have the same key with a probability of 1 in 15,000.
"""

from __future__ import annotations

import shutil
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import xxhash
from numpy.typing import NDArray

from fairseq_mtmoe.data.corpora.cleaning.characters import ASSIGNED, CODES, Columns, table
from fairseq_mtmoe.data.sampling.permutation import GOLDEN, mix

Keys = NDArray[np.uint64]
VERSION = 2  # of `fold`: keys in a folder of work are of one version

# Variation selectors and their like: nobody sees them.
_UNSEEN_MARKS = frozenset(
    (0x34F, 0x17B4, 0x17B5, *range(0x180B, 0x1810), *range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))
)


def fold(character: str) -> str:
    """Return a character's form in comparisons: letters, marks and digits, without case; else empty."""
    folded = unicodedata.normalize("NFKC", character).casefold()
    if folded.startswith(" "):  # a mark by itself, such as `´`, is punctuation
        return ""
    return "".join(filter(_counts, folded.replace("i\u0307", "i")))  # `İ` is an `i` in upper case


def _counts(character: str) -> bool:
    category = unicodedata.category(character)
    return category[0] in "LN" or (category in ("Mn", "Mc") and ord(character) not in _UNSEEN_MARKS)


@cache
def folding() -> tuple[NDArray[np.uint32], NDArray[np.uint8], dict[int, str]]:
    """Return for each character's `fold` the first code point, the length, and all code points if several."""
    first, count = np.zeros(CODES, np.uint32), np.zeros(CODES, np.uint8)
    more = {}
    for code in ASSIGNED:
        character = chr(code)
        if unicodedata.category(character) in ("Cn", "Co", "Cs", "Cc"):
            continue
        if folded := fold(character):
            first[code], count[code] = ord(folded[0]), len(folded)
            if len(folded) > 1:
                more[code] = folded
    return first, count, more


def folded(columns: Columns) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """Return the folded characters of all texts, concatenated, and each text's number of them."""
    first, count, more = folding()
    counts = count[columns.codes]
    characters = np.repeat(first[columns.codes], counts)
    several = np.flatnonzero(counts > 1)
    positions, codes = np.cumsum(counts, dtype=np.int64)[several] - counts[several], columns.codes[several]
    for code in np.unique(codes).tolist():
        for offset, part in enumerate(more[code]):
            characters[positions[codes == code] + offset] = ord(part)
    return characters, columns.sums(counts)


@dataclass(frozen=True)
class SideKeys:
    """One side of pairs: keys of letters, marks and digits (`fold`), keys that ignore digits' values, and lengths."""

    sentence: Keys
    near: Keys
    counted: NDArray[np.int64]

    @classmethod
    def of(cls, columns: Columns) -> SideKeys:
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
    """Return a key for each normalised text, from its letters, marks and digits without case."""
    return SideKeys.of(Columns.of(texts)).sentence


def exact_keys(source: Sequence[str], target: Sequence[str]) -> Keys:
    """Return a key for each pair of normalised sentences, from all characters of both."""
    pairs = [f"{first}\n{second}" for first, second in zip(source, target, strict=True)]
    return np.array([xxhash.xxh3_64_intdigest(pair.encode("utf-32-le")) for pair in pairs], "u8")


def mixed(first: Keys, second: Keys) -> Keys:
    """Return a key for each pair of keys, in order; see `mix`."""
    return mix(second + first * GOLDEN)


def are_among(keys: Keys, others: Keys) -> NDArray[np.bool_]:
    """Return which keys are in `known`, which must be sorted."""
    if not len(others):
        return np.zeros(len(keys), np.bool_)
    is_among: NDArray[np.bool_] = others[np.minimum(np.searchsorted(others, keys), len(others) - 1)] == keys
    return is_among


def _hashes(characters: NDArray[np.uint32], starts: NDArray[np.int64], ends: NDArray[np.int64]) -> Keys:
    data = memoryview(characters.astype("<u4", copy=False).tobytes())
    spans = zip((4 * starts).tolist(), (4 * ends).tolist(), strict=True)
    return np.array([xxhash.xxh3_64_intdigest(data[start:end]) for start, end in spans], np.uint64)


@cache
def _digits() -> NDArray[np.bool_]:
    return table(code for code in range(0x20000) if unicodedata.category(chr(code)) == "Nd")


BYTES_PER_KEY = 64  # memory for sorting a key's part, with index and order; measured
_ENTRY = np.dtype([("key", "<u8"), ("index", "<u8")])
_MOST_BITS = 10


def first_occurrences(key_files: Sequence[Path], work: Path, memory: int) -> Iterator[NDArray[np.bool_]]:
    """Yield for each file a mask of the keys that occur for the first time in all files.

    By their first bits keys are dealt out into files in `work`, so small that `memory` (bytes) can sort one at a time.
    `key_files` are of `numpy.save`, an array of uint64 each, in the order of the text.
    """
    sizes = [len(np.load(path, mmap_mode="r")) for path in key_files]
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        _deal_out(key_files, work, sum(sizes), memory)
        is_first = np.memmap(work / "is_first", np.bool_, "w+", shape=(max(sum(sizes), 1),))
        for part in sorted(work.glob("part*")):
            entries = np.fromfile(part, _ENTRY)  # in the order of their indices
            is_first[entries["index"][_first_of_each(np.ascontiguousarray(entries["key"]))]] = True
            part.unlink()
        first = 0
        for size in sizes:
            yield np.array(is_first[first : first + size])
            first += size
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _deal_out(key_files: Sequence[Path], work: Path, total: int, memory: int) -> None:
    """Append each key with its index to its part's file; of equal keys in a batch only the first."""
    bits = 0  # leading bits of a key that determine its part, as keys are uniform
    while (total * BYTES_PER_KEY >> bits) > memory and bits < _MOST_BITS:
        bits += 1
    begins = np.arange(1 << bits, dtype=np.uint64) << np.uint64((64 - bits) % 64)
    at_once, before = memory // BYTES_PER_KEY, 0
    for path in key_files:
        keys = np.load(path, mmap_mode="r")
        for begin in range(0, len(keys), at_once):
            some = np.array(keys[begin : begin + at_once])
            first = _first_of_each(some)
            entries = np.empty(len(first), _ENTRY)
            entries["key"], entries["index"] = some[first], first + before
            for part, dealt in enumerate(np.split(entries, np.searchsorted(entries["key"], begins)[1:])):
                if len(dealt):
                    with open(work / f"part{part:04d}", "ab") as file:
                        file.write(dealt.tobytes())
            before += len(some)


def _first_of_each(keys: Keys) -> NDArray[np.int64]:
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    first: NDArray[np.int64] = order[np.append(True, keys[1:] != keys[:-1])[: len(keys)]]
    return first
