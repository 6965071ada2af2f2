"""What the rooms of `prepare corpora` hand on: sentence pairs in blocks, and what could not be read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

BLOCK = 50_000  # pairs: what one worker does at a time


@dataclass(frozen=True)
class Block:
    """Sentence pairs of one corpus, in its order."""

    corpus: str  # its name in the recipe
    number: int  # from 0
    source: Sequence[str]  # as read: not normalised
    target: Sequence[str]
    lines: NDArray[np.int64]  # of each pair: the line, or segment (TMX, SGM, .po), of its file, from 1
    references: tuple[Sequence[str], ...] = ()  # further ones of evaluation data, each as long as `target`


@dataclass(frozen=True)
class BadLine:
    """What could not be read as a pair."""

    file: str
    line: int
    reason: str  # one of `readers.BAD_REASONS`
    excerpt: str
    lost: int = 1  # number of lines or segments that it stands for; 0 where none is known


@dataclass(frozen=True)
class Part:
    """Some lines of a corpus whose pairs are lines."""

    first: int  # the number of the first one, from 1
    spans: tuple[tuple[int, int | None], ...]  # of each file, unpacked: bytes from … to before …, None for its end


class Content(NamedTuple):
    """Where the bytes of a corpus' file lie as they are, and what ended their unpacking too early."""

    path: Path
    reason: str = ""  # one of `readers.BAD_REASONS`; empty if all of the file is there
    message: str = ""


@dataclass(frozen=True)
class CorpusFiles:
    """Where a corpus is: one file with both sides, or one for each."""

    name: str
    paths: tuple[Path, ...]  # 1 or 2; a member of an archive is written  archive.tgz!path/inside
    source_lang: str
    target_lang: str
    format: str = "auto"  # one of `readers.FORMATS`
    fields: Mapping[str, str | int] = field(default_factory=dict)  # columns of TSV, keys of JSON lines; else by content
    is_evaluation: bool = False  # every line is needed, also one without text, so that scores are of the whole set
    allow_unequal: bool = False  # of two files of lines one may have more: they are left out
    part: Part | None = None  # these lines alone
    unpacked: tuple[Content, ...] = ()  # where the files lie unpacked, if one of them is packed

    @property
    def contents(self) -> tuple[Content, ...]:
        """What readers open."""
        return self.unpacked or tuple(map(Content, self.paths))
