"""A corpus on its way from raw files to ids, as each stage leaves it for the next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fairseq_mtmoe.corpora.blocks import BadLine, CorpusFiles
from fairseq_mtmoe.corpora.cleaning.cleaner import SAMPLES, Sample, chosen
from fairseq_mtmoe.corpora.recipes.schema import Role

SIDES = ("source", "target")
BAD_LINES = "bad_lines.tsv"  # list of unreadable lines: of a part, or in a data directory
BadSample = tuple[str, int, str]  # file, line, excerpt

Mask = NDArray[np.bool_]


@dataclass
class CorpusState:
    """A corpus, the files that stages have made of it, and counts for the report."""

    files: CorpusFiles
    blocks: list[Path] = field(default_factory=list)  # files of cleaned pairs, with their keys
    sizes: list[int] = field(default_factory=list)  # number of pairs in each block
    references: int = 0  # further references of evaluation data
    read: int = 0
    kept: int = 0
    dropped: Counter[str] = field(default_factory=Counter)  # pairs left out, by rule
    samples: dict[str, list[Sample]] = field(default_factory=dict)  # pairs left out, by rule
    bad: Counter[str] = field(default_factory=Counter)  # unreadable lines, by reason
    # The first bad lines of each reason.
    bad_samples: dict[str, list[BadSample]] = field(default_factory=dict)
    bad_lists: list[Path] = field(default_factory=list)  # files that list unreadable lines
    mask: Path | None = None  # file that says of each pair whether it is kept; None: all are
    ids: list[Path] = field(default_factory=list)  # a file of ids for each block
    # Counts of the kept text, by side.
    tokens: dict[str, Counter[str]] = field(default_factory=dict)

    @property
    def is_training(self) -> bool:
        """Return whether it is training text."""
        return self.files.role is Role.train

    def kept_pairs(self) -> Mask:
        """Return a mask of the pairs that are kept."""
        if self.mask is None:
            return np.ones(sum(self.sizes), np.bool_)
        mask: Mask = np.load(self.mask)
        return mask

    @property
    def places(self) -> Iterator[Place]:
        """Yield where the pairs of each block are."""
        start = 0
        for block, size in zip(self.blocks, self.sizes, strict=True):
            yield Place(block, self.mask, start, size)
            start += size

    def add_samples(self, rule: str, samples: Iterable[Sample]) -> None:
        """Add samples of a rule, of which some are chosen."""
        if selected := chosen([*self.samples.get(rule, []), *samples]):
            self.samples[rule] = selected

    def add_bad_line(self, bad: BadLine) -> str:
        """Count an unreadable line; return its file's path below RAW."""
        name = self.files.names[list(map(str, self.files.paths)).index(bad.file)]
        self.bad[bad.reason] += 1
        if self.bad[bad.reason] <= SAMPLES:
            self.bad_samples.setdefault(bad.reason, []).append((name, bad.line, bad.excerpt))
        return name

    def add_part(self, part: CorpusState) -> None:
        """Add the part of the corpus that follows."""
        self.blocks += part.blocks
        self.sizes += part.sizes
        self.references = max(self.references, part.references)
        self.read += part.read
        self.kept += part.kept
        self.dropped.update(part.dropped)
        self.bad.update(part.bad)
        self.bad_lists += part.bad_lists
        for rule, samples in part.samples.items():
            self.add_samples(rule, samples)
        for reason, bad_samples in part.bad_samples.items():
            self.bad_samples[reason] = [*self.bad_samples.get(reason, []), *bad_samples][:SAMPLES]


@dataclass(frozen=True)
class Place:
    """A block's file, and where its pairs begin in the mask of its corpus."""

    block: Path
    mask: Path | None
    start: int
    size: int

    def rows(self) -> NDArray[np.int64]:
        """Return the rows of the pairs that are kept."""
        if self.mask is None:
            return np.arange(self.size)
        return np.flatnonzero(
            np.load(self.mask, mmap_mode="r")[self.start : self.start + self.size]
        )


def places_of(corpora: Iterable[CorpusState]) -> list[Place]:
    """Return where the pairs of the corpora's blocks are, in order."""
    places: list[Place] = []
    for corpus in corpora:
        places += corpus.places
    return places


def kept_in(corpora: Iterable[CorpusState]) -> int:
    """Return the number of pairs that are kept."""
    return sum(corpus.kept for corpus in corpora)


def written_in(corpora: Iterable[CorpusState]) -> int:
    """Return the number of pairs that a data directory has, with copies."""
    return sum(corpus.kept * corpus.files.weight for corpus in corpora)


def names_of(corpora: Iterable[CorpusState]) -> str:
    """Return the corpora's names for a sentence."""
    return ", ".join(corpus.files.name for corpus in corpora)


def training_by_pair(corpora: Iterable[CorpusState]) -> dict[str, list[CorpusState]]:
    """Return the training corpora of each language pair, in order."""
    by_pair: dict[str, list[CorpusState]] = {}
    for corpus in corpora:
        if corpus.is_training:
            by_pair.setdefault(corpus.files.pair, []).append(corpus)
    return by_pair
