"""The second stage: of clean training pairs, those that stay.

Duplicates go, across a language pair's corpora; so does every sentence that is evaluated on, and what is drawn for that
where a pair has no corpus for validation or test. All of it goes by the keys of clean sentences, without their text.
"""

from __future__ import annotations

import hashlib
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairseq_mtmoe.data.corpora import cleaning
from fairseq_mtmoe.data.corpora.cleaning import SAMPLES, are_among, chosen, sentence_keys
from fairseq_mtmoe.data.corpora.cleaning.keys import Keys, mixed
from fairseq_mtmoe.data.corpora.engine.reading import CleanedCorpus, check_enough
from fairseq_mtmoe.data.corpora.engine.store import Saved, Stage, is_saved, key_of, packed, save, summary_of
from fairseq_mtmoe.data.corpora.engine.workers import Tools
from fairseq_mtmoe.data.corpora.recipes import Action, Filters

MEMORY = 256 << 20
"""Bytes for keys that are compared at a time, of which a million take 40 MB (4M: 160; measured), and 33 MB of
disk until they are compared. Several processes compare a language pair each."""

SIDES = ("source", "target")
DRAWN = "drawn"
"""What a pair counts for that a draw took for validation or test of its own language pair: that is no loss."""

Mask = NDArray[np.bool_]
Blocks = Sequence[tuple[Path, Mask]]


@dataclass(frozen=True)
class Selection:
    """Which pairs of a corpus stay of those that stayed `before`: all, or those of a mask for each block, in a file."""

    corpus: CleanedCorpus
    file: Path | None = None
    before: Selection | None = field(default=None, repr=False)

    @property
    def key(self) -> str:
        """Of which pairs stay, whatever left out the others."""
        return self.corpus.stage.key if self.file is None else str(summary_of(self.file)["key"])

    @property
    def blocks(self) -> list[tuple[Path, Mask]]:
        """The corpus' blocks with their masks."""
        if self.file is None:
            mask = np.ones(sum(self.corpus.sizes), np.bool_)
        else:
            with Saved(self.file) as saved:
                mask = saved["mask"]
        return list(zip(self.corpus.blocks, np.split(mask, np.cumsum(self.corpus.sizes)[:-1]), strict=False))

    def summary(self) -> dict[str, Any]:
        """`kept`, and what was `dropped` by which rule since the corpus is clean, with `samples`."""
        if self.before is None or self.file is None:
            return {"kept": sum(self.corpus.sizes), "dropped": {}, "samples": {}}
        own, before = summary_of(self.file), self.before.summary()
        samples = {rule: [*before["samples"].get(rule, []), *map(tuple, some)] for rule, some in own["samples"].items()}
        return {
            "kept": own["kept"],
            "dropped": dict(Counter(before["dropped"]) + Counter(own["dropped"])),
            "samples": before["samples"] | {rule: chosen(some) for rule, some in samples.items()},
        }

    def write_rest(self, dropped: Mapping[str, Sequence[Mask]], out: Path) -> None:
        """Write which pairs still stay when more rules drop some: a mask for each block, by rule."""
        blocks = self.blocks
        lost = [np.logical_or.reduce(of_block) for of_block in zip(*dropped.values(), strict=True)]
        mask = np.concatenate(
            [np.zeros(0, np.bool_), *(old & ~new for (_, old), new in zip(blocks, lost, strict=True))]
        )
        summary = {
            "kept": int(mask.sum()),
            "dropped": {rule: int(sum(part.sum() for part in parts)) for rule, parts in dropped.items()},
            "samples": {rule: _samples([path for path, _ in blocks], parts) for rule, parts in dropped.items()},
            "key": key_of(clean=self.corpus.stage.key, mask=hashlib.sha256(np.packbits(mask).tobytes()).hexdigest()),
        }
        save(out, summary, mask=mask)


Selections = Mapping[str, Sequence[Selection]]
"""Of the training text of each language pair."""


def _samples(blocks: Sequence[Path], dropped: Sequence[Mask]) -> list[cleaning.Sample]:
    """The first pairs that are dropped, with their line."""
    found: list[cleaning.Sample] = []
    for path, mask in zip(blocks, dropped, strict=True):
        rows = np.flatnonzero(mask)[: SAMPLES - len(found)]
        if len(rows):
            with Saved(path) as saved:
                source, target = (saved.some_lines(side, rows) for side in SIDES)
                found += map(cleaning.sample, saved["lines"][rows].tolist(), source, target)
        if len(found) == SAMPLES:
            break
    return found


# ---- duplicates ----


@dataclass(frozen=True)
class _CompareJob:
    selections: Sequence[Selection]
    filters: Filters
    stage: Stage


def find_duplicates(tools: Tools, selections: Selections, filters: Filters) -> dict[str, list[Selection]]:
    """By language pair what stays of its training corpora: of several equal pairs the first."""
    actions = [filters.duplicates.name, filters.near_duplicates.name]
    jobs = {}
    for pair, of_pair in selections.items():
        stage = tools.work.stage("distinct", pairs=[selection.key for selection in of_pair], filters=actions)
        jobs[pair] = _CompareJob(of_pair, filters, stage)
    left = [job for job in jobs.values() if job.stage.result() is None]
    left.sort(key=lambda job: -sum(sum(selection.corpus.sizes) for selection in job.selections))  # the longest first
    tools.do("Comparing pairs", _compare, left)
    return {
        pair: [Selection(one.corpus, job.stage.block(number), one) for number, one in enumerate(job.selections)]
        for pair, job in jobs.items()
    }


def _compare(job: _CompareJob) -> int:
    """Write which pairs of a language pair's corpora stay; how many these have."""
    partitions = job.stage.folder / "keys"
    shutil.rmtree(partitions, ignore_errors=True)  # a killed run's
    blocks = [block for selection in job.selections for block in selection.blocks]
    stays = [mask for _, mask in blocks]
    exact = _firsts(blocks, "exact", partitions) if job.filters.duplicates is Action.drop else stays
    near = _firsts(blocks, "near", partitions) if job.filters.near_duplicates is Action.drop else stays
    shutil.rmtree(partitions, ignore_errors=True)
    duplicate = iter([a & ~b for a, b in zip(stays, exact, strict=True)])
    near_duplicate = iter([a & ~b for a, b in zip(exact, near, strict=True)])
    for number, selection in enumerate(job.selections):
        count = len(selection.corpus.sizes)
        rules = {"duplicate": list(islice(duplicate, count)), "near_duplicate": list(islice(near_duplicate, count))}
        selection.write_rest(rules, job.stage.block(number))
    pairs = sum(map(len, stays))
    job.stage.finish({"pairs": pairs})
    return pairs


def _firsts(blocks: Blocks, kind: str, folder: Path) -> list[Mask]:
    """A mask per block: of the pairs that stay, those whose key occurs for the first time in all of them."""
    (folder / kind).mkdir(parents=True)
    files = []
    for number, (path, mask) in enumerate(blocks):
        files.append(folder / kind / f"{number:06d}.npy")
        with Saved(path) as saved:
            np.save(files[-1], saved[kind][mask])
    found = []
    for (_, mask), first in zip(
        blocks, cleaning.first_occurrences(files, folder / f"{kind}-parts", MEMORY), strict=True
    ):
        found.append(np.zeros(len(mask), np.bool_))
        found[-1][mask] = first
    return found


# ---- what is drawn ----


@dataclass(frozen=True)
class _DrawJob:
    pair: str
    selections: Sequence[Selection]
    sizes: Mapping[str, int]  # pairs to draw, by split
    seed: int
    stage: Stage


def draw_held_out(
    tools: Tools, selections: Selections, sizes: Mapping[str, Mapping[str, int]], seed: int
) -> dict[str, dict[str, Path]]:
    """Draw validation and test pairs from training text, as many as `sizes` says; a file for each pair and split.

    Those come first whose source sentences have the smallest hashes: the draw depends on the seed and the sentences
    alone, and language pairs that share sources hold out much the same ones. A pair with too few is a `UserError`.
    """
    jobs = []
    for pair, wanted in sizes.items():
        made_from = [selection.key for selection in selections[pair]]
        stage = tools.work.stage("drawn", text=made_from, sizes=dict(wanted), seed=seed)
        jobs.append(_DrawJob(pair, selections[pair], wanted, seed, stage))
    tools.do("Drawing held-out pairs", _draw, [job for job in jobs if job.stage.result() is None])
    return {job.pair: {split: job.stage.block(number) for number, split in enumerate(job.sizes)} for job in jobs}


def _draw(job: _DrawJob) -> int:
    """Write the pairs that a language pair holds out; how many it has."""
    needed = sum(job.sizes.values())
    draws = np.zeros(0, np.uint64)
    places = np.zeros((0, 3), np.int64)  # corpus, block, row
    total = 0
    for corpus, selection in enumerate(job.selections):
        for block, (path, mask) in enumerate(selection.blocks):
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
        pairs = [text[place] for place in map(tuple, places[start : start + size].tolist())]
        start += size
        sides = dict(zip(SIDES, ([pair[side] for pair in pairs] for side in (0, 1)), strict=True))
        arrays = {name: array for side, lines in sides.items() for name, array in packed(side, lines).items()}
        arrays |= {f"{side}_keys": sentence_keys(lines) for side, lines in sides.items()}
        save(job.stage.block(number), {"kept": len(pairs), "references": 0}, **arrays)
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


# ---- what is evaluated on ----


@dataclass(frozen=True)
class _FilterJob:
    selection: Selection
    keys: Path
    drawn: Keys  # of both sides together, sorted
    out: Path


def remove_held_out(
    tools: Tools, selections: Selections, evaluated: Iterable[Path], drawn: Mapping[str, Iterable[Path]] | None = None
) -> dict[str, list[Selection]]:
    """What stays of all language pairs' training text without the sentences of `evaluated` files, on whichever side.

    Args:
        drawn: those of the files that were drawn, by the language pair that they were drawn from.
    """
    pairs_drawn = {pair: _joined(map(_pair_keys, files)) for pair, files in (drawn or {}).items()}
    keys = _joined(map(_keys_in, evaluated))
    held_out = tools.work.stage("held-out", keys=hashlib.sha256(keys.tobytes()).hexdigest())
    if not is_saved(held_out.block(0)):
        save(held_out.block(0), {}, keys=keys)
    found: dict[str, list[Selection]] = {pair: [] for pair in selections}
    jobs = []
    for pair, of_pair in selections.items():
        own = {"drawn": hashlib.sha256(pairs_drawn[pair].tobytes()).hexdigest()} if pair in pairs_drawn else {}
        for selection in of_pair:
            out = tools.work.stage("trained", pairs=selection.key, held_out=held_out.key, **own).block(0)
            found[pair].append(Selection(selection.corpus, out, selection))
            if not is_saved(out):
                none = np.zeros(0, np.uint64)
                jobs.append(_FilterJob(selection, held_out.block(0), pairs_drawn.get(pair, none), out))
    jobs.sort(key=lambda job: -sum(job.selection.corpus.sizes))  # the longest first
    tools.do("Removing held-out pairs", _filter, jobs)
    return found


def _joined(keys: Iterable[Keys]) -> Keys:
    return np.unique(np.concatenate([np.zeros(0, np.uint64), *keys]))


def _keys_in(path: Path) -> Keys:
    """The keys of all sentences of a file, further references among them."""
    with Saved(path) as saved:
        references = [saved.lines(f"reference{number}") for number in range(saved.summary["references"])]
        return np.concatenate([*(saved[f"{side}_keys"] for side in SIDES), *map(sentence_keys, references)])


def _pair_keys(path: Path) -> Keys:
    with Saved(path) as saved:
        return mixed(saved["source_keys"], saved["target_keys"])


@lru_cache(4)
def _load_keys(path: Path) -> Keys:
    with Saved(path) as saved:
        return saved["keys"]


def _filter(job: _FilterJob) -> int:
    """Write which pairs of a corpus stay, without those of which a sentence is held out; how many it has."""
    keys = _load_keys(job.keys)
    drawn, held_out = [], []
    for path, mask in job.selection.blocks:
        with Saved(path) as saved:
            source, target = (saved[f"{side}_keys"] for side in SIDES)
        drawn.append(mask & are_among(mixed(source, target), job.drawn))
        held_out.append(mask & ~drawn[-1] & (are_among(source, keys) | are_among(target, keys)))
    job.selection.write_rest({DRAWN: drawn, "held_out": held_out}, job.out)
    return sum(map(len, held_out))
