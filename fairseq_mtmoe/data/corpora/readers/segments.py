"""What readers find, segment by segment or line by line, put together to blocks of sentence pairs.

A file gives the same blocks however it is packed, and memory does not grow with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from fairseq_mtmoe.data.corpora.blocks import BadLine, Block, CorpusFiles
from fairseq_mtmoe.data.corpora.readers.errors import Fault, excerpt_of, text_fault

MAX_CHARACTERS = 16_000_000  # of a block, on both sides together: it ends there if its pairs are long

_TOGETHER = 1000


class Pairs(NamedTuple):
    """Any number of sentence pairs in their order: sources, targets and further references; the line of each pair."""

    texts: Sequence[list[str]]
    lines: Sequence[int]


class Segment(NamedTuple):
    """One entry of a structured file.

    Attributes:
        source, target: its texts, None where it has none.
        references: further translations, as many for every segment of a file, empty where there is none.
        reason: why it is no pair, if that is known already: a key of `BAD_REASONS`.
        excerpt: what to show of it, if not its texts.
    """

    source: str | None
    target: str | None
    references: Sequence[str] = ()
    reason: str | None = None
    excerpt: str = ""


def gather(segments: Iterator[Segment], files: CorpusFiles) -> Iterator[Pairs | BadLine]:
    """The pairs among the segments of a corpus, and the others as bad lines. A `Fault` ends them in one more."""
    name, first = str(files.paths[0]), files.part.first if files.part else 1
    number = first - 1
    held: list[tuple[int, Segment]] = []
    try:
        for number, segment in enumerate(segments, first):
            if reason := segment.reason or _fault_of(segment, may_be_empty=files.is_evaluation):
                excerpt = segment.excerpt or excerpt_of(f"{segment.source or ''} {segment.target or ''}".strip())
                yield BadLine(name, number, reason, excerpt)
                continue
            held.append((number, segment))
            if len(held) == _TOGETHER:
                yield _pairs(held)
                held = []
    except Fault as fault:
        yield BadLine(name, number + 1, fault.reason, excerpt_of(fault.message), fault.lost)
    if held:
        yield _pairs(held)


def _fault_of(segment: Segment, may_be_empty: bool) -> str | None:
    if segment.source is None or segment.target is None:
        return "untranslated"
    texts = (segment.source, segment.target, *filter(None, segment.references))
    allowed = (None, "empty") if may_be_empty else (None,)
    return next((reason for reason in map(text_fault, texts) if reason not in allowed), None)


def _pairs(held: Sequence[tuple[int, Segment]]) -> Pairs:
    texts = zip(*((one.source or "", one.target or "", *one.references) for _, one in held), strict=True)
    return Pairs(list(map(list, texts)), [number for number, _ in held])


def assemble(files: CorpusFiles, found: Iterator[Pairs | BadLine], size: int) -> Iterator[Block | BadLine]:
    """Blocks of `size` pairs (the last and one of very long pairs have fewer), after the bad lines before them."""
    texts: list[list[str]] = []
    lines: list[int] = []
    number = characters = 0
    for item in found:
        if isinstance(item, BadLine):
            yield item
            continue
        texts = texts or [[] for _ in item.texts]
        for held, more in zip(texts, item.texts, strict=True):
            held += more
        lines += item.lines
        characters += _characters(item.texts)
        while len(lines) >= size or characters > MAX_CHARACTERS:
            yield _block(files, number, [held[:size] for held in texts], lines[:size])
            texts, lines = [held[size:] for held in texts], lines[size:]
            number, characters = number + 1, _characters(texts)
    if lines:
        yield _block(files, number, texts, lines)


def _characters(texts: Sequence[list[str]]) -> int:
    return sum(sum(map(len, side)) for side in texts)


def _block(files: CorpusFiles, number: int, texts: Sequence[list[str]], lines: list[int]) -> Block:
    source, target, *references = texts
    return Block(files.name, number, source, target, np.array(lines, np.int64), tuple(references))
