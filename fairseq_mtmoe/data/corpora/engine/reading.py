"""The first stage: raw files are read and cleaned by the workers, in parts (`jobs.py`)."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fairseq_mtmoe.data.corpora.blocks import BLOCK, CorpusFiles
from fairseq_mtmoe.data.corpora.cleaning import RULES, asked
from fairseq_mtmoe.data.corpora.engine.bad_lines import check_result, join_lists, joined_results
from fairseq_mtmoe.data.corpora.engine.jobs import (
    PART_BYTES,
    How,
    PartJob,
    clean_part,
    cut,
    list_of,
)
from fairseq_mtmoe.data.corpora.engine.progress import Shown, Step
from fairseq_mtmoe.data.corpora.engine.store import Saved, Stage, WorkFolder, is_saved
from fairseq_mtmoe.data.corpora.engine.unpacked import Unpacked
from fairseq_mtmoe.data.corpora.engine.workers import Workers
from fairseq_mtmoe.data.corpora.readers import OnBadLine
from fairseq_mtmoe.data.corpora.readers.errors import said_of_unequal
from fairseq_mtmoe.data.corpora.recipes import Filters, Role
from fairseq_mtmoe.errors import UserError

Ended = Callable[[str], None]
"""Told the language pair of each corpus that is clean."""


@dataclass(frozen=True)
class RawCorpus:
    """A corpus of the recipe, found on disk."""

    files: CorpusFiles
    pair: str  # that it is a part of, in plain codes
    role: Role
    digests: tuple[str, ...]  # of its files
    paths: tuple[str, ...] = ()  # of these below RAW, as the recipe has them

    @property
    def names(self) -> tuple[str, ...]:
        """Of its files, in reports."""
        return self.paths or tuple(path.name for path in self.files.paths)

    def path_of(self, name: str) -> Path:
        """The path of the file that reports call so."""
        return dict(zip(self.names, self.files.paths, strict=True)).get(name, Path(name))

    @property
    def is_turned(self) -> bool:
        """Whether its files have the pair's target as their source."""
        return self.pair != f"{self.files.source_lang}-{self.files.target_lang}"


@dataclass(frozen=True)
class CleanedCorpus:
    """A corpus whose blocks are clean and written down."""

    raw: RawCorpus
    stage: Stage
    result: dict[str, Any] = field(repr=False)  # "sizes" of its blocks, "read", "dropped", "bad", "bad_samples"

    @property
    def blocks(self) -> list[Path]:
        """The files of its blocks, in order."""
        return [self.stage.block(number) for number in range(len(self.sizes))]

    @property
    def sizes(self) -> list[int]:
        """How many pairs are left of each block."""
        return list(self.result["sizes"])

    @property
    def bad_samples(self) -> list[list[Any]]:
        """Some of its bad lines: file, line, reason and excerpt of each."""
        return [[self.raw.names[place], *sample] for place, *sample in self.result["bad_samples"]]

    @property
    def bad_lines(self) -> Path:
        """The file that lists its bad lines."""
        return list_of(self.stage, None)


class Reading:
    """Reads and cleans corpora, each for itself.

    Args:
        work: where to.
        filters: of training pairs; None takes text as it is (`cleaning.unfiltered`).
        identification: the hash of their model for language identification, where there is one.
        on_bad_line: see `readers.read`.
    """

    def __init__(
        self, work: WorkFolder, filters: Filters | None, identification: Sequence[str], on_bad_line: OnBadLine
    ) -> None:
        self._work = work
        self._filters = filters
        self._identification = list(identification)
        self._on_bad_line = on_bad_line

    def clean(
        self,
        corpora: Sequence[RawCorpus],
        workers: Workers,
        shown: Shown,
        label: str,
        held_out: Mapping[str, int] | None = None,
    ) -> list[CleanedCorpus]:
        """The corpora, cleaned; those that an earlier run has cleaned are not read.

        Args:
            held_out: how many pairs are to be drawn of the training corpora of a language pair.

        Raises:
            UserError: something cannot be read, and is to end the run, or too little is left of all training corpora of
                a language pair: that ends the run as soon as it is known.
        """
        stages = [(corpus, self._stage(corpus)) for corpus in corpora]

        def check(pair: str) -> None:
            if self._filters is not None:  # text that is taken as it is has no rules to speak of
                _check_left(pair, stages, (held_out or {}).get(pair, 0))

        self._check_bad(stages)  # an earlier run may have been told to leave more out
        for pair in dict.fromkeys(corpus.pair for corpus in corpora):
            check(pair)
        left = [(corpus, stage) for corpus, stage in stages if stage.result() is None]
        if left:
            self._clean(left, workers, shown, label, check)
            self._check_bad(left)  # also of parts that an earlier run had done
            for pair in dict.fromkeys(corpus.pair for corpus, _ in left):  # also where another corpus is the same
                check(pair)
        cleaned = [CleanedCorpus(corpus, stage, stage.result() or {}) for corpus, stage in stages]
        for one in cleaned:
            for sentence in said_of_unequal(one.bad_samples):
                shown.note(sentence)
        return cleaned

    def _check_bad(self, stages: Sequence[tuple[RawCorpus, Stage]]) -> None:
        for corpus, stage in stages:
            if (result := stage.result()) is not None:
                check_result(result, corpus.files, self._on_bad_line)

    def _clean(
        self, left: Sequence[tuple[RawCorpus, Stage]], workers: Workers, shown: Shown, label: str, ended: Ended
    ) -> None:
        """Those that are left. Corpora of the same content, if there are any, have one stage, and are read once."""
        once = list({stage.key: (corpus, stage) for corpus, stage in left}.values())
        contents = [dict(zip(corpus.files.paths, corpus.digests, strict=True)) for corpus, _ in once]
        unpacked = Unpacked(self._work, contents)
        unpacked.make(workers, shown)
        with shown.step(label) as step:
            _Pass(self, once, unpacked, step, ended).run(workers)

    def _stage(self, corpus: RawCorpus) -> Stage:
        files, is_training = corpus.files, corpus.role is Role.train
        filters = None if self._filters is None else asked(self._filters)
        return self._work.stage(
            "clean",
            content=corpus.digests,
            block=[BLOCK, PART_BYTES],
            format=[files.format, dict(files.fields)],
            languages=[files.source_lang, files.target_lang],
            turned=corpus.is_turned,
            training=is_training,
            unicode=unicodedata.unidata_version,
            **({"filters": filters, "identification": self._identification} if is_training else {}),
        )

    def how(self, corpus: RawCorpus) -> How:
        """What is done to its pairs."""
        source, target = corpus.pair.split("-")
        return How(self._filters, source, target, corpus.role, corpus.is_turned, BLOCK, self._on_bad_line)


def _check_left(pair: str, corpora: Sequence[tuple[RawCorpus, Stage]], held_out: int) -> None:
    """See that something is left of a pair's training corpora, once all of these are clean, and enough to draw from."""
    of_pair = [one for one in corpora if one[0].pair == pair and one[0].role is Role.train]
    results = [stage.result() for _, stage in of_pair]
    found = [result for result in results if result is not None]
    if not results or len(found) < len(results):
        return
    kept = sum(sum(result["sizes"]) for result in found)
    if kept:
        check_enough(pair, held_out, kept)
        return
    rules: Counter[str] = sum((Counter(result["dropped"]) for result in found), Counter())
    lost = [f"{count:,} by {rule}" for rule, count in rules.most_common()]
    if bad := sum(sum(result["bad"].values()) for result in found):
        lost.append(f"{bad:,} that could not be read")
    names = ", ".join(corpus.files.name for corpus, _ in of_pair)
    raise UserError(
        f"`{pair}` must have a pair to train on, but cleaning leaves none of {names}"
        f" ({', '.join(lost) or 'which are empty'}); see whether their files are in the languages and columns that the"
        " recipe says, loosen its `filters`, or take these corpora out."
    )


def check_enough(pair: str, held_out: int, pairs: int) -> None:
    """See that a language pair has as many pairs to train on as are to be drawn of it, and those.

    Raises:
        UserError: it has fewer.
    """
    if pairs < 2 * held_out:
        raise UserError(
            f"`held_out` must leave {pair} at least as many training pairs as it takes, but takes {held_out} of"
            f" {pairs}; ask for fewer (with `--recipe folder` by `--held-out`), or give the recipe corpora for its"
            " validation and test."
        )


class _Pass:
    """One pass over corpora, all at once, so that neither many small ones nor a large one keeps workers waiting."""

    def __init__(
        self,
        reading: Reading,
        corpora: Sequence[tuple[RawCorpus, Stage]],
        unpacked: Unpacked,
        step: Step,
        ended: Ended,
    ) -> None:
        self._reading = reading
        self._corpora = corpora
        self._unpacked = unpacked
        self._step = step
        self._ended = ended

    def run(self, workers: Workers) -> None:
        by_corpus = self._jobs(workers)
        jobs = [job for of_corpus in by_corpus for job in of_corpus]
        sizes = {(job.corpus, job.number): job.size for job in jobs}
        whole, so_far = sum(sizes.values()), 0
        waiting = Counter(job.corpus for job in jobs)
        left = []
        for job in jobs:
            if job.number is None or not is_saved(job.out):
                left.append(job)
                continue
            so_far += sizes[job.corpus, job.number]
            self._step.advance(_summary(job.out)["read"], so_far / whole if whole else None, skipped=True)
            waiting[job.corpus] -= 1
        for number, of_corpus in enumerate(by_corpus):
            if not waiting[number]:
                self._finish(number, len(of_corpus), None)
        left.sort(key=lambda job: (job.number is not None, -sizes[job.corpus, job.number] * (job.number is None)))
        for done in workers.map_blocks(clean_part, left):
            so_far += sizes[done.corpus, done.number]
            self._step.advance(done.pairs, so_far / whole if whole else None)
            waiting[done.corpus] -= 1
            if not waiting[done.corpus]:
                self._finish(done.corpus, len(by_corpus[done.corpus]) if done.bad is None else done.blocks, done.bad)

    def _jobs(self, workers: Workers) -> list[list[PartJob]]:
        """The parts of each corpus."""
        files = [replace(one.files, unpacked=self._unpacked.contents(one.files.paths)) for one, _ in self._corpora]
        jobs: list[list[PartJob]] = [[] for _ in files]
        cuts = [(number, of_corpus, BLOCK) for number, of_corpus in enumerate(files)]
        for number, parts in workers.map_blocks(cut, cuts):
            corpus, stage = self._corpora[number]
            how = self._reading.how(corpus)
            jobs[number] = [PartJob(number, part, how, stage, block) for block, part in enumerate(parts)]
            if not parts:
                jobs[number] = [PartJob(number, files[number], how, stage, None)]
        return jobs

    def _finish(self, number: int, blocks: int, bad: dict[str, Any] | None) -> None:
        """All blocks of a corpus are there.

        Args:
            bad: what is known of its bad lines; None where its blocks say so.
        """
        corpus, stage = self._corpora[number]
        found = [_summary(stage.block(block)) for block in range(blocks)]
        lists = [list_of(stage, block) for block in range(blocks)]
        if bad is None:
            bad = joined_results([one["bad"] for one in found])
            join_lists(lists, list_of(stage, None))
        stage.finish({**_sums(found), **bad})
        for path in lists:
            path.unlink(missing_ok=True)
        self._unpacked.release(corpus.files.paths)
        self._ended(corpus.pair)


def _sums(found: Sequence[dict[str, Any]]) -> dict[str, object]:
    """How many pairs were read and are left of blocks, and what the rules left out, by the blocks' summaries."""
    dropped = {rule: sum(one["counts"].get(rule, 0) for one in found) for rule in RULES}
    return {
        "sizes": [one["kept"] for one in found],
        "read": sum(one["read"] for one in found),
        "dropped": {rule: count for rule, count in dropped.items() if count},
    }


def summaries(corpus: CleanedCorpus) -> Iterator[dict[str, Any]]:
    """What was said of each block."""
    yield from map(_summary, corpus.blocks)


def _summary(block: Path) -> dict[str, Any]:
    with Saved(block) as saved:
        return saved.summary
