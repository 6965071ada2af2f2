"""What is held out of training text: every sentence that is evaluated on, and what is drawn for that where a language
pair has no corpus for validation or test. All of it goes by the keys of clean sentences, without their text."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fairseq_mtmoe.data.corpora.cleaning import are_among, sentence_keys
from fairseq_mtmoe.data.corpora.cleaning.keys import Keys, mixed
from fairseq_mtmoe.data.corpora.engine.progress import Shown
from fairseq_mtmoe.data.corpora.engine.reading import check_enough
from fairseq_mtmoe.data.corpora.engine.selecting import Selection
from fairseq_mtmoe.data.corpora.engine.store import Saved, Stage, WorkFolder, is_saved, load_keys, packed, save
from fairseq_mtmoe.data.corpora.engine.workers import Workers

SIDES = ("source", "target")
DRAWN = "drawn"
"""What a pair counts for that a draw took for validation or test of its own language pair: that is no loss."""


@dataclass(frozen=True)
class _DrawJob:
    pair: str
    selections: tuple[Selection, ...]
    sizes: Mapping[str, int]  # pairs to draw, by split
    seed: int
    stage: Stage


def draw_held_out(
    work: WorkFolder,
    selections: Mapping[str, Sequence[Selection]],
    sizes: Mapping[str, Mapping[str, int]],
    seed: int,
    workers: Workers,
    shown: Shown,
) -> dict[str, dict[str, Path]]:
    """Draw validation and test pairs from the training text of language pairs.

    Those come first whose source sentences have the smallest hashes: the draw depends on the seed and the sentences
    alone, and language pairs that share sources hold out much the same ones.

    Args:
        selections: of the training text of each language pair.
        sizes: how many to draw, by language pair and split.

    Returns:
        by language pair and split, a file of `source` and `target`.

    Raises:
        UserError: a language pair has too few.
    """
    jobs = []
    for pair, wanted in sizes.items():
        made_from = [selection.key for selection in selections[pair]]
        stage = work.stage("drawn", text=made_from, sizes=dict(wanted), seed=seed)
        jobs.append(_DrawJob(pair, tuple(selections[pair]), wanted, seed, stage))
    left = [job for job in jobs if job.stage.result() is None]
    if left:
        with shown.step("Drawing held-out pairs") as step:
            for pairs in workers.map_blocks(_draw, left):
                step.advance(pairs)
    return {job.pair: {split: job.stage.block(number) for number, split in enumerate(job.sizes)} for job in jobs}


def _draw(job: _DrawJob) -> int:
    """Write the pairs that a language pair holds out; how many it has."""
    needed = sum(job.sizes.values())
    draws = np.zeros(0, np.uint64)
    places = np.zeros((0, 3), np.int64)  # corpus, block, row
    total = 0
    for corpus, selection in enumerate(job.selections):
        for block, (path, mask) in enumerate(selection.blocks()):
            rows = np.flatnonzero(mask)
            total += len(rows)
            with Saved(path) as saved:
                keys = saved["source_keys"][rows]
            new = mixed(np.full_like(keys, job.seed), keys)
            found = np.stack([np.full_like(rows, corpus), np.full_like(rows, block), rows], axis=1)
            draws, first = np.unique(np.concatenate([draws, new]), return_index=True)  # of equal sources the first
            places = np.concatenate([places, found])[first[:needed]]
            draws = draws[:needed]
    check_enough(job.pair, needed, total if len(draws) == needed else len(draws))
    text, start = _text_of(job, places), 0
    for number, size in enumerate(job.sizes.values()):
        _write([text[place] for place in map(tuple, places[start : start + size].tolist())], job.stage.block(number))
        start += size
    job.stage.finish({"pairs": total})
    return total


def _text_of(job: _DrawJob, places: NDArray[np.int64]) -> dict[tuple[int, ...], tuple[str, str]]:
    """The pairs at these places."""
    text: dict[tuple[int, ...], tuple[str, str]] = {}
    for corpus, block in sorted({(int(corpus), int(block)) for corpus, block, _ in places}):
        rows = places[(places[:, 0] == corpus) & (places[:, 1] == block), 2]
        with Saved(job.selections[corpus].corpus.stage.block(block)) as saved:
            pairs = zip(saved.some_lines("source", rows), saved.some_lines("target", rows), strict=True)
        text |= {(corpus, block, row): pair for row, pair in zip(rows.tolist(), pairs, strict=True)}
    return text


def _write(pairs: Sequence[tuple[str, str]], out: Path) -> None:
    sides = [[pair[side] for pair in pairs] for side in (0, 1)]
    keys = {f"{name}_keys": sentence_keys(lines) for name, lines in zip(SIDES, sides, strict=True)}
    text = packed(SIDES[0], sides[0]) | packed(SIDES[1], sides[1])
    save(out, {"kept": len(pairs), "references": 0}, **text, **keys)


@dataclass(frozen=True)
class _FilterJob:
    selection: Selection
    keys: Path
    drawn: Keys  # of both sides together, sorted
    out: Path


def remove_held_out(
    work: WorkFolder,
    selections: Mapping[str, Sequence[Selection]],
    evaluated: Iterable[Path],
    workers: Workers,
    shown: Shown,
    drawn: Mapping[str, Iterable[Path]] | None = None,
) -> dict[str, list[Selection]]:
    """What stays of all language pairs' training text without the sentences that are evaluated on, on whichever side.

    Args:
        evaluated: files of validation and test text, of all language pairs.
        drawn: those of them that were drawn, by the language pair that they were drawn from.
    """
    pairs_drawn = {pair: _pair_keys(files) for pair, files in (drawn or {}).items()}
    keys = np.unique(np.concatenate([np.zeros(0, np.uint64), *_keys_in(evaluated)]))
    held_out = work.stage("held-out", keys=hashlib.sha256(keys.tobytes()).hexdigest())
    if not is_saved(held_out.block(0)):
        save(held_out.block(0), {}, keys=keys)
    places = {}
    for pair, of_pair in selections.items():
        own = {"drawn": hashlib.sha256(pairs_drawn[pair].tobytes()).hexdigest()} if pair in pairs_drawn else {}
        for number, selection in enumerate(of_pair):
            stage = work.stage("trained", pairs=selection.key, held_out=held_out.key, **own)
            places[pair, number] = stage.block(0)
    none = np.zeros(0, np.uint64)
    jobs = [
        _FilterJob(selections[pair][number], held_out.block(0), pairs_drawn.get(pair, none), out)
        for (pair, number), out in places.items()
        if not is_saved(out)
    ]
    jobs.sort(key=lambda job: -sum(job.selection.corpus.sizes))  # the longest first
    if jobs:
        with shown.step("Removing held-out pairs") as step:
            for pairs in workers.map_blocks(_filter, jobs):
                step.advance(pairs)
    return {
        pair: [Selection(one.corpus, places[pair, number], one) for number, one in enumerate(of_pair)]
        for pair, of_pair in selections.items()
    }


def _keys_in(files: Iterable[Path]) -> Iterator[NDArray[np.uint64]]:
    """The keys of all sentences of these files, further references among them."""
    for path in files:
        with Saved(path) as saved:
            yield from (saved[f"{side}_keys"] for side in SIDES)
            for number in range(saved.summary["references"]):
                yield sentence_keys(saved.lines(f"reference{number}"))


def _pair_keys(files: Iterable[Path]) -> Keys:
    """A key for each pair of these files, sorted."""
    found = [np.zeros(0, np.uint64)]
    for path in files:
        with Saved(path) as saved:
            found.append(mixed(*(saved[f"{side}_keys"] for side in SIDES)))
    return np.unique(np.concatenate(found))


def _filter(job: _FilterJob) -> int:
    """Write which pairs of a corpus stay, without those of which a sentence is held out; how many it has."""
    keys = load_keys(job.keys)
    drawn, held_out = [], []
    for path, mask in job.selection.blocks():
        with Saved(path) as saved:
            source, target = (saved[f"{side}_keys"] for side in SIDES)
        drawn.append(mask & are_among(mixed(source, target), job.drawn))
        held_out.append(mask & ~drawn[-1] & (are_among(source, keys) | are_among(target, keys)))
    job.selection.write_rest({DRAWN: drawn, "held_out": held_out}, job.out)
    return sum(map(len, held_out))
