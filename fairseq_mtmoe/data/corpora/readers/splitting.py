"""Where a corpus of lines can be cut, so that several read it at once, each its lines: files are scanned once."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fairseq_mtmoe.data.corpora.blocks import CorpusFiles, Part
from fairseq_mtmoe.data.corpora.readers.errors import Fault
from fairseq_mtmoe.data.corpora.readers.recognising import recognise
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.io.files import regular_file

_OF_LINES = {"moses": 2, "text": 2, "tsv": 1, "jsonl": 1}
"""Formats whose pairs are lines, and how many files they have."""

_OTHER_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE)
_EVERY = 1000
_CHUNK = 1 << 20


def parts_of(files: CorpusFiles, most_lines: int, most_bytes: int) -> list[CorpusFiles]:
    """A corpus in parts of at most so many lines and, where lines are not enormous, bytes in all files together.

    They are its lines, each once and in their order; lines that one file has more than the other are in the last part.
    None are returned where it has to be read as a whole: another format or encoding.
    """
    try:
        form = recognise(files) if files.format == "auto" else files.format
    except (Fault, UserError):  # whoever reads it says what is wrong
        return []
    places = [content.path for content in files.contents]
    if form is None or len(places) != _OF_LINES.get(form) or not all(map(_is_in_utf8, places)):
        return []
    every = min(_EVERY, most_lines)
    marks = [_marks(place, every) for place in places]
    begins = _begins(marks, most_lines // every, most_bytes)
    ends = [*begins[1:], None]
    spans = [
        tuple((int(of_file[begin]), None if end is None else int(of_file[end])) for of_file in marks)
        for begin, end in zip(begins, ends, strict=True)
    ]
    return [
        replace(files, format=form, part=Part(begin * every + 1, span))
        for begin, span in zip(begins, spans, strict=True)
    ]


def _is_in_utf8(place: Path) -> bool:
    with regular_file(place, "a corpus' file").open("rb") as file:
        return not file.read(4).startswith(_OTHER_MARKS)


def _marks(place: Path, every: int) -> NDArray[np.int64]:
    """Where the lines 0, `every`, 2 * `every` … of a file begin, and where it ends."""
    found = [np.zeros(1, np.int64)]
    lines = at = 0
    with place.open("rb") as file:
        while chunk := file.read(_CHUNK):
            feeds = np.flatnonzero(np.frombuffer(chunk, np.uint8) == ord("\n"))
            found.append(feeds[every - 1 - lines % every :: every] + at + 1)
            lines += len(feeds)
            at += len(chunk)
    marks = np.concatenate(found)
    return np.append(marks[marks < max(at, 1)], at)


def _begins(marks: Sequence[NDArray[np.int64]], most: int, most_bytes: int) -> list[int]:
    """At which marks a part begins: as few as may be, from the first on."""
    begins = [0]
    for mark in range(1, min(map(len, marks)) - 1):
        size = sum(int(of_file[mark + 1] - of_file[begins[-1]]) for of_file in marks)
        if mark + 1 - begins[-1] > most or size > most_bytes:
            begins.append(mark)
    return begins
