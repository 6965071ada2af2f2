"""Which training pairs of a block are left out, and why: rules over columns of texts.

`catalogs.why_dropped` is for harvested messages of programs, and reads one pair at a time. This is for corpora of any
size: a pair takes a few microseconds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import compress

import numpy as np
import xxhash
from numpy.typing import NDArray

from fairseq_mtmoe.data.corpora.blocks import Block
from fairseq_mtmoe.data.corpora.cleaning import identification
from fairseq_mtmoe.data.corpora.cleaning.characters import (
    LENGTH_PADDING,
    WIDE,
    Changes,
    Columns,
    changes_of,
    normalised,
    wide,
)
from fairseq_mtmoe.data.corpora.cleaning.keys import Keys, SideKeys, exact_keys, mixed
from fairseq_mtmoe.data.corpora.cleaning.languages import FOREIGN, letters
from fairseq_mtmoe.data.corpora.recipes.schema import Action, Filters, Role

SAMPLES = 5  # how many pairs of each rule a report has

_MOST_CHARACTERS = 200  # characters of a sentence that a report shows

Sample = tuple[int, str, str]  # (line of the corpus, source sentence, target sentence)

Found = NDArray[np.bool_]

MAX_FOREIGN = 0.7
"""Share of a sentence's letters that may belong to scripts which its language is not written in, a wide one counted as
several: instructions for programs are half names in many languages, and what is in another language is over it."""

_AT_ONCE = 4096  # pairs: the arrays of so many stay in a processor's cache, which makes rules a third faster

RULES = {
    "length": "a side is longer than `max_characters`",
    "empty": "a side has neither letters nor digits",
    "ratio": "one side is over `max_ratio` times as long as the other",
    "copy": "the target is the source, but for case, punctuation and spaces",
    "wrong_script": f"over {MAX_FOREIGN:.0%} of a side's letters belong to scripts that its language has not",
    "language": "a side is in another language, says the model of `identify`",
    "held_out": "a side is a validation or test sentence, of whatever language pair",
    "duplicate": "the pair occurred before in its language pair's corpora",
    "near_duplicate": "but for case, punctuation, spaces and digits, the pair occurred before",
}
"""Every rule in the order in which they are asked, and what it means in a report: a pair counts for the first one that
finds it. The last three are not asked here: they are about keys, and need other corpora (`are_among`,
`first_occurrences`)."""

CHANGES = {
    "removed": "control and invisible characters removed",
    "breaks": "line breaks inside lines made spaces",
    "respelled": "sentences brought to Unicode NFC",
}
"""What normalising changes besides spaces."""


@dataclass
class Cleaned:
    """What is left of a block."""

    source: list[str]  # normalised
    target: list[str]
    lines: NDArray[np.int64]
    exact: Keys  # of pairs: the same for the same pair
    near: Keys  # the same for what differs in case, punctuation, spaces and digits alone
    source_keys: Keys  # of sentences: `sentence_keys` of `source`
    target_keys: Keys
    changes: tuple[Changes, Changes]  # what normalising changed of source and target
    counts: dict[str, int]  # pairs that each rule left out, and what was changed: keys of RULES and CHANGES
    samples: dict[str, list[Sample]] = field(default_factory=dict)  # of the pairs that a rule left out


class _Side:
    """One side of the pairs that rules look at. Of lengths and letters a wide character counts as `WIDE`."""

    def __init__(self, texts: Sequence[str], most: int) -> None:
        self.too_long: Found = np.array([len(text) > most for text in texts], np.bool_)
        # What is too long is not looked at any more: one line may be as long as all others.
        self.texts = ["" if len(text) > most else text for text in texts]

    @cached_property
    def columns(self) -> Columns:
        return Columns.of(self.texts)

    @cached_property
    def keys(self) -> SideKeys:
        return SideKeys.of(self.columns)

    @cached_property
    def widths(self) -> NDArray[np.int64]:
        """The texts' lengths."""
        lengths = np.fromiter(map(len, self.texts), np.int64, len(self.texts))
        return lengths + (WIDE - 1) * self.columns.sums(wide()[self.columns.codes])

    def is_foreign(self, lang: str) -> Found:
        """Which texts are written in scripts that the language has not."""
        foreign, own = np.divmod(self.columns.sums(letters(lang)[self.columns.codes]), FOREIGN)
        found: Found = foreign > MAX_FOREIGN * (foreign + own)
        return found


Rules = Callable[[_Side, _Side], Iterable[tuple[str, Callable[[Found], Found]]]]
"""Every rule, and what says which pairs it finds, given those that no rule has found yet."""


@dataclass(frozen=True)
class Cleaner:
    """The rules for the corpora of two languages.

    Args:
        filters: which rules there are, and their limits.
        source_lang: plain code of the source's language; likewise `target_lang`.
        role: what the corpus is for (a `Role` or its name): of evaluation data every pair stays, normalised.

    Raises:
        UserError: `filters.identify` is no model.
    """

    filters: Filters
    source_lang: str
    target_lang: str
    role: Role | str

    def __post_init__(self) -> None:
        if self.filters.identify is not None:
            identification.load(self.filters.identify)

    def __call__(self, block: Block) -> Cleaned:
        """A block's pairs, normalised, without those that a rule finds."""
        is_training = self.role in (Role.train, Role.train.name)
        return _clean(block, self._rules, self.filters.max_characters) if is_training else _clean(block)

    def _rules(self, source: _Side, target: _Side) -> Iterator[tuple[str, Callable[[Found], Found]]]:
        filters = self.filters
        yield "length", lambda _: source.too_long | target.too_long
        yield "empty", lambda _: (source.keys.counted == 0) | (target.keys.counted == 0)
        yield "ratio", lambda _: _ratios(source.widths, target.widths) > filters.max_ratio
        if filters.copies is Action.drop:
            yield "copy", lambda _: source.keys.sentence == target.keys.sentence
        if filters.wrong_script is Action.drop:
            yield "wrong_script", lambda _: source.is_foreign(self.source_lang) | target.is_foreign(self.target_lang)
        if filters.identify is not None:
            yield "language", lambda stays: self._is_other(source, target, stays)

    def _is_other(self, source: _Side, target: _Side, stays: Found) -> Found:
        """Which pairs of those that stay have a side that the model takes for another language."""
        found = np.zeros(len(stays), np.bool_)
        for side, lang in ((source, self.source_lang), (target, self.target_lang)):
            rows = np.flatnonzero(stays & ~found)
            texts = [side.texts[row] for row in rows.tolist()]
            found[rows] = identification.others(texts, lang, str(self.filters.identify), self.filters.min_confidence)
        return found


def unfiltered(block: Block, role: Role) -> Cleaned:
    """A block's pairs, normalised, of text that is somebody's choice already: no rule is asked but for training pairs
    that have no text on one side, of which there are no samples."""

    def rules(source: _Side, target: _Side) -> Iterator[tuple[str, Callable[[Found], Found]]]:
        pairs = zip(source.texts, target.texts, strict=True)
        yield "empty", lambda _: np.array([not (one and other) for one, other in pairs], np.bool_)

    return replace(_clean(block, rules), samples={}) if role is Role.train else _clean(block)


def asked(filters: Filters) -> dict[str, object]:
    """What of the filters decides about a cleaned block, by name; of the model of `identify` that there is one."""
    names = ("max_characters", "max_ratio", "copies", "wrong_script")
    names += () if filters.identify is None else ("min_confidence",)  # type: ignore[assignment]
    values = {name: getattr(filters, name) for name in names}
    return {name: value.name if isinstance(value, Action) else value for name, value in values.items()}


def _clean(block: Block, rules: Rules = lambda *_: (), most: int = sys.maxsize) -> Cleaned:
    """The pairs of a block that no rule finds, with their keys.

    Args:
        most: characters of a side, of which rules look at no more.
    """
    parts = [slice(at, at + _AT_ONCE) for at in range(0, max(len(block.source), 1), _AT_ONCE)]
    source, target = ([text for at in parts for text in normalised(side[at])] for side in (block.source, block.target))
    changes = [
        changes_of(old for old, new in zip(*both, strict=True) if old != new)
        for both in ((block.source, source), (block.target, target))
    ]
    counts = {name: sum(getattr(side, name) for side in changes) for name in CHANGES}
    samples: dict[str, list[Sample]] = {}
    arrays = []
    for at in parts:
        one, other = _Side(source[at], most), _Side(target[at], most)
        stays = np.ones(len(one.texts), np.bool_)
        for rule, find in rules(one, other):
            left_out = np.flatnonzero(find(stays) & stays)
            stays[left_out] = False
            counts[rule] = counts.get(rule, 0) + len(left_out)
            rows = (left_out + at.start).tolist()
            found = (sample(int(block.lines[row]), source[row], target[row]) for row in rows)
            samples[rule] = chosen([*samples.get(rule, ()), *found])
        arrays.append((stays, mixed(one.keys.near, other.keys.near), one.keys.sentence, other.keys.sentence))
    stays, *keys = (np.concatenate(some) for some in zip(*arrays, strict=True))
    source, target = list(compress(source, stays)), list(compress(target, stays))
    near, source_keys, target_keys = (some[stays] for some in keys)
    return Cleaned(
        source,
        target,
        block.lines[stays],
        exact_keys(source, target),
        near,
        source_keys,
        target_keys,
        (changes[0], changes[1]),
        counts,
        {rule: some for rule, some in samples.items() if some},
    )


def _ratios(widths: NDArray[np.int64], others: NDArray[np.int64]) -> NDArray[np.float64]:
    longer, shorter = np.maximum(widths, others), np.minimum(widths, others)
    ratios: NDArray[np.float64] = (longer + LENGTH_PADDING) / (shorter + LENGTH_PADDING)
    return ratios


# ---- a few pairs of each rule for a report: by hash, so that they are the same however the work was dealt out ----


def sample(line: int, source: str, target: str) -> Sample:
    """A pair as a report shows it: of long sentences the beginning."""
    return line, _beginning(source), _beginning(target)


def chosen(samples: Iterable[Sample]) -> list[Sample]:
    """`SAMPLES` of them, in the order of their lines.

    So that blocks can be put together in any order: `chosen([*chosen(a), *chosen(b)]) == chosen([*a, *b])`.
    """
    return sorted(sorted(samples, key=_draw)[:SAMPLES])


def _beginning(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}…"


def _draw(one: Sample) -> tuple[int, Sample]:
    line, source, target = one
    return xxhash.xxh3_64_intdigest(f"{line}\n{source}\n{target}".encode()), one
