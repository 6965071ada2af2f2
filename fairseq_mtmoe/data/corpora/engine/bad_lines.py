"""Lists of unreadable lines: one for each part of a corpus, one for all of them."""

import csv
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, TextIO

from fairseq_mtmoe.data.corpora.engine.state import CorpusState

LIST = "bad_lines.tsv"  # in a data directory, if there are any
HEAD = ("corpus", "file", "line", "reason", "excerpt")


def rows_to(file: TextIO) -> Any:
    """Return a writer of rows."""
    return csv.writer(file, delimiter="\t", lineterminator="\n")


def write_list(folder: Path, corpora: Sequence[CorpusState]) -> None:
    """Write the bad lines of all corpora to `folder`, if there are any."""
    rows = _rows(corpora)
    first = next(rows, None)
    if first is None:
        return
    with open(folder / LIST, "w", encoding="utf-8", newline="") as file:
        rows_to(file).writerows(chain([HEAD, first], rows))


def _rows(corpora: Sequence[CorpusState]) -> Iterator[list[str]]:
    for corpus in corpora:
        for path in corpus.bad_lists:
            with open(path, encoding="utf-8", newline="") as file:
                for name, *row in csv.reader(file, delimiter="\t"):
                    yield [corpus.files.name, name, *row]
