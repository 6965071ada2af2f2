"""What is held out of training text for validation and test, where a language pair has no corpus for that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fairseq_mtmoe.data.corpora.cleaning import are_among, sentence_keys
from fairseq_mtmoe.data.corpora.cleaning.keys import mixed
from fairseq_mtmoe.data.corpora.engine.progress import Shown
from fairseq_mtmoe.data.corpora.engine.selecting import Selection, save_masks
from fairseq_mtmoe.data.corpora.engine.store import Saved, Stage, WorkFolder, is_saved, key_of, load_keys, packed, save
from fairseq_mtmoe.data.corpora.engine.workers import Workers
from fairseq_mtmoe.errors import UserError


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
        made_from = [selection.file.parent.name for selection in selections[pair]]
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
                source = saved.lines("source")
            keys = sentence_keys([source[row] for row in rows.tolist()])
            new = mixed(np.full_like(keys, job.seed), keys)
            found = np.stack([np.full_like(rows, corpus), np.full_like(rows, block), rows], axis=1)
            draws, first = np.unique(np.concatenate([draws, new]), return_index=True)  # of equal sources the first
            places = np.concatenate([places, found])[first[:needed]]
            draws = draws[:needed]
    if len(draws) < needed or total < 2 * needed:
        raise UserError(
            f"`held_out` must leave {job.pair} at least as many training pairs as it takes, but takes {needed} of"
            f" {total}; ask for fewer, or give the recipe corpora for its validation and test."
        )
    start = 0
    for number, size in enumerate(job.sizes.values()):
        _write(job, places[start : start + size], job.stage.block(number))
        start += size
    job.stage.finish({"pairs": total})
    return total


def _write(job: _DrawJob, places: NDArray[np.int64], out: Path) -> None:
    text: dict[tuple[int, int, int], tuple[str, str]] = {}
    for corpus, block in sorted({(int(corpus), int(block)) for corpus, block, _ in places}):
        with Saved(job.selections[corpus].corpus.stage.block(block)) as saved:
            source, target = saved.lines("source"), saved.lines("target")
        for row in places[(places[:, 0] == corpus) & (places[:, 1] == block), 2].tolist():
            text[corpus, block, row] = (source[row], target[row])
    pairs = [text[corpus, block, row] for corpus, block, row in places.tolist()]
    sides = [[pair[side] for pair in pairs] for side in (0, 1)]
    save(out, {"kept": len(pairs), "references": 0}, **packed("source", sides[0]), **packed("target", sides[1]))


@dataclass(frozen=True)
class _FilterJob:
    block: Path
    mask: NDArray[np.bool_]
    keys: Path
    out: Path


def remove_held_out(
    work: WorkFolder,
    selections: Mapping[str, Sequence[Selection]],
    drawn: Mapping[str, Mapping[str, Path]],
    workers: Workers,
    shown: Shown,
) -> dict[str, list[Selection]]:
    """What stays of all language pairs' training text without the sentences that were drawn, on whichever side."""
    keys = _keys_of([path for of_pair in drawn.values() for path in of_pair.values()])
    stage = work.stage("drawn-keys", keys=key_of(keys=keys.tobytes().hex()))
    if not is_saved(stage.block(0)):
        save(stage.block(0), {}, keys=keys)
    places = {
        selection.file: work.stage("kept", mask=[selection.file.parent.name, selection.file.name], drawn=stage.key)
        for of_pair in selections.values()
        for selection in of_pair
    }
    everything = [selection for of_pair in selections.values() for selection in of_pair]
    jobs = [
        _FilterJob(path, mask, stage.block(0), places[selection.file].block(number))
        for selection in everything
        if not is_saved(_masks_of(places[selection.file]))
        for number, (path, mask) in enumerate(selection.blocks())
        if not is_saved(places[selection.file].block(number))
    ]
    if jobs:
        with shown.step("Removing held-out pairs", total=sum(len(job.mask) for job in jobs)) as step:
            for pairs in workers.map_blocks(_filter, jobs):
                step.advance(pairs)
    for selection in everything:
        _gather(selection, places[selection.file])
    return {
        pair: [Selection(selection.corpus, _masks_of(places[selection.file])) for selection in of_pair]
        for pair, of_pair in selections.items()
    }


def _masks_of(stage: Stage) -> Path:
    return stage.folder / "masks.npz"


def _keys_of(files: Sequence[Path]) -> NDArray[np.uint64]:
    found = [np.zeros(0, np.uint64)]
    for path in files:
        with Saved(path) as saved:
            found += [sentence_keys(saved.lines(side)) for side in ("source", "target")]
    return np.unique(np.concatenate(found))


def _filter(job: _FilterJob) -> int:
    """Write which rows of a block have a sentence that is held out."""
    keys = load_keys(job.keys)
    held_out = np.zeros(len(job.mask), np.bool_)
    rows = np.flatnonzero(job.mask)
    with Saved(job.block) as saved:
        for side in ("source", "target"):
            lines = saved.lines(side)
            held_out[rows] |= are_among(sentence_keys([lines[row] for row in rows.tolist()]), keys)
    save(job.out, {}, held_out=held_out)
    return len(job.mask)


def _gather(selection: Selection, stage: Stage) -> None:
    """One file of masks for a corpus, of those of its blocks."""
    if is_saved(_masks_of(stage)):
        return
    before = [~mask for _, mask in selection.blocks()]
    held_out = []
    for number in range(len(before)):
        with Saved(stage.block(number)) as saved:
            held_out.append(saved["held_out"])
    rules = {"held_out": held_out}
    save_masks(_masks_of(stage), selection.corpus.blocks, rules, selection.summary(), before)
