"""What could not be read of a corpus: counted by reason, some of each reason shown, and all listed by file and line."""

from __future__ import annotations

import csv
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fairseq_mtmoe.data.corpora.blocks import BadLine, CorpusFiles
from fairseq_mtmoe.data.corpora.cleaning import SAMPLES
from fairseq_mtmoe.data.corpora.readers import HARMLESS, OnBadLine, check
from fairseq_mtmoe.io.files import replacing

LIST = "bad_lines.tsv"
"""In a data directory, where there is any. A row is a line or segment, or several that follow each other."""

HEAD = ("corpus", "file", "line", "lines", "reason", "excerpt")


class BadLines:
    """Those of one corpus, noted while it is read. To be used in a `with` statement.

    Files are told by their place among the corpus' files: others with the same content may take these results over.

    Args:
        path: the file for the list, replaced if it is there.
        files: of the corpus.
    """

    def __init__(self, path: Path, files: CorpusFiles) -> None:
        self._path = path
        self._places = {str(file): place for place, file in enumerate(files.paths)}
        self._counts: Counter[str] = Counter()
        self._samples: list[list[object]] = []
        self._shown: Counter[str] = Counter()
        self._row: list[Any] = []  # place, line, lines, reason, excerpt: of the row that may grow

    def __enter__(self) -> BadLines:
        self._file = open(self._path, "w", encoding="utf-8", newline="")
        self._rows = csv.writer(self._file, delimiter="\t", lineterminator="\n")
        return self

    def __exit__(self, *error: object) -> None:
        self._write()
        self._file.close()

    def note(self, bad: BadLine) -> None:
        """Count a bad line, show it if few were before, and list it if it is a fault of the file."""
        self._counts[bad.reason] += bad.lost
        place = self._places.get(bad.file, 0)
        if self._shown[bad.reason] < SAMPLES:
            self._shown[bad.reason] += 1
            self._samples.append([place, bad.line, bad.reason, bad.excerpt])
        if bad.reason in HARMLESS:
            return
        row = self._row
        if row and row[2] and [place, bad.line, bad.reason] == [row[0], row[1] + row[2], row[3]]:
            row[2] += bad.lost
            return
        self._write()
        self._row = [place, bad.line, bad.lost, bad.reason, bad.excerpt]

    def _write(self) -> None:
        if self._row:
            self._rows.writerow(self._row)
        self._row = []

    def result(self) -> dict[str, Any]:
        """What a stage keeps of them: lines by reason, and samples of each reason as they came."""
        return {"bad": dict(sorted(self._counts.items())), "bad_samples": self._samples}


def joined_results(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What `BadLines` would have said of a corpus, by what it said of its parts, in their order."""
    counts = sum((Counter(result["bad"]) for result in results), Counter[str]())
    shown: Counter[str] = Counter()
    samples = []
    for sample in (sample for result in results for sample in result["bad_samples"]):
        shown[sample[2]] += 1
        if shown[sample[2]] <= SAMPLES:
            samples.append(sample)
    return {"bad": dict(sorted(counts.items())), "bad_samples": samples}


def join_lists(lists: Sequence[Path], out: Path) -> None:
    """Write the list of a corpus, of those of its parts, in their order."""
    with replacing(out) as partial, partial.open("wb") as file:
        for path in lists:
            with path.open("rb") as part:
                shutil.copyfileobj(part, file)


def check_result(result: Mapping[str, Any], files: CorpusFiles, on_bad_line: OnBadLine) -> None:
    """See that nothing that was left out of a corpus is to end the run.

    Args:
        result: of `BadLines.result`.

    Raises:
        UserError: something is.
    """
    for place, line, reason, excerpt in result["bad_samples"]:
        check(BadLine(str(files.paths[place]), line, reason, excerpt), on_bad_line, files)


def write_list(folder: Path, lists: Iterable[tuple[str, Sequence[str], Path]]) -> None:
    """Write the bad lines of all corpora into `folder`, if there are any.

    Args:
        lists: each corpus' name, the names of its files, and what `BadLines` wrote.
    """
    rows = _rows(lists)
    first = next(rows, None)
    if first is None:
        return
    with open(folder / LIST, "w", encoding="utf-8", newline="") as file:
        out = csv.writer(file, delimiter="\t", lineterminator="\n")
        out.writerows([HEAD, first])
        out.writerows(rows)


def _rows(lists: Iterable[tuple[str, Sequence[str], Path]]) -> Iterator[list[str]]:
    for corpus, names, path in lists:
        with open(path, encoding="utf-8", newline="") as file:
            for place, *row in csv.reader(file, delimiter="\t"):
                yield [corpus, names[int(place)], *row]
