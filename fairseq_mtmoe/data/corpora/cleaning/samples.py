"""A few pairs of each rule for a report: chosen by hash, so that they are the same however the work was dealt out."""

from __future__ import annotations

from collections.abc import Iterable

import xxhash

SAMPLES = 5
"""How many pairs of each rule a report has."""

_MOST = 200
"""Characters of a sentence that a report shows."""

Sample = tuple[int, str, str]
"""(line of the corpus, source sentence, target sentence)."""


def sample(line: int, source: str, target: str) -> Sample:
    """A pair as a report shows it: of long sentences the beginning."""
    return line, _beginning(source), _beginning(target)


def chosen(samples: Iterable[Sample]) -> list[Sample]:
    """`SAMPLES` of them, in the order of their lines.

    So that blocks can be put together in any order: `chosen([*chosen(a), *chosen(b)]) == chosen([*a, *b])`.
    """
    return sorted(sorted(samples, key=_draw)[:SAMPLES])


def _beginning(text: str) -> str:
    return text if len(text) <= _MOST else f"{text[:_MOST]}…"


def _draw(one: Sample) -> tuple[int, Sample]:
    line, source, target = one
    return xxhash.xxh3_64_intdigest(f"{line}\n{source}\n{target}".encode()), one
