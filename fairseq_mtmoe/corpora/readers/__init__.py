"""Readers of raw files in all formats, as a stream of blocks.

Every lost line is reported.
"""

import codecs
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fairseq_mtmoe.core.errors import UserError, raise_invalid
from fairseq_mtmoe.core.files import regular_file
from fairseq_mtmoe.corpora import blocks
from fairseq_mtmoe.corpora.blocks import BLOCK, BadLine, Block, CorpusFiles, Pairs, Segment
from fairseq_mtmoe.corpora.readers.arrow import (
    ARROW_MAGIC,
    PARQUET_MAGIC,
    STREAM_MAGIC,
    arrow_segments,
)
from fairseq_mtmoe.corpora.readers.lines import ABOUT, read_iwslt, read_moses
from fairseq_mtmoe.corpora.readers.markup import sgm_segments, tmx_segments, wmt_segments
from fairseq_mtmoe.corpora.readers.messages import MAGIC, message_segments
from fairseq_mtmoe.corpora.readers.tables import json_segments, read_tsv

_PAIRS: dict[str, Callable[[CorpusFiles], Iterator[Pairs | BadLine]]] = {
    "moses": read_moses,
    "iwslt": read_iwslt,
    "tsv": read_tsv,
}
_SEGMENTS: dict[str, Callable[[CorpusFiles], Iterator[Segment]]] = {
    "jsonl": json_segments,
    "sgm": sgm_segments,
    "wmt": wmt_segments,
    "tmx": tmx_segments,
    "po": message_segments,
    "mo": message_segments,
    "arrow": arrow_segments,
}
_NUM_FILES = {"moses": 2, "iwslt": 2, "sgm": 2}  # files of a corpus; other formats have 1
_OF_LINES = ("moses", "tsv", "jsonl")  # formats with a pair per line
# Values of `CorpusFiles.format`; `auto` detects the format by content.
FORMATS = ("auto", *_PAIRS, *_SEGMENTS)


def read(files: CorpusFiles, block: int = BLOCK) -> Iterator[Block | BadLine]:
    """Yield the sentence pairs of a corpus in blocks, and bad lines.

    Bad lines come before the block that follows them.

    Raises:
        UserError: evaluation data has a bad line, or a file is missing, damaged, in an unknown
            format, or without the columns or keys of `fields`.
    """
    for item in blocks.assemble(_found(files), block):
        if isinstance(item, BadLine):
            blocks.check(item, files)
        yield item


def _found(files: CorpusFiles) -> Iterator[Pairs | BadLine]:
    if files.format not in FORMATS:
        raise_invalid(f"format of {files.name}", f"one of {', '.join(FORMATS)}", files.format)
    form = recognise(files)
    if form is None:
        return
    number = _NUM_FILES.get(form, 1)
    if len(files.paths) != number:
        raise_invalid(
            f"files of {files.name}", f"{number} for the format {form}", list(map(str, files.paths))
        )
    if form in _PAIRS:
        yield from _PAIRS[form](files)
    else:
        yield from blocks.gather(_SEGMENTS[form](files), files)


_HEAD = 1 << 16
_ROOT = re.compile(r"<(?!\?|!)\s*(?:[\w.-]+:)?([\w.-]+)")
_ROOTS = {
    "tmx": "tmx",
    "dataset": "wmt",
    **dict.fromkeys(("srcset", "refset", "tstset", "mteval"), "sgm"),
    **dict.fromkeys(ABOUT, "iwslt"),
}
_COMMENT = re.compile(r"<!--.*?-->|<\?.*?\?>|<!\w[^<>\[]*(?:\[.*?\]\s*)?>", re.DOTALL)
_CATALOG = re.compile(r"(?:[ \t]*(?:#.*)?\r?\n)*(?:msgctxt|msgid)[ \t]*\"")


def recognise(files: CorpusFiles) -> str | None:
    """Return the format of a corpus, given or by the beginning of its content.

    For an empty file return None.
    """
    if files.format != "auto":
        return files.format
    with regular_file(files.contents[0].path, "a corpus' file").open("rb") as file:
        head = file.read(_HEAD)
    form = _form(head)
    if len(files.paths) == 2:
        return form if form in ("sgm", "iwslt") else "moses"
    if form or not head:
        return form
    raise UserError(
        f"`{files.paths[0]}` is in no known format of corpora;"
        " give both files of a pair, or its `format`."
    )


def _form(head: bytes) -> str | None:
    if head.startswith(MAGIC):
        return "mo"
    if head.startswith((PARQUET_MAGIC, ARROW_MAGIC, STREAM_MAGIC)):
        return "arrow"
    # Some programs write XML in UTF-16.
    is_utf_16 = head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    text = head.decode("utf-16" if is_utf_16 else "utf-8", "replace").lstrip("\ufeff \t\r\n")
    if text.startswith("<") and (root := _ROOT.match(_COMMENT.sub("", text).lstrip())):
        if (form := _ROOTS.get(root[1].lower())) is not None:
            return form
    elif text.startswith("{"):
        return "jsonl"
    elif _CATALOG.match(text):
        return "po"
    return "tsv" if "\t" in text else None


_END = -1  # index of the mark at a file's end
_EVERY = 1000
_CHUNK = 1 << 20


def parts_of(files: CorpusFiles, most_lines: int, most_bytes: int) -> list[CorpusFiles]:
    """Divide a corpus into parts of limited lines and bytes, to read in parallel.

    There are no parts if it must be read whole.
    """
    form = recognise(files)
    if form not in _OF_LINES or len(files.paths) != _NUM_FILES.get(form, 1):
        return []
    every = min(_EVERY, most_lines)
    marks = [_marks(content.path, every) for content in files.contents]
    parts = []
    for begin, end in pairwise([*_begins(marks, most_lines // every, most_bytes), _END]):
        spans = []
        for offsets in marks:
            spans.append((int(offsets[begin]), int(offsets[end])))
        first = begin * every + 1
        parts.append(replace(files, format=form, first=first, spans=tuple(spans)))
    return parts


def _marks(path: Path, every: int) -> NDArray[np.int64]:
    """Return the offsets of the lines 0, `every`, 2 * `every` … of a file.

    The last offset is the file's end.
    """
    offsets = [np.zeros(1, np.int64)]
    lines = at = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            feeds = np.flatnonzero(np.frombuffer(chunk, np.uint8) == ord("\n"))
            offsets.append(feeds[every - 1 - lines % every :: every] + at + 1)
            lines += len(feeds)
            at += len(chunk)
    marks = np.concatenate(offsets)
    return np.append(marks[marks < max(at, 1)], at)


def _begins(marks: Sequence[NDArray[np.int64]], most: int, most_bytes: int) -> list[int]:
    """Return the marks at which parts begin, for the smallest number of parts."""
    begins = [0]
    for mark in range(1, min(map(len, marks)) - 1):
        size = sum(int(offsets[mark + 1] - offsets[begins[-1]]) for offsets in marks)
        if mark + 1 - begins[-1] > most or size > most_bytes:
            begins.append(mark)
    return begins
