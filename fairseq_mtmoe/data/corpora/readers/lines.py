"""Lines of a file in batches: some thousands are decoded at once, and line by line only where something is wrong in it.

A line feed ends a line, and nothing else does, as in `io.files.text_lines`. What cannot be used keeps its place.
"""

from __future__ import annotations

import codecs
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO, NamedTuple

from fairseq_mtmoe.data.corpora.blocks import Content
from fairseq_mtmoe.data.corpora.readers.errors import MAX_LINE, Fault, check_whole, excerpt_of
from fairseq_mtmoe.io.files import regular_file

_CHUNK = 1 << 18
"""Bytes that are decoded at once: what a processor keeps near it."""

_MAX_BYTES = 4 * MAX_LINE  # of a line in UTF-8


class Unusable(NamedTuple):
    """Why a line is none."""

    reason: str  # a key of `BAD_REASONS`
    excerpt: str


@dataclass
class Batch:
    """Consecutive lines without their ends; those that cannot be used are empty, and `bad` says why, by index."""

    texts: list[str]
    bad: dict[int, Unusable] = field(default_factory=dict)

    def part(self, start: int, end: int) -> Batch:
        """The lines from one index to before another."""
        bad = {index - start: why for index, why in self.bad.items() if start <= index < end}
        return Batch(self.texts[start:end], bad)


def read_lines(content: Content, span: tuple[int, int | None] = (0, None)) -> Iterator[Batch]:
    """The lines of a file in UTF-8, or in what a byte order mark says.

    Args:
        span: bytes from … to before … (None: to the end): whole lines of a file in UTF-8.

    Raises:
        UserError: there is no such file.
        Fault: unpacking ended too early, after the last whole line before that place.
    """
    begin, end = span
    any_feed, pending = begin > 0, b""
    with regular_file(content.path, "a corpus' file").open("rb") as file:
        file.seek(begin)
        for data in _pieces(file, end):
            whole, feed, rest = data.rpartition(b"\n")
            if feed:
                any_feed = True
                yield _decode(pending + whole)
                pending = rest
            else:
                pending += rest
            pending = pending[: _MAX_BYTES + 1]  # what is longer is no line of a corpus anyway
    if end is None:
        check_whole(content, lost=int(bool(pending)))
    if not any_feed and b"\r" in pending[:-1]:  # at its end it may be half of Windows' line end
        yield Batch([""], {0: Unusable("line ends", excerpt_of(pending))})
    elif pending:
        yield _decode(pending)


def _pieces(file: BinaryIO, end: int | None) -> Iterator[bytes]:
    """The bytes of a file up to some place, as UTF-8 without a byte order mark."""
    decoder = None if file.tell() else _decoder_of(file)
    left = sys.maxsize if end is None else end - file.tell()
    while data := file.read(min(_CHUNK, left)):
        left -= len(data)
        yield data if decoder is None else _recoded(decoder, data)
    if decoder is not None:
        yield _recoded(decoder, b"")


def _decoder_of(file: BinaryIO) -> codecs.IncrementalDecoder | None:
    """The decoder for what a byte order mark says. UTF-8 needs none, and its mark is passed over."""
    head = file.read(4)
    file.seek(3 if head.startswith(codecs.BOM_UTF8) else 0)
    if not head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE)):
        return None
    is_32 = head in (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)
    # Half a character becomes bytes that are no UTF-8 either, in its own line.
    return codecs.getincrementaldecoder("utf-32" if is_32 else "utf-16")("surrogatepass")


def _recoded(decoder: codecs.IncrementalDecoder, data: bytes) -> bytes:
    try:
        return decoder.decode(data, final=not data).encode("utf-8", "surrogatepass")
    except UnicodeError as error:
        raise Fault("charset", str(error)) from error


def _decode(lines: bytes) -> Batch:
    """Lines with their ends between them, but for the last one's."""
    if b"\0" in lines:
        return _decode_one_by_one(lines)
    try:
        text = lines.decode("utf-8")
    except UnicodeDecodeError:
        return _decode_one_by_one(lines)
    if b"\r" in lines:
        text = text.replace("\r\n", "\n").removesuffix("\r")
    texts = text.split("\n")
    return Batch(texts) if max(map(len, texts)) <= MAX_LINE else _decode_one_by_one(lines)


def _decode_one_by_one(lines: bytes) -> Batch:
    batch = Batch([])
    for line in lines.split(b"\n"):
        text = _decode_line(line.removesuffix(b"\r"))
        if isinstance(text, Unusable):
            batch.bad[len(batch.texts)] = text
            text = ""
        batch.texts.append(text)
    return batch


def _decode_line(line: bytes) -> str | Unusable:
    if len(line) > _MAX_BYTES:
        return Unusable("long", excerpt_of(line))
    if b"\0" in line:
        return Unusable("nul", excerpt_of(line))
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError:
        return Unusable("encoding", excerpt_of(line))
    return text if len(text) <= MAX_LINE else Unusable("long", excerpt_of(line))
