"""The first stage: unpack raw files once, then read and clean them in parts by the workers (`jobs.py`)."""

from __future__ import annotations

import shutil
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from fairseq_mtmoe.data.corpora.blocks import BLOCK, BadLine, Content, OnBadLine, check, said_of_unequal
from fairseq_mtmoe.data.corpora.cleaning import keys
from fairseq_mtmoe.data.corpora.cleaning.cleaner import RULES, asked
from fairseq_mtmoe.data.corpora.engine.jobs import PART_BYTES, PartJob, RawCorpus, clean_part, cut, joined_results
from fairseq_mtmoe.data.corpora.engine.store import Stage, is_saved, summary_of
from fairseq_mtmoe.data.corpora.engine.workers import Step, Tools
from fairseq_mtmoe.data.corpora.readers.unpacking import is_packed, split_member, unpack
from fairseq_mtmoe.data.corpora.recipes.schema import Filters, Role
from fairseq_mtmoe.errors import UserError


@dataclass(frozen=True)
class CleanedCorpus:
    """A corpus whose cleaned blocks are on disk."""

    raw: RawCorpus
    stage: Stage
    result: dict[str, Any] = field(repr=False)  # "sizes" of its blocks, "read", "dropped", "bad", "bad_samples"

    @property
    def blocks(self) -> list[Path]:
        """Return the blocks' files."""
        return [self.stage.block(number) for number in range(len(self.sizes))]

    @property
    def sizes(self) -> list[int]:
        """Return the blocks' numbers of pairs."""
        return list(self.result["sizes"])

    @property
    def bad_samples(self) -> list[list[Any]]:
        """Return samples of its bad lines: file, line, reason and excerpt of each."""
        return [[self.raw.names[index], *sample] for index, *sample in self.result["bad_samples"]]


@dataclass(frozen=True)
class Rules:
    """Settings for reading and cleaning corpora."""

    filters: Filters  # for training pairs
    identification: Sequence[str] = ()  # hash of the model for language identification, if any
    on_bad_line: OnBadLine = "stop"  # see `readers.read`
    held_out: Mapping[str, int] = field(default_factory=dict)  # pairs to draw from the training text of a language pair


Stages = Sequence[tuple[RawCorpus, Stage]]


def clean(tools: Tools, corpora: Sequence[RawCorpus], rules: Rules, label: str) -> list[CleanedCorpus]:
    """Clean the corpora, unless an earlier run has done so (UserError: too little is left)."""
    stages = [(corpus, _stage(tools, corpus, rules)) for corpus in corpora]
    _check(stages, rules)  # an earlier run may have been told to leave more out
    left = [(corpus, stage) for corpus, stage in stages if stage.result() is None]
    if left:
        once = list({stage.key: (corpus, stage) for corpus, stage in left}.values())  # the same content is read once
        unpacked = _Unpacked(tools, [corpus for corpus, _ in once])
        with tools.shown.step(label) as step:
            _Pass(tools, rules, once, stages, unpacked, step).run()
        _check(stages, rules)  # also of parts that an earlier run had done
    cleaned = [CleanedCorpus(corpus, stage, stage.result() or {}) for corpus, stage in stages]
    for one in cleaned:
        for sentence in said_of_unequal(one.bad_samples):
            tools.shown.note(sentence)
    return cleaned


def _stage(tools: Tools, corpus: RawCorpus, rules: Rules) -> Stage:
    files, is_training = corpus.files, corpus.role is Role.train
    filters = asked(rules.filters)
    return tools.work.stage(
        "clean",
        content=corpus.digests,
        block=[BLOCK, PART_BYTES],
        format=[files.format, dict(files.fields)],
        languages=[files.source_lang, files.target_lang],
        turned=corpus.is_turned,
        training=is_training,
        unicode=unicodedata.unidata_version,
        keys=keys.VERSION,
        **({"filters": filters, "identification": list(rules.identification)} if is_training else {}),
    )


def _check(stages: Stages, rules: Rules) -> None:
    """Check that no bad line ends the run and that enough is left of each pair (UserError)."""
    for corpus, stage in stages:
        for index, line, reason, excerpt in (stage.result() or {}).get("bad_samples", ()):
            bad = BadLine(str(corpus.files.paths[index]), line, reason, excerpt)
            check(bad, rules.on_bad_line, corpus.files)
    for pair in dict.fromkeys(corpus.pair for corpus, _ in stages):
        _check_left(pair, stages, rules)


def _check_left(pair: str, stages: Stages, rules: Rules) -> None:
    """Check that enough is left of a pair once all its training corpora are clean (UserError: too little)."""
    of_pair = [one for one in stages if one[0].pair == pair and one[0].role is Role.train]
    results = [stage.result() for _, stage in of_pair]
    found = [result for result in results if result is not None]
    if not results or len(found) < len(results):
        return
    if kept := sum(sum(result["sizes"]) for result in found):
        check_enough(pair, rules.held_out.get(pair, 0), kept)
        return
    dropped: Counter[str] = sum((Counter(result["dropped"]) for result in found), Counter())
    lost = [f"{count:,} by {rule}" for rule, count in dropped.most_common()]
    if bad := sum(sum(result["bad"].values()) for result in found):
        lost.append(f"{bad:,} unreadable")
    names = ", ".join(corpus.files.name for corpus, _ in of_pair)
    raise UserError(
        f"`{pair}` must have training pairs, but cleaning leaves none in {names}"
        f" ({', '.join(lost) or 'which are empty'}); check that their files have the languages and columns of the"
        " recipe, loosen its `filters`, or remove these corpora."
    )


def check_enough(pair: str, held_out: int, pairs: int) -> None:
    """Check that a pair keeps at least as many training pairs as are held out (UserError: it does not)."""
    if pairs < 2 * held_out:
        raise UserError(
            f"`held_out` must leave {pair} at least as many training pairs as it takes, but takes {held_out} of"
            f" {pairs}; lower it (with `--recipe folder`: `--held-out`), or add corpora for validation and test to the"
            " recipe."
        )


@dataclass
class _Pass:
    """One pass over all corpora at once, so that neither many small ones nor a large one leave workers idle."""

    tools: Tools
    rules: Rules
    corpora: Stages
    stages: Stages  # of all corpora, finished ones included
    unpacked: _Unpacked
    step: Step

    def run(self) -> None:
        by_corpus = self._jobs()
        jobs = [job for of_corpus in by_corpus for job in of_corpus]
        sizes = {(job.corpus, job.number): job.size for job in jobs}
        waiting, left = Counter(job.corpus for job in jobs), []
        whole, so_far = max(1, sum(sizes.values())), 0

        def advance(corpus: int, number: int | None, pairs: int, skipped: bool = False) -> None:
            nonlocal so_far
            so_far += sizes[corpus, number]
            self.step.advance(pairs, so_far / whole, skipped)
            waiting[corpus] -= 1

        for job in jobs:
            if job.number is None or not is_saved(job.stage.block(job.number)):
                left.append(job)
            else:
                advance(job.corpus, job.number, summary_of(job.stage.block(job.number))["read"], skipped=True)
        for number, of_corpus in enumerate(by_corpus):
            if not waiting[number]:
                self._finish(number, len(of_corpus), None)
        left.sort(key=lambda job: (job.number is not None, -job.size if job.number is None else 0))
        for done in self.tools.workers.map_blocks(partial(clean_part, job) for job in left):
            advance(done.corpus, done.number, done.pairs)
            if not waiting[done.corpus]:
                self._finish(done.corpus, len(by_corpus[done.corpus]) if done.bad is None else done.blocks, done.bad)

    def _jobs(self) -> list[list[PartJob]]:
        files = [
            replace(one.files, unpacked=tuple(map(self.unpacked.content, one.files.paths))) for one, _ in self.corpora
        ]
        jobs: list[list[PartJob]] = [[] for _ in files]
        cuts = (partial(cut, number, of_corpus, BLOCK) for number, of_corpus in enumerate(files))
        for number, parts in self.tools.workers.map_blocks(cuts):
            raw, stage = self.corpora[number]
            how = (self.rules.filters, self.rules.on_bad_line, BLOCK, stage)
            for block, part in enumerate(parts or [files[number]]):
                jobs[number].append(PartJob(number, replace(raw, files=part), *how, block if parts else None))
        return jobs

    def _finish(self, number: int, blocks: int, bad: dict[str, Any] | None) -> None:
        """Record that a corpus is complete; `bad` has its bad lines if its blocks do not."""
        corpus, stage = self.corpora[number]
        found = [summary_of(stage.block(block)) for block in range(blocks)]
        dropped = {rule: sum(one["counts"].get(rule, 0) for one in found) for rule in RULES}
        result = {
            "sizes": [one["kept"] for one in found],
            "read": sum(one["read"] for one in found),
            "dropped": {rule: count for rule, count in dropped.items() if count},
            **(joined_results([one["bad"] for one in found]) if bad is None else bad),
        }
        stage.finish(result)
        self.unpacked.release(corpus.files.paths)
        _check_left(corpus.pair, self.stages, self.rules)


class _Unpacked:
    """Unpacked files of some corpora; files that an earlier run unpacked are kept."""

    def __init__(self, tools: Tools, corpora: Sequence[RawCorpus]) -> None:
        files = [dict(zip(corpus.files.paths, corpus.digests, strict=True)) for corpus in corpora]
        contents = {path: content for of_corpus in files for path, content in of_corpus.items()}
        self._stages: dict[Path, Stage] = {
            path: tools.work.stage("unpacked", content=content) for path, content in contents.items() if is_packed(path)
        }
        # files of the same content have one folder, which stays until none of them is needed
        self._uses = Counter(self._stages[path] for of_corpus in files for path in of_corpus if path in self._stages)
        by_file: dict[Path, dict[Path, Stage]] = {}
        for stage, path in {stage: path for path, stage in self._stages.items()}.items():
            if stage.result() is None:
                by_file.setdefault(split_member(path)[0], {})[path] = stage
        sizes = {file: file.stat().st_size / 1e6 for file in by_file}
        jobs = [partial(_unpack, by_file[file], sizes[file]) for file in sorted(by_file, key=lambda file: -sizes[file])]
        tools.do("Unpacking", jobs, sum(map(round, sizes.values())), "MB")

    def content(self, path: Path) -> Content:
        """Return a file to read, unpacked if it was packed."""
        if path not in self._stages:
            return Content(path)
        return Content(self._stages[path].folder / "text", **(self._stages[path].result() or {}))

    def release(self, paths: Sequence[Path]) -> None:
        """Release a corpus' files."""
        for stage in (self._stages[path] for path in paths if path in self._stages):
            self._uses[stage] -= 1
            if not self._uses[stage]:
                shutil.rmtree(stage.folder, ignore_errors=True)


def _unpack(stages: Mapping[Path, Stage], megabytes: float) -> int:
    found = unpack({path: stage.folder / "text" for path, stage in stages.items()})
    for path, stage in stages.items():
        stage.finish({"reason": found[path].reason, "message": found[path].message})
    return round(megabytes)
