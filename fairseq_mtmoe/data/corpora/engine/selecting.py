"""The second stage: of the clean pairs of a language pair, those that stay. Duplicates go, across its corpora."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairseq_mtmoe.data.corpora.cleaning import SAMPLES, Sample, first_occurrences, sample
from fairseq_mtmoe.data.corpora.engine.progress import Shown
from fairseq_mtmoe.data.corpora.engine.reading import CleanedCorpus
from fairseq_mtmoe.data.corpora.engine.store import Saved, Stage, WorkFolder, save
from fairseq_mtmoe.data.corpora.engine.workers import Workers
from fairseq_mtmoe.data.corpora.recipes import Action, Filters

MEMORY = 256 << 20
"""Bytes for keys that are compared at a time."""


@dataclass(frozen=True)
class Selection:
    """Which pairs of a corpus stay: a mask for each block, one behind the other in a file."""

    corpus: CleanedCorpus
    file: Path

    def summary(self) -> dict[str, Any]:
        """`kept`, and what was `dropped` by which rule, with `samples`."""
        with Saved(self.file) as saved:
            return saved.summary

    def blocks(self) -> Iterator[tuple[Path, NDArray[np.bool_]]]:
        """The corpus' blocks with their masks."""
        with Saved(self.file) as saved:
            mask, starts = saved["mask"], saved["starts"]
        for number, path in enumerate(self.corpus.blocks):
            yield path, mask[starts[number] : starts[number + 1]]


@dataclass(frozen=True)
class _PairJob:
    corpora: tuple[CleanedCorpus, ...]
    filters: Filters
    stage: Stage


def find_duplicates(
    work: WorkFolder,
    corpora: Mapping[str, Sequence[CleanedCorpus]],
    filters: Filters,
    workers: Workers,
    shown: Shown,
) -> dict[str, list[Selection]]:
    """By language pair what stays of its training corpora: of several equal pairs the first."""
    jobs = {pair: _pair_job(work, tuple(of_pair), filters) for pair, of_pair in corpora.items()}
    left = [job for job in jobs.values() if job.stage.result() is None]
    if left:
        with shown.step("Comparing pairs") as step:
            for pairs in workers.map_blocks(_compare, left):
                step.advance(pairs)
    return {pair: _selections(job.corpora, job.stage) for pair, job in jobs.items()}


def _selections(corpora: Sequence[CleanedCorpus], stage: Stage) -> list[Selection]:
    return [Selection(corpus, stage.block(number)) for number, corpus in enumerate(corpora)]


def _pair_job(work: WorkFolder, corpora: tuple[CleanedCorpus, ...], filters: Filters) -> _PairJob:
    keys = [corpus.stage.key for corpus in corpora]
    actions = [filters.duplicates.name, filters.near_duplicates.name]
    return _PairJob(corpora, filters, work.stage("distinct", corpora=keys, filters=actions))


def _compare(job: _PairJob) -> int:
    """Write the masks of a language pair's corpora; how many pairs they have."""
    partitions = job.stage.folder / "keys"
    shutil.rmtree(partitions, ignore_errors=True)  # a killed run's
    blocks = [path for corpus in job.corpora for path in corpus.blocks]
    sizes = [_size(path) for path in blocks]
    stays = [np.ones(size, np.bool_) for size in sizes]
    exact = _firsts(blocks, "exact", partitions) if job.filters.duplicates is Action.drop else stays
    near = _firsts(blocks, "near", partitions) if job.filters.near_duplicates is Action.drop else stays
    shutil.rmtree(partitions, ignore_errors=True)
    first = 0
    for number, corpus in enumerate(job.corpora):
        last = first + len(corpus.blocks)
        rules = {
            "duplicate": [~mask for mask in exact[first:last]],
            "near_duplicate": [a & ~b for a, b in zip(exact[first:last], near[first:last], strict=True)],
        }
        gone = [np.zeros(size, np.bool_) for size in sizes[first:last]]
        save_masks(job.stage.block(number), corpus.blocks, rules, {"dropped": {}, "samples": {}}, gone)
        first = last
    job.stage.finish({"pairs": sum(sizes)})
    return sum(sizes)


def _size(path: Path) -> int:
    with Saved(path) as saved:
        return int(saved.summary["kept"])


def _firsts(blocks: Sequence[Path], kind: str, folder: Path) -> list[NDArray[np.bool_]]:
    """A mask per block, True where a key occurs for the first time in all of them."""
    (folder / kind).mkdir(parents=True)
    files = []
    for number, path in enumerate(blocks):
        files.append(folder / kind / f"{number:06d}.npy")
        with Saved(path) as saved:
            np.save(files[-1], saved[kind])
    return list(first_occurrences(files, folder / f"{kind}-parts", MEMORY))


def save_masks(
    out: Path,
    blocks: Sequence[Path],
    dropped: Mapping[str, Sequence[NDArray[np.bool_]]],
    before: Mapping[str, Any],
    gone: Sequence[NDArray[np.bool_]],
) -> None:
    """Write what stays of a corpus: all but what is gone already, and what further rules drop.

    Args:
        dropped: a mask for each block, by rule.
        before: what is to be said of the rules before.
        gone: a mask for each block.
    """
    masks = [~np.logical_or.reduce(parts) for parts in zip(gone, *dropped.values(), strict=True)]
    summary = {
        "kept": int(sum(mask.sum() for mask in masks)),
        "dropped": before["dropped"]
        | {rule: int(sum(part.sum() for part in parts)) for rule, parts in dropped.items()},
        "samples": before["samples"] | {rule: _samples(blocks, parts) for rule, parts in dropped.items()},
    }
    starts = np.cumsum([0, *map(len, masks)])
    save(out, summary, mask=np.concatenate([np.zeros(0, np.bool_), *masks]), starts=starts)


def _samples(blocks: Sequence[Path], dropped: Sequence[NDArray[np.bool_]]) -> list[Sample]:
    """The first pairs that are dropped, with their line."""
    found: list[Sample] = []
    for path, mask in zip(blocks, dropped, strict=True):
        rows = np.flatnonzero(mask)[: SAMPLES - len(found)]
        if len(rows):
            with Saved(path) as saved:
                source, target, lines = saved.lines("source"), saved.lines("target"), saved["lines"]
            found += [sample(int(lines[row]), source[row], target[row]) for row in rows.tolist()]
        if len(found) == SAMPLES:
            break
    return found
