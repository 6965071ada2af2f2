"""The first stage: raw files are read as a stream, here, and their blocks cleaned, by the workers."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from fairseq_mtmoe.data.corpora.blocks import BLOCK, BadLine, Block, CorpusFiles
from fairseq_mtmoe.data.corpora.clean import normalise
from fairseq_mtmoe.data.corpora.cleaning import SAMPLES, Cleaner
from fairseq_mtmoe.data.corpora.engine.progress import BytesRead, Shown, Step
from fairseq_mtmoe.data.corpora.engine.store import Saved, Stage, WorkFolder, is_saved, load_keys, packed, save
from fairseq_mtmoe.data.corpora.engine.workers import Workers
from fairseq_mtmoe.data.corpora.readers import read
from fairseq_mtmoe.data.corpora.recipes import Filters, Role

OnBadLine = Literal["stop", "drop"]


@dataclass(frozen=True)
class RawCorpus:
    """A corpus of the recipe, found on disk."""

    files: CorpusFiles
    pair: str  # in plain codes
    role: Role
    digests: tuple[str, ...]  # of its files


@dataclass(frozen=True)
class CleanedCorpus:
    """A corpus whose blocks are clean and written down."""

    raw: RawCorpus
    stage: Stage
    result: dict[str, Any] = field(repr=False)  # "blocks", "bad", "bad_samples"

    @property
    def blocks(self) -> list[Path]:
        """The files of its blocks, in order."""
        return [self.stage.block(number) for number in range(self.result["blocks"])]


@dataclass(frozen=True)
class _Job:
    block: Block
    filters: Filters
    source_lang: str
    target_lang: str
    role: Role
    held_out: Path  # a file of keys
    out: Path


def clean_block(job: _Job) -> int:
    """Clean a block and write it down; how many pairs it had."""
    cleaner = _cleaner(job.filters, job.source_lang, job.target_lang, job.role, job.held_out)
    cleaned = cleaner(job.block)
    references = {
        name: array
        for number, lines in enumerate(job.block.references)
        for name, array in packed(f"reference{number}", list(map(normalise, lines))).items()
    }
    summary = {
        "read": len(job.block.source),
        "kept": len(cleaned.source),
        "references": len(job.block.references),
        "counts": cleaned.counts,
        "samples": cleaned.samples,
    }
    save(
        job.out,
        summary,
        **packed("source", cleaned.source),
        **packed("target", cleaned.target),
        **references,
        lines=cleaned.lines,
        exact=cleaned.exact,
        near=cleaned.near,
    )
    return len(job.block.source)


@lru_cache(4)
def _cleaner(filters: Filters, source_lang: str, target_lang: str, role: Role, held_out: Path) -> Cleaner:
    return Cleaner(filters, source_lang, target_lang, role, load_keys(held_out))


class Reading:
    """Reads and cleans corpora that are held against the same evaluation data.

    Args:
        work: where to.
        filters: of training pairs.
        identification: the hash of their model for language identification, where there is one.
        held_out: a file of the keys of evaluation sentences, sorted.
        on_bad_line: see `readers.read`.
    """

    def __init__(
        self, work: WorkFolder, filters: Filters, identification: Sequence[str], held_out: Path, on_bad_line: OnBadLine
    ) -> None:
        self._work = work
        self._filters = filters
        self._identification = list(identification)
        self._held_out = held_out
        self._held_out_key = held_out.parent.name
        self._on_bad_line = on_bad_line

    def clean(self, corpora: Sequence[RawCorpus], workers: Workers, shown: Shown, label: str) -> list[CleanedCorpus]:
        """The corpora, cleaned; those that an earlier run has cleaned are not read.

        Raises:
            UserError: a line cannot be read as a pair, where that is to end the run.
        """
        stages = [self._stage(corpus) for corpus in corpora]
        for corpus, stage in zip(corpora, stages, strict=True):
            self._read_again_if_bad(corpus, stage)
        left = [(corpus, stage) for corpus, stage in zip(corpora, stages, strict=True) if stage.result() is None]
        if left:
            with shown.step(label) as step:
                _Pass(self, left, step).run(workers)
        return [
            CleanedCorpus(corpus, stage, stage.result() or {}) for corpus, stage in zip(corpora, stages, strict=True)
        ]

    def _stage(self, corpus: RawCorpus) -> Stage:
        files, is_training = corpus.files, corpus.role is Role.train
        return self._work.stage(
            "clean",
            content=corpus.digests,
            block=BLOCK,
            format=[files.format, dict(files.fields)],
            languages=[files.source_lang, files.target_lang],
            training=is_training,
            unicode=unicodedata.unidata_version,
            **(
                {
                    "filters": _plain(asdict(self._filters)),
                    "identification": self._identification,
                    "held_out": self._held_out_key,
                }
                if is_training
                else {}
            ),
        )

    def _read_again_if_bad(self, corpus: RawCorpus, stage: Stage) -> None:
        """Let the reader say which line is bad, where an earlier run was told to drop it, and this one is to stop."""
        result = stage.result()
        if self._on_bad_line == "stop" and result is not None and result["bad"]:
            for _ in read(corpus.files, on_bad_line="stop"):
                pass

    def job(self, corpus: RawCorpus, block: Block, out: Path) -> _Job:
        """For `clean_block`."""
        langs = (corpus.files.source_lang, corpus.files.target_lang)
        return _Job(block, self._filters, *langs, corpus.role, self._held_out, out)

    def read(self, corpus: RawCorpus) -> Iterator[Block | BadLine]:
        """The reader's blocks."""
        return read(corpus.files, BLOCK, self._on_bad_line)


@dataclass
class _Tally:
    """What is known of a corpus when it is read."""

    blocks: int = 0
    bad: Counter[str] = field(default_factory=Counter)
    bad_samples: list[list[object]] = field(default_factory=list)

    def note(self, line: BadLine) -> None:
        self.bad[line.reason] += line.lost
        if len(self.bad_samples) < SAMPLES:
            self.bad_samples.append([Path(line.file).name, line.line, line.reason, line.excerpt])


class _Pass:
    """One pass over corpora, as one stream of blocks, so that many small ones keep all workers busy, too."""

    def __init__(self, reading: Reading, corpora: Sequence[tuple[RawCorpus, Stage]], step: Step) -> None:
        self._reading = reading
        self._corpora = corpora
        self._step = step
        self._tallies = [_Tally() for _ in corpora]
        paths = [path for corpus, _ in corpora for path in corpus.files.paths]
        self._bytes = BytesRead([Path(str(path).partition("!")[0]) for path in paths])
        self._owners: list[int] = []  # of the jobs that were handed out: the number of their corpus

    def run(self, workers: Workers) -> None:
        finished = 0
        for number, pairs in enumerate(workers.map_blocks(clean_block, self._jobs())):
            self._step.advance(pairs, self._bytes.share())
            while finished < self._owners[number]:  # the jobs of those before are done, as results come in order
                finished = self._finish(finished)
        while finished < len(self._corpora):
            finished = self._finish(finished)

    def _finish(self, index: int) -> int:
        tally = self._tallies[index]
        samples = {"bad": dict(sorted(tally.bad.items())), "bad_samples": tally.bad_samples}
        self._corpora[index][1].finish({"blocks": tally.blocks, **samples})
        return index + 1

    def _jobs(self) -> Iterator[_Job]:
        for index, (corpus, stage) in enumerate(self._corpora):
            tally = self._tallies[index]
            for item in self._reading.read(corpus):
                if isinstance(item, BadLine):
                    tally.note(item)
                    continue
                out = stage.block(tally.blocks)
                tally.blocks += 1
                if is_saved(out):
                    self._step.advance(len(item.source), self._bytes.share(), skipped=True)
                    continue
                self._owners.append(index)
                yield self._reading.job(corpus, item, out)
            for path in corpus.files.paths:
                self._bytes.finish(Path(str(path).partition("!")[0]))


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """Values that JSON can write."""
    return {name: getattr(value, "name", value) for name, value in values.items()}


def summaries(corpus: CleanedCorpus) -> Iterator[dict[str, Any]]:
    """What was said of each block."""
    for path in corpus.blocks:
        with Saved(path) as saved:
            yield saved.summary
