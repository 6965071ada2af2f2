"""Filters of a block's training pairs: rules over columns of texts.

They take a few microseconds per pair.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import compress

import numpy as np
import xxhash
from numpy.typing import NDArray

from fairseq_mtmoe.corpora.blocks import Block, shortened
from fairseq_mtmoe.corpora.cleaning.characters import (
    LENGTH_PADDING,
    WIDE,
    Columns,
    normalised,
    wide,
)
from fairseq_mtmoe.corpora.cleaning.keys import Keys, SideKeys, exact_keys, mixed
from fairseq_mtmoe.corpora.cleaning.languages import FOREIGN, in_other_language, letters
from fairseq_mtmoe.corpora.recipes.schema import Action, Filters

SAMPLES = 5  # pairs of each rule in a report
_SHOWN = 200  # characters of a sentence in a report

Sample = tuple[int, str, str]  # (line of the corpus, source sentence, target sentence)

Mask = NDArray[np.bool_]

# Largest share of a sentence's letters in foreign scripts, wide letters counted as several.
# Software manuals are half names in many languages; text in another language is above this share.
MAX_FOREIGN = 0.7
# Pairs whose arrays fit into the processor's cache, which makes rules a third faster.
_AT_ONCE = 4096

# Rules in order, with their explanations in reports; a pair counts for the first rule that finds
# it. The last three are applied elsewhere, as they need the keys of other corpora (`are_among`,
# `first_occurrences`).
RULES = {
    "length": "a side is longer than `max_characters`",
    "empty": "a side has neither letters nor digits",
    "ratio": "one side is over `max_ratio` times as long as the other",
    "copy": "source and target are equal except for case, punctuation and spaces",
    "wrong_script": (
        f"over {MAX_FOREIGN:.0%} of a side's letters belong to scripts of other languages"
    ),
    "language": "a side is in another language according to the model of `identify`",
    "held_out": "a side is a validation or test sentence of any language pair",
    "duplicate": "the pair occurred before in its language pair's corpora",
    "near_duplicate": "the pair occurred before, except for case, punctuation, spaces and digits",
}


@dataclass
class Cleaned:
    """The kept pairs of a block, with keys and counts."""

    source: list[str]  # normalised
    target: list[str]
    lines: NDArray[np.int64]
    exact: Keys  # keys of pairs
    near: Keys  # keys of pairs without case, punctuation, spaces and digits
    source_keys: Keys  # `sentence_keys` of `source`
    target_keys: Keys
    counts: Counter[str]  # pairs left out, by `RULES`
    samples: dict[str, list[Sample]]  # pairs left out, by rule


class _Side:
    """One side of pairs for the rules.

    In lengths and letters a wide character counts as `WIDE`.
    """

    def __init__(self, texts: Sequence[str], most: int) -> None:
        self.too_long: Mask = np.fromiter(map(len, texts), np.int64, len(texts)) > most
        self.texts = list(texts)
        # Texts that are too long are not examined, as one line may be as long as all others.
        for row in np.flatnonzero(self.too_long).tolist():
            self.texts[row] = ""

    @cached_property
    def columns(self) -> Columns:
        return Columns.of(self.texts)

    @cached_property
    def keys(self) -> SideKeys:
        return SideKeys.of(self.columns)

    @cached_property
    def widths(self) -> NDArray[np.int64]:
        """Return the texts' lengths, with `LENGTH_PADDING`."""
        lengths = np.fromiter(map(len, self.texts), np.int64, len(self.texts)) + LENGTH_PADDING
        return lengths + (WIDE - 1) * self.columns.sums(wide()[self.columns.codes])

    def is_foreign(self, lang: str) -> Mask:
        # In the sum of `letters`, foreign ones count `FOREIGN` each, and native ones 1.
        foreign, native = np.divmod(self.columns.sums(letters(lang)[self.columns.codes]), FOREIGN)
        is_foreign: Mask = foreign > MAX_FOREIGN * (foreign + native)
        return is_foreign


def _rules(
    source: _Side, target: _Side, langs: Sequence[str], filters: Filters | None
) -> Iterator[tuple[str, Callable[[Mask], Mask]]]:
    """Yield rules with their functions.

    A function maps the mask of pairs still kept to the mask of pairs found.
    """
    if filters is None:
        return
    yield "length", lambda _: source.too_long | target.too_long
    yield "empty", lambda _: (source.keys.counted == 0) | (target.keys.counted == 0)
    widths = (source.widths, target.widths)
    yield "ratio", lambda _: np.maximum(*widths) / np.minimum(*widths) > filters.max_ratio
    if filters.copies is Action.drop:
        yield "copy", lambda _: source.keys.sentence == target.keys.sentence
    if filters.wrong_script is Action.drop:
        yield "wrong_script", lambda _: source.is_foreign(langs[0]) | target.is_foreign(langs[1])
    if filters.identify is not None:
        yield "language", lambda stays: _is_other((source, target), stays, langs, filters)


def _is_other(sides: Sequence[_Side], stays: Mask, langs: Sequence[str], filters: Filters) -> Mask:
    """Return which of the kept pairs have a side in another language.

    The model identifies the language.
    """
    is_other = np.zeros(len(stays), np.bool_)
    for side, lang in zip(sides, langs, strict=True):
        examined = stays & ~is_other
        texts = list(compress(side.texts, examined))
        is_other[examined] = in_other_language(
            texts, lang, str(filters.identify), filters.min_confidence
        )
    return is_other


def clean(block: Block, langs: Sequence[str], filters: Filters | None) -> Cleaned:
    """Return the normalised pairs that no rule finds, with keys.

    Without `filters` these are all pairs.

    `langs` are the languages of source and target, in plain codes.
    """
    most = sys.maxsize if filters is None else filters.max_characters
    source: list[str] = []
    target: list[str] = []
    counts = Counter[str]()
    samples: dict[str, list[Sample]] = {}
    arrays = []
    for start in range(0, max(len(block.source), 1), _AT_ONCE):
        source += normalised(block.source[start : start + _AT_ONCE])
        target += normalised(block.target[start : start + _AT_ONCE])
        source_side = _Side(source[start:], most)
        target_side = _Side(target[start:], most)
        stays = np.ones(len(source_side.texts), np.bool_)
        for rule, find in _rules(source_side, target_side, langs, filters):
            left_out = np.flatnonzero(find(stays) & stays)
            stays[left_out] = False
            counts[rule] += len(left_out)
            rows = (left_out + start).tolist()
            lost = (sample(int(block.lines[row]), source[row], target[row]) for row in rows)
            samples[rule] = chosen([*samples.get(rule, ()), *lost])
        near = mixed(source_side.keys.near, target_side.keys.near)
        arrays.append((stays, near, source_side.keys.sentence, target_side.keys.sentence))
    stays, *keys = map(np.concatenate, zip(*arrays, strict=True))
    source = list(compress(source, stays))
    target = list(compress(target, stays))
    near, source_keys, target_keys = (some[stays] for some in keys)
    exact = exact_keys(source, target)
    lines = block.lines[stays]
    return Cleaned(source, target, lines, exact, near, source_keys, target_keys, counts, samples)


def sample(line: int, source: str, target: str) -> Sample:
    """Return a pair for reports, with long sentences truncated."""
    return line, shortened(source, _SHOWN), shortened(target, _SHOWN)


def chosen(samples: Iterable[Sample]) -> list[Sample]:
    """Return `SAMPLES` of them by hash, sorted by line.

    The order of blocks does not change the samples.
    """
    by_hash = sorted(
        samples, key=lambda pair: xxhash.xxh3_64_intdigest("\n".join(map(str, pair)).encode())
    )
    return sorted(by_hash[:SAMPLES])
