"""Which training pairs of a block are left out, and why: rules over columns of texts.

`catalogs.why_dropped` is for harvested messages of programs, and reads one pair at a time. This is for corpora of any
size: a pair takes a few microseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, field
from functools import cached_property
from itertools import compress

import numpy as np
import xxhash
from numpy.typing import NDArray

from fairseq_mtmoe.data.corpora.blocks import Block
from fairseq_mtmoe.data.corpora.cleaning import identification
from fairseq_mtmoe.data.corpora.cleaning.characters import LENGTH_PADDING, WIDE, Columns, wide
from fairseq_mtmoe.data.corpora.cleaning.keys import Keys, SideKeys, exact_keys, mixed
from fairseq_mtmoe.data.corpora.cleaning.languages import FOREIGN, letters
from fairseq_mtmoe.data.corpora.cleaning.normalising import Changes, changes_of, normalised
from fairseq_mtmoe.data.corpora.recipes.schema import Action, Filters, Role

SAMPLES = 5
"""How many pairs of each rule a report has."""

_MOST_CHARACTERS = 200
"""Characters of a sentence that a report shows."""

Sample = tuple[int, str, str]
"""(line of the corpus, source sentence, target sentence)."""

Found = NDArray[np.bool_]
Samples = dict[str, list[Sample]]

MAX_FOREIGN = 0.7
"""Share of a sentence's letters that may belong to scripts which its language is not written in, a wide one counted as
several: instructions for programs are half names in many languages, and what is in another language is over it."""

_AT_ONCE = 4096
"""Pairs: the arrays of so many stay in a processor's cache, which makes rules a third faster."""

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
    samples: Samples = field(default_factory=dict)  # of the pairs that a rule left out


@dataclass(frozen=True)
class _Side:
    """One side of the pairs that rules look at. Of lengths and letters a wide character counts as `WIDE`."""

    texts: Sequence[str]

    @cached_property
    def columns(self) -> Columns:
        return Columns.of(self.texts)

    @cached_property
    def keys(self) -> SideKeys:
        return SideKeys.of(self.columns)

    @cached_property
    def widths(self) -> NDArray[np.int64]:
        """The texts' lengths."""
        return _lengths(self.texts) + (WIDE - 1) * self.columns.sums(wide()[self.columns.codes])

    def is_foreign(self, lang: str) -> Found:
        """Which texts are written in scripts that the language has not."""
        foreign, own = np.divmod(self.columns.sums(letters(lang)[self.columns.codes]), FOREIGN)
        found: Found = foreign > MAX_FOREIGN * (foreign + own)
        return found


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
        return _joined([self._clean(*part) for part in _parts(block)])

    def _clean(self, raw_source: Sequence[str], raw_target: Sequence[str], lines: NDArray[np.int64]) -> Cleaned:
        if self.role not in (Role.train, Role.train.name):
            return _normalised(raw_source, raw_target, lines)
        source, target = normalised(raw_source), normalised(raw_target)
        changes = _changes(raw_source, source), _changes(raw_target, target)
        counts: dict[str, int] = {}
        too_long = self._too_long(source) | self._too_long(target)
        # What is too long is not looked at any more: one line may be as long as all others.
        sides = _Side(_without(source, too_long)), _Side(_without(target, too_long))
        stays = np.ones(len(source), np.bool_)
        samples: Samples = {}
        for rule, found in self._rules(too_long, *sides):
            left_out = np.flatnonzero(found(stays) & stays)
            counts[rule] = len(left_out)
            if counts[rule]:
                samples[rule] = chosen(sample(int(lines[row]), source[row], target[row]) for row in left_out.tolist())
            stays[left_out] = False
        return _kept(*sides, lines, stays, changes, counts, samples)

    def _rules(self, too_long: Found, source: _Side, target: _Side) -> Iterator[tuple[str, Callable[[Found], Found]]]:
        """Every rule of the filters, and what says which pairs it finds, given those that no rule has found yet."""
        filters = self.filters
        yield "length", lambda _: too_long
        yield "empty", lambda _: (source.keys.counted == 0) | (target.keys.counted == 0)
        yield "ratio", lambda _: _ratios(source.widths, target.widths) > filters.max_ratio
        if filters.copies is Action.drop:
            yield "copy", lambda _: source.keys.sentence == target.keys.sentence
        if filters.wrong_script is Action.drop:
            yield "wrong_script", lambda _: source.is_foreign(self.source_lang) | target.is_foreign(self.target_lang)
        if filters.identify is not None:
            yield "language", lambda stays: self._is_other(source, target, stays)

    def _too_long(self, texts: Sequence[str]) -> Found:
        return _lengths(texts) > self.filters.max_characters

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
    that have no text on one side."""
    is_training = role is Role.train
    return _joined([_normalised(*part, without_empty=is_training) for part in _parts(block)])


def _parts(block: Block) -> Iterator[tuple[Sequence[str], Sequence[str], NDArray[np.int64]]]:
    """A block in parts of `_AT_ONCE` pairs, at least one of them: sources, targets, lines."""
    for first in range(0, max(len(block.source), 1), _AT_ONCE):
        at = slice(first, first + _AT_ONCE)
        yield block.source[at], block.target[at], block.lines[at]


def _normalised(
    raw_source: Sequence[str], raw_target: Sequence[str], lines: NDArray[np.int64], without_empty: bool = False
) -> Cleaned:
    """Pairs that no rule is asked about."""
    source, target = normalised(raw_source), normalised(raw_target)
    changes = _changes(raw_source, source), _changes(raw_target, target)
    stays = np.ones(len(source), np.bool_)
    if without_empty:
        stays = np.array([bool(one and other) for one, other in zip(source, target, strict=True)], np.bool_)
    counts = {"empty": int((~stays).sum())} if without_empty else {}
    return _kept(_Side(source), _Side(target), lines, stays, changes, counts, {})


def asked(filters: Filters) -> dict[str, object]:
    """What of the filters decides about a cleaned block, by name; of the model of `identify` that there is one."""
    values: dict[str, object] = {
        "max_characters": filters.max_characters,
        "max_ratio": filters.max_ratio,
        "copies": filters.copies.name,
        "wrong_script": filters.wrong_script.name,
    }
    return values if filters.identify is None else {**values, "min_confidence": filters.min_confidence}


def _kept(
    source: _Side,
    target: _Side,
    lines: NDArray[np.int64],
    stays: Found,
    changes: tuple[Changes, Changes],
    counts: dict[str, int],
    samples: Samples,
) -> Cleaned:
    """The pairs that stay, with their keys."""
    sources, targets = list(compress(source.texts, stays)), list(compress(target.texts, stays))
    return Cleaned(
        sources,
        targets,
        lines[stays],
        exact=exact_keys(sources, targets),
        near=mixed(source.keys.near, target.keys.near)[stays],
        source_keys=source.keys.sentence[stays],
        target_keys=target.keys.sentence[stays],
        changes=changes,
        counts={name: sum(getattr(side, name) for side in changes) for name in CHANGES} | counts,
        samples=samples,
    )


def _joined(parts: Sequence[Cleaned]) -> Cleaned:
    samples = {rule: chosen(one for part in parts for one in part.samples.get(rule, ())) for rule in RULES}
    return Cleaned(
        source=[text for part in parts for text in part.source],
        target=[text for part in parts for text in part.target],
        lines=np.concatenate([part.lines for part in parts]),
        exact=np.concatenate([part.exact for part in parts]),
        near=np.concatenate([part.near for part in parts]),
        source_keys=np.concatenate([part.source_keys for part in parts]),
        target_keys=np.concatenate([part.target_keys for part in parts]),
        changes=(_sum(part.changes[0] for part in parts), _sum(part.changes[1] for part in parts)),
        counts={name: sum(part.counts[name] for part in parts) for name in parts[0].counts},
        samples={rule: found for rule, found in samples.items() if found},
    )


def _changes(old: Sequence[str], new: Sequence[str]) -> Changes:
    """What normalising changed on one side."""
    return changes_of(one for one, other in zip(old, new, strict=True) if one != other)


def _sum(changes: Iterable[Changes]) -> Changes:
    return Changes(*map(sum, zip(*map(astuple, changes), strict=True)))


def _without(texts: list[str], too_long: Found) -> list[str]:
    if not too_long.any():
        return texts
    return ["" if is_long else text for text, is_long in zip(texts, too_long.tolist(), strict=True)]


def _lengths(texts: Sequence[str]) -> NDArray[np.int64]:
    return np.fromiter(map(len, texts), np.int64, len(texts))


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
