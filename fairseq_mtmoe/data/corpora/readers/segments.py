"""What readers find, segment by segment or line by line, put together to blocks of sentence pairs.

A file gives the same blocks however it is packed, and memory does not grow with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fairseq_mtmoe.data.corpora.blocks import BadLine, Block, CorpusFiles
from fairseq_mtmoe.data.corpora.readers.errors import Fault, excerpt_of, text_fault
from fairseq_mtmoe.data.corpora.readers.lines import Unusable

MAX_CHARACTERS = 16_000_000
"""Of a block, on both sides together: it ends there if its pairs are long."""

_TOGETHER = 1000


@dataclass
class Pairs:
    """Sentence pairs in their order, any number of them, with the line or segment of each."""

    source: list[str]
    target: list[str]
    lines: NDArray[np.int64]
    references: tuple[list[str], ...] = ()

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, part: slice) -> Pairs:
        references = tuple(texts[part] for texts in self.references)
        return Pairs(self.source[part], self.target[part], self.lines[part], references)

    def characters(self) -> int:
        """The length of all texts together."""
        return sum(sum(map(len, texts)) for texts in (self.source, self.target, *self.references))


@dataclass
class Segment:
    """One entry of a structured file.

    Attributes:
        number: from 1; each is one more than the one before.
        source, target: its texts, None where it has none.
        references: further translations, as many for every segment of a file, empty where there is none.
        reason: why it is no pair, if that is known already: a key of `BAD_REASONS`.
        excerpt: what to show of it, if not its texts.
    """

    number: int
    source: str | None
    target: str | None
    references: Sequence[str] = ()
    reason: str | None = None
    excerpt: str = ""


def gather(segments: Iterator[Segment], files: CorpusFiles) -> Iterator[Pairs | BadLine]:
    """The pairs among the segments of a corpus, and the others as bad lines. A `Fault` ends them in one more."""
    name = str(files.paths[0])
    held: list[Segment] = []
    number = 0
    try:
        for segment in segments:
            number = segment.number
            reason = segment.reason or _fault_of(segment, may_be_empty=files.is_evaluation)
            if reason:
                excerpt = segment.excerpt or excerpt_of(f"{segment.source or ''} {segment.target or ''}".strip())
                yield BadLine(name, number, reason, excerpt)
                continue
            held.append(segment)
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


def _pairs(segments: Sequence[Segment]) -> Pairs:
    return Pairs(
        [segment.source or "" for segment in segments],
        [segment.target or "" for segment in segments],
        np.array([segment.number for segment in segments], np.int64),
        tuple(list(texts) for texts in zip(*(segment.references for segment in segments), strict=True)),
    )


def usable_pairs(
    source: list[str],
    target: list[str],
    first: int,
    bad: dict[int, tuple[str, Unusable]],
    names: tuple[str, str],
    may_be_empty: bool,
) -> Iterator[Pairs | BadLine]:
    """Consecutive lines as pairs, but for those that are bad already or, unless they may, have an empty side.

    Args:
        source, target: both sides.
        first: the number of the first line.
        bad: by index, the file and the reason of what is bad already.
        names: the files of both sides.
    """
    if not may_be_empty and not (all(map(str.strip, source)) and all(map(str.strip, target))):
        for index, (one, other) in enumerate(zip(source, target, strict=True)):
            if index not in bad and not (one.strip() and other.strip()):
                bad[index] = names[bool(one.strip())], Unusable("empty", excerpt_of(one + other))
    lines = np.arange(first, first + len(source), dtype=np.int64)
    if bad:
        for index in sorted(bad):
            name, (reason, excerpt) = bad[index]
            yield BadLine(name, first + index, reason, excerpt)
        kept = [index for index in range(len(source)) if index not in bad]
        source, target, lines = [source[i] for i in kept], [target[i] for i in kept], lines[kept]
    if source:
        yield Pairs(source, target, lines)


def assemble(files: CorpusFiles, found: Iterator[Pairs | BadLine], size: int) -> Iterator[Block | BadLine]:
    """Blocks of `size` pairs (the last and one of very long pairs have fewer), after the bad lines before them."""
    held: list[Pairs] = []
    pairs = characters = number = 0
    for item in found:
        if isinstance(item, BadLine):
            yield item
            continue
        held.append(item)
        pairs += len(item)
        characters += item.characters()
        while pairs >= size or characters > MAX_CHARACTERS:
            whole = _joined(held)
            yield _block(files, number, whole[:size])
            rest = whole[size:]
            number += 1
            held, pairs, characters = [rest] if len(rest) else [], len(rest), rest.characters()
    if held:
        yield _block(files, number, _joined(held))


def _joined(parts: Sequence[Pairs]) -> Pairs:
    return Pairs(
        [text for part in parts for text in part.source],
        [text for part in parts for text in part.target],
        np.concatenate([part.lines for part in parts]),
        tuple(
            [text for texts in side for text in texts]
            for side in zip(*(part.references for part in parts), strict=True)
        ),
    )


def _block(files: CorpusFiles, number: int, pairs: Pairs) -> Block:
    return Block(files.name, number, pairs.source, pairs.target, pairs.lines, pairs.references)
