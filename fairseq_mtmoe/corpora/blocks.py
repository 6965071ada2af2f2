"""Data between the stages of `prepare corpora`: pairs in blocks, and bad lines."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.corpora.recipes.schema import Role

Span = tuple[int, int | None]  # bytes of an unpacked file: start, end (None: the file's)
BLOCK = 50_000  # pairs that a worker processes at a time


@dataclass(frozen=True)
class Block:
    """Consecutive sentence pairs of a corpus."""

    source: Sequence[str]  # as read: not normalised
    target: Sequence[str]
    lines: NDArray[np.int64]  # line or segment (TMX, SGM, .po) of each pair in its file, from 1
    references: tuple[
        Sequence[str], ...
    ] = ()  # further references of evaluation data, each as long as `target`


@dataclass(frozen=True)
class BadLine:
    """A line or segment that is no usable pair."""

    file: str
    line: int
    reason: str  # one of `BAD_REASONS`
    excerpt: str


class Content(NamedTuple):
    """A file to read, and the name of the packed or plain file that it comes from."""

    path: Path
    name: Path


@dataclass(frozen=True)
class CorpusFiles:
    """The files of a corpus, and how to read them."""

    name: str
    paths: tuple[Path, ...]  # 1 or 2; a member of an archive is written  archive.tgz!path/inside
    source_lang: str
    target_lang: str
    format: str = "auto"  # one of `readers.FORMATS`
    # Columns of TSV, keys of JSON lines; else by content.
    fields: Mapping[str, str | int] = field(default_factory=dict)
    pair: str = ""  # language pair that it belongs to, in plain codes
    role: Role = Role.train
    names: tuple[str, ...] = ()  # the files' paths below RAW, as in the recipe
    digests: tuple[str, ...] = ()  # the files' hashes
    is_synthetic: bool = False  # its sources are a model's translations
    weight: int = 1  # how often training data has it
    data_set: str = ""  # its name in an index, whose claims are checked by a sample
    first: int = 1  # number of the first line, in a corpus of lines
    spans: tuple[Span, ...] = ((0, None), (0, None))  # of each unpacked file
    unpacked: tuple[Path, ...] = ()  # the unpacked files, if one of them is packed

    @property
    def contents(self) -> tuple[Content, ...]:
        """Return the files to read, unpacked."""
        return tuple(map(Content, self.unpacked or self.paths, self.paths))

    @property
    def is_evaluation(self) -> bool:
        """Return whether all lines are kept, so that scores cover the whole set.

        Even empty lines are kept then.
        """
        return self.role is not Role.train

    @property
    def is_drawn(self) -> bool:
        """Return whether its pairs were drawn from training text.

        Such a corpus has no files.
        """
        return not self.paths

    @property
    def is_turned(self) -> bool:
        """Return whether the files have the pair's target as their source."""
        return self.pair != f"{self.source_lang}-{self.target_lang}"

    @property
    def tagged(self) -> str:
        """Return the side that begins with the tag of synthetic text; empty for none."""
        if not self.is_synthetic:
            return ""
        return "target" if self.is_turned else "source"


MAX_LINE = 65_536  # characters: longer lines are no sentences, and could exhaust memory

# Reasons of bad lines, with their explanations in reports.
BAD_REASONS = {
    "encoding": "not in UTF-8",
    "nul": "has a NUL byte",
    "empty": "no text on one side",
    "long": f"longer than {MAX_LINE} characters",
    "columns": "another number of columns than the first lines",
    "keys": "not a JSON object with both texts",
    "untranslated": (
        "a segment without text in one of the two languages, or with an unfinished translation"
    ),
    "unpaired": "one side has segments that the other lacks",
}
# Not an error, as catalogs and translation memories are rarely complete.
HARMLESS = "untranslated"


def unreadable(name: Path, fault: object) -> UserError:
    """Return the error that a file is truncated, damaged or in another format."""
    return UserError(
        f"`{name}` is damaged, or not in the format of its corpus: {excerpt_of(str(fault))};"
        " download it again, or repair it."
    )


def excerpt_of(text: str) -> str:
    """Return a printable beginning of a line."""
    text = shortened(text, 80)
    return text.translate({ord(sign): "\ufffd" for sign in text if not sign.isprintable()})


def shortened(text: str, most: int) -> str:
    """Return a text, or its first `most` characters and an ellipsis."""
    return text if len(text) <= most else f"{text[:most]}…"


def text_fault(text: str) -> str | None:
    """Return why a text from a structured file is unusable; else None.

    The reasons are those of `BAD_REASONS`.
    """
    if not text.strip():
        return "empty"
    if len(text) > MAX_LINE:
        return "long"
    if "\0" in text:
        return "nul"
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate, which JSON can contain
        return "encoding"
    return None


def check(bad: BadLine, files: CorpusFiles) -> None:
    """Check that a bad line may be left out.

    In validation and test sets only `HARMLESS` ones may.
    """
    if files.is_evaluation and bad.reason != HARMLESS:
        raise UserError(
            f"`{bad.file}` cannot be used, because of line or unit {bad.line}:"
            f" {BAD_REASONS[bad.reason]} ({bad.excerpt});"
            " repair it: no line of validation and test sets may be left out."
        )


MAX_CHARACTERS = 16_000_000  # in a block, on both sides together


class Pairs(NamedTuple):
    """Sentence pairs in order: sources, targets and further references.

    `lines` has each pair's line.
    """

    texts: Sequence[list[str]]
    lines: Sequence[int]


class Segment(NamedTuple):
    """An entry of a structured file.

    `reason` tells why it is no pair. Reports show `excerpt`.
    """

    source: str | None
    target: str | None
    references: Sequence[str] = ()
    reason: str | None = None
    excerpt: str = ""


def gather(segments: Iterator[Segment], files: CorpusFiles) -> Iterator[Pairs | BadLine]:
    """Yield a corpus' segments as pairs or bad lines."""
    for number, segment in enumerate(segments, files.first):
        source, target = segment.source or "", segment.target or ""
        if reason := segment.reason or _fault_of(segment, may_be_empty=files.is_evaluation):
            excerpt = segment.excerpt or excerpt_of(f"{source} {target}".strip())
            yield BadLine(str(files.paths[0]), number, reason, excerpt)
        else:
            yield Pairs([[text] for text in (source, target, *segment.references)], [number])


def _fault_of(segment: Segment, may_be_empty: bool) -> str | None:
    if segment.source is None or segment.target is None:
        return "untranslated"
    for text in (segment.source, segment.target, *filter(None, segment.references)):
        reason = text_fault(text)
        if reason and not (may_be_empty and reason == "empty"):
            return reason
    return None


def assemble(items: Iterator[Pairs | BadLine], size: int) -> Iterator[Block | BadLine]:
    """Yield bad lines, and blocks of `size` pairs, or fewer if pairs are very long."""
    texts: list[list[str]] = []
    lines: list[int] = []
    characters = 0
    for item in items:
        if isinstance(item, BadLine):
            yield item
            continue
        texts = texts or [[] for _ in item.texts]
        for held, more in zip(texts, item.texts, strict=True):
            held += more
        lines += item.lines
        characters += _characters(item.texts)
        while len(lines) >= size or characters > MAX_CHARACTERS:
            yield _block([held[:size] for held in texts], lines[:size])
            for held in texts:
                del held[:size]
            del lines[:size]
            characters = _characters(texts)
    if lines:
        yield _block(texts, lines)


def _characters(texts: Sequence[list[str]]) -> int:
    return sum(map(len, chain.from_iterable(texts)))


def _block(texts: Sequence[list[str]], lines: list[int]) -> Block:
    source, target, *references = texts
    return Block(source, target, np.array(lines, np.int64), tuple(references))
