"""The jobs of the first stage: a worker opens raw files itself, reads a corpus or a part of a block, and cleans it."""

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
from fairseq_mtmoe.data.corpora.cleaning.characters import normalise
from fairseq_mtmoe.data.corpora.cleaning.cleaner import SAMPLES, Cleaner
from fairseq_mtmoe.data.corpora.engine.store import Stage, is_saved, packed, save
from fairseq_mtmoe.data.corpora.readers import parts_of, read
from fairseq_mtmoe.data.corpora.recipes.schema import Filters, Role

# Of a part, on both sides together: a block's pairs have fewer unless they are over 300 bytes each.
PART_BYTES = 16 << 20
LIST = "bad_lines.tsv"  # in a data directory, where there is any; a row is one or several lines that follow each other
HEAD = ("corpus", "file", "line", "lines", "reason", "excerpt")


@dataclass(frozen=True)
class RawCorpus:
    """A corpus of the recipe, found on disk."""

    files: CorpusFiles
    pair: str  # that it is a part of, in plain codes
    role: Role
    digests: tuple[str, ...]  # of its files
    paths: tuple[str, ...] = ()  # of these below RAW, as the recipe has them
    is_synthetic: bool = False  # its sources are a model's translations
    weight: int = 1  # how often training data has it

    @property
    def names(self) -> tuple[str, ...]:
        return self.paths or tuple(path.name for path in self.files.paths)

    @property
    def is_turned(self) -> bool:
        """Whether its files have the pair's target as their source."""
        return self.pair != f"{self.files.source_lang}-{self.files.target_lang}"

    @property
    def tagged(self) -> str:
        """The side of its pair whose sentences begin with the tag of synthetic text; empty for none."""
        return "" if not self.is_synthetic else "target" if self.is_turned else "source"


@dataclass(frozen=True)
class PartJob:
    """A part of a corpus, or all of it."""

    corpus: int  # its number for whoever waits for the result
    raw: RawCorpus  # with the files of this part
    filters: Filters | None  # of training pairs; None takes text as it is
    on_bad_line: OnBadLine
    block: int  # pairs
    stage: Stage
    number: int | None  # of the part and its block; None for a whole corpus, which has as many as it needs

    @property
    def size(self) -> int:
        sizes = (content.path.stat().st_size for content in self.raw.files.contents)
        spans = zip(self.raw.files.spans, sizes, strict=False)
        return sum((size if end is None else end) - begin for (begin, end), size in spans)


class Done(NamedTuple):
    corpus: int
    number: int | None
    pairs: int
    blocks: int  # that there are now
    bad: dict[str, Any] | None  # of a whole corpus, what is known of its bad lines; a part's are in its block's summary


def cut(number: int, files: CorpusFiles, block: int) -> tuple[int, list[CorpusFiles]]:
    """A corpus' number and its parts of so many pairs: none, where it has to be read as a whole."""
    return number, parts_of(files, block, PART_BYTES)


def clean_part(job: PartJob) -> Done:
    """Read, clean and write down a part of a corpus, or all blocks of it that are not there from an earlier run."""
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
    clean_block(block, job, job.number, bad.result())  # which says that its list of bad lines is there, too
    return Done(job.corpus, job.number, len(block.source), 1, None)


def _blocks(job: PartJob, bad: BadLines) -> Iterator[Block]:
    """The reader's blocks, with the sides as the corpus' pair has them; bad lines are noted."""
    for item in read(job.raw.files, job.block, job.on_bad_line):
        if isinstance(item, BadLine):
            bad.note(item)
        elif job.raw.is_turned:
            yield replace(item, source=item.target, target=item.source, references=())  # which are of its target alone
        else:
            yield item


def _joined(blocks: Sequence[Block]) -> Block:
    """One block of all those of a part: of one, unless its lines are enormous."""
    if len(blocks) == 1:
        return blocks[0]
    source = [text for block in blocks for text in block.source]
    target = [text for block in blocks for text in block.target]
    return Block(source, target, np.concatenate([np.zeros(0, np.int64), *(one.lines for one in blocks)]))


def clean_block(block: Block, job: PartJob, number: int, bad: Mapping[str, Any]) -> None:
    """Clean a block and write it down, with what is known of the bad lines of its part."""
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
    """Bad lines of a corpus or a part, noted in a `with` statement; files are told by index: others may be equal."""

    def __init__(self, path: Path, files: CorpusFiles) -> None:
        self._path = path
        self._indices = {str(file): index for index, file in enumerate(files.paths)}
        self._counts: Counter[str] = Counter()
        self._shown: Counter[str] = Counter()
        self._samples: list[list[Any]] = []
        self._row: list[Any] = []  # index, line, lines, reason, excerpt: of the row that may grow

    def __enter__(self) -> BadLines:
        self._file = open(self._path, "w", encoding="utf-8", newline="")
        return self

    def __exit__(self, *error: object) -> None:
        self._write()
        with self._file:
            if not self._file.tell():
                self._path.unlink(missing_ok=True)  # who does the same part may have removed it

    def note(self, bad: BadLine) -> None:
        """Count a bad line, show it if few were before, and list it if it is a fault of the file."""
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
        """What a stage keeps of them: lines by reason, and samples of each reason as they came."""
        return {"bad": dict(sorted(self._counts.items())), "bad_samples": self._samples}


def joined_results(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what `BadLines` would have said of a corpus, by what it said of its parts."""
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
    """Write the bad lines of all corpora into `folder`, if there are any."""
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
