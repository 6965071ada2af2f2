"""The jobs of the first stage: a worker reads a corpus or a part of it from its raw files, and cleans it."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np

from fairseq_mtmoe.data.corpora.blocks import HARMLESS, BadLine, Block, CorpusFiles, OnBadLine
from fairseq_mtmoe.data.corpora.cleaning.cleaner import SAMPLES, Cleaner
from fairseq_mtmoe.data.corpora.engine.store import Stage, is_saved, packed, save
from fairseq_mtmoe.data.corpora.readers import parts_of, read
from fairseq_mtmoe.data.corpora.recipes.schema import Filters, Role
from fairseq_mtmoe.io.files import open_in_place
from fairseq_mtmoe.io.normalisation import normalise

# Of a part, on both sides together: a block's pairs have fewer unless they are over 300 bytes each.
PART_BYTES = 16 << 20
LIST = "bad_lines.tsv"  # in a data directory, where there is any; a row is one or several lines that follow each other
HEAD = ("corpus", "file", "line", "lines", "reason", "excerpt")


@dataclass(frozen=True)
class RawCorpus:
    """A corpus of the recipe with its files on disk."""

    files: CorpusFiles
    pair: str  # language pair that it belongs to, in plain codes
    role: Role
    digests: tuple[str, ...]  # of its files
    paths: tuple[str, ...] = ()  # the files' paths below RAW, as in the recipe
    is_synthetic: bool = False  # its sources are a model's translations
    weight: int = 1  # how often training data has it

    @property
    def names(self) -> tuple[str, ...]:
        """Return the files' names in reports."""
        return self.paths or tuple(path.name for path in self.files.paths)

    @property
    def is_turned(self) -> bool:
        """Return whether the files have the pair's target as their source."""
        return self.pair != f"{self.files.source_lang}-{self.files.target_lang}"

    @property
    def tagged(self) -> str:
        """Return the side of the pair that begins with the tag of synthetic text; empty for none."""
        return "" if not self.is_synthetic else "target" if self.is_turned else "source"


@dataclass(frozen=True)
class PartJob:
    """A corpus, or a part of it."""

    corpus: int  # its number for whoever waits for the result
    raw: RawCorpus  # with the files of this part
    filters: Filters  # for training pairs
    on_bad_line: OnBadLine
    block: int  # pairs
    stage: Stage
    number: int | None  # number of the part and its block; None for a whole corpus of several blocks

    @property
    def size(self) -> int:
        """Return the number of bytes to read."""
        sizes = (content.path.stat().st_size for content in self.raw.files.contents)
        spans = zip(self.raw.files.spans, sizes, strict=False)
        return sum((size if end is None else end) - begin for (begin, end), size in spans)


class Done(NamedTuple):
    """Result of a job."""

    corpus: int
    number: int | None
    pairs: int
    blocks: int  # number of blocks so far
    bad: dict[str, Any] | None  # bad lines of a whole corpus; those of a part are in its block's summary


def cut(number: int, files: CorpusFiles, block: int) -> tuple[int, list[CorpusFiles]]:
    """Return a corpus' number and its parts of this many pairs; no parts if it must be read as a whole."""
    return number, parts_of(files, block, PART_BYTES)


def clean_part(job: PartJob) -> Done:
    """Read, clean and save a part of a corpus, or all its blocks that an earlier run has not saved."""
    name = LIST if job.number is None else f"{job.number:06d}.{LIST}"
    with BadLines(job.stage.folder / name, job.raw.files) as bad:
        if job.number is not None:
            block = _joined(list(_blocks(job, bad)))
        else:
            pairs = blocks = 0
            for number, block in enumerate(_blocks(job, bad)):
                if not is_saved(job.stage.block(number)):
                    clean_block(block, job, number, {})
                pairs, blocks = pairs + len(block.source), number + 1
    if job.number is None:
        return Done(job.corpus, None, pairs, blocks, bad.result())
    clean_block(block, job, job.number, bad.result())  # also marks the list of bad lines as complete
    return Done(job.corpus, job.number, len(block.source), 1, None)


def _blocks(job: PartJob, bad: BadLines) -> Iterator[Block]:
    """Yield the reader's blocks, with the sides in the pair's order; record bad lines."""
    for item in read(job.raw.files, job.block, job.on_bad_line):
        if isinstance(item, BadLine):
            bad.note(item)
        elif job.raw.is_turned:
            yield replace(item, source=item.target, target=item.source, references=())  # they are its target's
        else:
            yield item


def _joined(blocks: Sequence[Block]) -> Block:
    """Join the blocks of a part; usually there is one, unless lines are very long."""
    if len(blocks) == 1:
        return blocks[0]
    source = [text for block in blocks for text in block.source]
    target = [text for block in blocks for text in block.target]
    return Block(source, target, np.concatenate([np.zeros(0, np.int64), *(one.lines for one in blocks)]))


def clean_block(block: Block, job: PartJob, number: int, bad: Mapping[str, Any]) -> None:
    """Clean a block and save it, with the bad lines of its part."""
    source, target = job.raw.pair.split("-")
    cleaned = Cleaner(job.filters, source, target, job.raw.role)(block)
    texts = {"source": cleaned.source, "target": cleaned.target}
    texts |= {f"reference{number}": list(map(normalise, lines)) for number, lines in enumerate(block.references)}
    summary = {
        "read": len(block.source),
        "kept": len(cleaned.source),
        "references": len(block.references),
        "changes": cleaned.changes,
        "counts": cleaned.counts,
        "samples": cleaned.samples,
        "bad": bad,
    }
    arrays = {name: array for text, lines in texts.items() for name, array in packed(text, lines).items()}
    arrays |= {name: getattr(cleaned, name) for name in ("lines", "exact", "near", "source_keys", "target_keys")}
    save(job.stage.block(number), summary, **arrays)


class BadLines:
    """Recorder of a corpus' or part's bad lines, for a `with` statement; files are identified by index."""

    def __init__(self, path: Path, files: CorpusFiles) -> None:
        self._path = path
        self._indices = {str(file): index for index, file in enumerate(files.paths)}
        self._counts: Counter[str] = Counter()
        self._shown: Counter[str] = Counter()
        self._samples: list[list[Any]] = []
        self._row: list[Any] = []  # index, line, lines, reason, excerpt: of the row that may grow

    def __enter__(self) -> BadLines:
        self._file = open_in_place(self._path, "w", encoding="utf-8", newline="")
        return self

    def __exit__(self, *error: object) -> None:
        self._write()
        with self._file:
            if not self._file.tell():
                self._path.unlink(missing_ok=True)  # another worker with the same part may have removed it

    def note(self, bad: BadLine) -> None:
        """Count a bad line, keep the first ones as samples, and list it unless its reason is harmless."""
        self._counts[bad.reason] += bad.lost
        index = self._indices.get(bad.file, 0)
        if self._shown[bad.reason] < SAMPLES:
            self._shown[bad.reason] += 1
            self._samples.append([index, bad.line, bad.reason, bad.excerpt])
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

    def result(self) -> dict[str, Any]:
        """Return the lines by reason, and samples of each reason in order, for the stage's result."""
        return {"bad": dict(sorted(self._counts.items())), "bad_samples": self._samples}


def joined_results(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge the results of `BadLines` for a corpus' parts into one for the corpus."""
    counts = sum((Counter(result["bad"]) for result in results), Counter[str]())
    shown: Counter[str] = Counter()
    samples = []
    for sample in (sample for result in results for sample in result["bad_samples"]):
        shown[sample[2]] += 1
        if shown[sample[2]] <= SAMPLES:
            samples.append(sample)
    return {"bad": dict(sorted(counts.items())), "bad_samples": samples}


def _writer(file: TextIO) -> Any:
    return csv.writer(file, delimiter="\t", lineterminator="\n")


def write_list(folder: Path, corpora: Iterable[tuple[RawCorpus, Stage]]) -> None:
    """Write the bad lines of all corpora to `folder`, if there are any."""
    rows = _rows(corpora)
    first = next(rows, None)
    if first is None:
        return
    with open(folder / LIST, "w", encoding="utf-8", newline="") as file:
        _writer(file).writerows(chain([HEAD, first], rows))


def _rows(corpora: Iterable[tuple[RawCorpus, Stage]]) -> Iterator[list[str]]:
    for corpus, stage in corpora:
        for path in sorted(stage.folder.glob(f"*{LIST}")):  # of the whole corpus, or of each part
            with open(path, encoding="utf-8", newline="") as file:
                for index, *row in csv.reader(file, delimiter="\t"):
                    yield [corpus.files.name, corpus.names[int(index)], *row]
