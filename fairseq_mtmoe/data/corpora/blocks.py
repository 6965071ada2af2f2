"""What the rooms of `prepare corpora` hand on: sentence pairs in blocks, and what could not be read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

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
    # Where each pair stands: the line (TSV, Moses, JSON lines) or unit (TMX, SGM, XLIFF, .po) of its file, from 1.
    lines: NDArray[np.int64]
    # Further references of evaluation data (SGM, WMT's XML), each as long as `target`.
    references: tuple[Sequence[str], ...] = ()


@dataclass(frozen=True)
class BadLine:
    """What could not be read as a pair."""

    file: str
    line: int
    reason: str  # one of `readers.BAD_REASONS`
    excerpt: str
    lost: int = 1  # how many lines or units it stands for: those of a file that was cut short, 0 where none is known of


@dataclass(frozen=True)
class Part:
    """Some lines of a corpus whose pairs are lines."""

    first: int  # the number of the first one, from 1
    spans: tuple[tuple[int, int | None], ...]  # of each file, unpacked: bytes from … to before …, None for its end


@dataclass(frozen=True)
class CorpusFiles:
    """Where a corpus is: one file with both sides, or one for each."""

    name: str
    paths: tuple[Path, ...]  # 1 or 2; a member of an archive is written  archive.tgz!path/inside
    source_lang: str
    target_lang: str
    format: str = "auto"  # one of `readers.FORMATS`
    fields: Mapping[str, str | int] = field(default_factory=dict)  # columns of TSV, keys of JSON lines; else by content
    # Whether every line of it is needed, also one without text, so that scores are of the whole set.
    is_evaluation: bool = False
    allow_unequal: bool = False  # of two files of lines one may have more: they are left out
    part: Part | None = None  # these lines alone, of files that are plain or lie somewhere unpacked
