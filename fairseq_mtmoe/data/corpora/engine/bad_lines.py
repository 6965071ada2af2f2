"""Lists of unreadable lines: one for each part of a corpus, one for all of them."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, TextIO

from fairseq_mtmoe.data.corpora.blocks import HARMLESS, BadLine
from fairseq_mtmoe.data.corpora.cleaning.cleaner import SAMPLES
from fairseq_mtmoe.data.corpora.engine.state import CorpusState

LIST = "bad_lines.tsv"  # in a data directory, if there are any
HEAD = (
    "corpus",
    "file",
    "line",
    "lines",
    "reason",
    "excerpt",
)  # a row is one line or several in succession


class BadLines:
    """Recorder of a part's bad lines, for a `with` statement."""

    def __init__(self, path: Path, part: CorpusState) -> None:
        self._path = path
        self._part = part
        self._indices = {str(file): index for index, file in enumerate(part.files.paths)}
        self._shown: Counter[str] = Counter()
        self._row: list[Any] = []  # the row that may grow: index, line, lines, reason, excerpt

    def __enter__(self) -> BadLines:
        self._file = open(self._path, "w", encoding="utf-8", newline="")
        return self

    def __exit__(self, *error: object) -> None:
        self._write()
        with self._file:
            if self._file.tell():
                self._part.bad_lists.append(self._path)

    def note(self, bad: BadLine) -> None:
        """Count a bad line, and list it unless its reason is harmless."""
        index = self._indices.get(bad.file, 0)
        self._part.bad[bad.reason] += bad.lost
        self._shown[bad.reason] += 1
        if self._shown[bad.reason] <= SAMPLES:
            self._part.bad_samples.append((index, bad.line, bad.reason, bad.excerpt))
        if bad.reason in HARMLESS:
            return
        row = self._row
        if row and row[2] and [index, bad.line, bad.reason] == [row[0], row[1] + row[2], row[3]]:
            row[2] += bad.lost
            return
        self._write()
        self._row = [index, bad.line, bad.lost, bad.reason, bad.excerpt]

    def _write(self) -> None:
        if self._row:
            _writer(self._file).writerow(self._row)


def _writer(file: TextIO) -> Any:
    return csv.writer(file, delimiter="\t", lineterminator="\n")


def write_list(folder: Path, corpora: Sequence[CorpusState]) -> None:
    """Write the bad lines of all corpora to `folder`, if there are any."""
    rows = _rows(corpora)
    first = next(rows, None)
    if first is None:
        return
    with open(folder / LIST, "w", encoding="utf-8", newline="") as file:
        _writer(file).writerows(chain([HEAD, first], rows))


def _rows(corpora: Sequence[CorpusState]) -> Iterator[list[str]]:
    for corpus in corpora:
        for path in corpus.bad_lists:
            with open(path, encoding="utf-8", newline="") as file:
                for index, *row in csv.reader(file, delimiter="\t"):
                    yield [corpus.files.name, corpus.files.names[int(index)], *row]
