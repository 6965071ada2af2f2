"""Readers of files of lines, which decode thousands at once.

They decode line by line only if some lines are wrong.

Moses' format has a file per side; IWSLT's also has lines that describe talks.
"""

from __future__ import annotations

import codecs
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, compress
from typing import BinaryIO

from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.core.files import regular_file
from fairseq_mtmoe.corpora.blocks import (
    MAX_LINE,
    BadLine,
    Content,
    CorpusFiles,
    Pairs,
    Span,
    excerpt_of,
    text_fault,
    unreadable,
)

# IWSLT's tags of lines about a talk.
# One file may have more of them: only one side names translators.
ABOUT = ("doc", "url", "talkid", "keywords", "speaker", "reviewer", "translator")

# These match excerpts of unusable lines, too, which may be truncated and have replaced characters.
_ABOUT = re.compile(rf"[\s\ufffd]*</?(?:{'|'.join(ABOUT)})\b")
_TEXT = re.compile(r"^\s*<(title|description)>(.*?)(?:</\1>\s*)?\Z")
_CHUNK = 1 << 18  # bytes decoded at once, which fit into the processor's cache
_MAX_BYTES = 4 * MAX_LINE  # in a line in UTF-8


@dataclass
class Batch:
    """Consecutive lines without line ends.

    `bad` has reason and excerpt of unusable ones by index.
    """

    texts: list[str]
    bad: dict[int, tuple[str, str]] = field(default_factory=dict)

    def part(self, start: int, end: int | None = None) -> Batch:
        """Return the lines from `start` to `end`."""
        texts = self.texts[start:end]
        return Batch(
            texts,
            {at - start: why for at, why in self.bad.items() if start <= at < start + len(texts)},
        )


def read_lines(content: Content, span: Span = (0, None)) -> Iterator[Batch]:
    """Yield the lines of a file or of a `span`, in UTF-8."""
    begin, end = span
    any_feed = begin > 0
    pending = b""
    with regular_file(content.path, "a corpus' file").open("rb") as file:
        file.seek(begin)
        for data in _pieces(file, end):
            whole, feed, rest = data.rpartition(b"\n")
            if feed:
                any_feed = True
                yield _decode(pending + whole)
                pending = b""
            pending = (pending + rest)[: _MAX_BYTES + 1]  # longer lines are unusable anyway
    if not any_feed and b"\r" in pending[:-1]:  # the last one may belong to CRLF
        raise unreadable(content.name, "its lines end in carriage returns alone")
    if pending:
        yield _decode(pending)


def _pieces(file: BinaryIO, end: int | None) -> Iterator[bytes]:
    """Yield a file's bytes up to an offset, without the byte order mark."""
    if not file.tell() and file.read(3) != codecs.BOM_UTF8:
        file.seek(0)
    left = (end or sys.maxsize) - file.tell()
    while data := file.read(min(_CHUNK, left)):
        left -= len(data)
        yield data


def _decode(lines: bytes) -> Batch:
    """Lines with line ends between them; the last line has none."""
    try:
        text = lines.decode("utf-8")
    except UnicodeDecodeError:
        return _decode_one_by_one(lines)
    if b"\r" in lines:
        text = text.replace("\r\n", "\n").removesuffix("\r")
    texts = text.split("\n")
    is_usable = b"\0" not in lines and max(map(len, texts)) <= MAX_LINE
    return Batch(texts) if is_usable else _decode_one_by_one(lines)


def _decode_one_by_one(lines: bytes) -> Batch:
    batch = Batch([])
    for index, line in enumerate(lines.split(b"\n")):
        text = line.removesuffix(b"\r").decode("utf-8", "surrogateescape")
        reason = text_fault(text)
        if reason and reason != "empty":
            batch.bad[index] = reason, excerpt_of(text)
            text = ""
        batch.texts.append(text)
    return batch


def usable_pairs(
    source: Batch, target: Batch, first: int, files: CorpusFiles
) -> Iterator[Pairs | BadLine]:
    """Lines as pairs, from the number `first` on.

    In training text a line without text on one side is no pair.
    """
    texts = source.texts, target.texts
    lines: Sequence[int] = range(first, first + len(source.texts))
    bad = {}
    names = str(files.paths[0]), str(files.paths[-1])
    for name, batch in ((names[1], target), (names[0], source)):
        for index, (reason, excerpt) in batch.bad.items():
            bad[index] = BadLine(name, lines[index], reason, excerpt)
    if not files.is_evaluation and not all(map(str.strip, chain(*texts))):
        for index, sides in enumerate(zip(*texts, strict=True)):
            if index not in bad and not all(map(str.strip, sides)):
                name = names[bool(sides[0].strip())]
                bad[index] = BadLine(name, lines[index], "empty", excerpt_of("".join(sides)))
    for _, bad_line in sorted(bad.items()):
        yield bad_line
    if bad:
        is_usable = [index not in bad for index in range(len(lines))]
        texts = list(compress(source.texts, is_usable)), list(compress(target.texts, is_usable))
        lines = list(compress(lines, is_usable))
    if lines:
        yield Pairs(texts, lines)


def read_moses(files: CorpusFiles) -> Iterator[Pairs | BadLine]:
    """Yield the pairs of two files of lines."""
    return _read_sides(files, list(map(read_lines, files.contents, files.spans)))


def read_iwslt(files: CorpusFiles) -> Iterator[Pairs | BadLine]:
    """Yield the pairs of two files by sentence number."""
    return _read_sides(files, list(map(_sentences, files.contents)))


def _sentences(content: Content) -> Iterator[Batch]:
    """Yield only the lines of text, including titles and descriptions."""
    for batch in read_lines(content):
        kept = Batch([])
        for index, line in enumerate(batch.texts):
            bad = batch.bad.get(index)
            if _ABOUT.match(bad[1] if bad else line):
                continue
            if bad:
                kept.bad[len(kept.texts)] = bad
            kept.texts.append(_TEXT.sub(r"\2", line))
        yield kept


def _read_sides(files: CorpusFiles, lines: Sequence[Iterator[Batch]]) -> Iterator[Pairs | BadLine]:
    """Yield pairs of two files' lines (UserError: one file has more)."""
    source, target = map(_Side, lines)
    first = files.first
    while number := min(source.ready(), target.ready()):
        yield from usable_pairs(source.take(number), target.take(number), first, files)
        first += number
    rest = [source.count_rest(), target.count_rest()]
    if any(rest):
        shorter, longer = files.paths if rest[1] else reversed(files.paths)
        raise UserError(
            f"`{longer}` has {first - 1 + max(rest)} lines, and `{shorter}` has {first - 1};"
            " line N of one must translate line N of the other: repair the files."
        )


class _Side:
    """The lines of one file, taken in batches that both files have."""

    def __init__(self, batches: Iterator[Batch]) -> None:
        self._batches = batches
        self._left = Batch([])

    def ready(self) -> int:
        """Return the number of lines that can be taken; 0 at the end."""
        while not self._left.texts:
            batch = next(self._batches, None)
            if batch is None:
                return 0
            self._left = batch
        return len(self._left.texts)

    def take(self, number: int) -> Batch:
        """Return the next lines."""
        taken, self._left = self._left.part(0, number), self._left.part(number)
        return taken

    def count_rest(self) -> int:
        """Return the number of lines left."""
        rest = 0
        while number := self.ready():
            rest += len(self.take(number).texts)
        return rest
