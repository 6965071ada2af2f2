"""The second stage: removal of duplicates and of evaluation sentences from clean training pairs, by keys."""

from __future__ import annotations

import hashlib
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairseq_mtmoe.data.corpora.cleaning.cleaner import SAMPLES, Sample, chosen, sample
from fairseq_mtmoe.data.corpora.cleaning.keys import Keys, are_among, first_occurrences, mixed, sentence_keys
from fairseq_mtmoe.data.corpora.engine.reading import CleanedCorpus, check_enough
from fairseq_mtmoe.data.corpora.engine.store import Saved, Stage, is_saved, key_of, packed, save, summary_of
from fairseq_mtmoe.data.corpora.engine.workers import Tools
from fairseq_mtmoe.data.corpora.recipes.schema import Action, Filters

# Bytes for keys that are compared at a time, of which a million take 40 MB (4M: 160; measured), and 33 MB of disk until
# they are compared. Several processes compare a language pair each.
MEMORY = 256 << 20
SIDES = ("source", "target")
# What a pair counts for that was drawn for validation or test of its own language pair: that is no loss.
DRAWN = "drawn"

Mask = NDArray[np.bool_]
Blocks = Sequence[tuple[Path, Mask]]


@dataclass(frozen=True)
class Selection:
    """The pairs of a corpus that are kept: all of those kept `before`, or those of a mask per block, in a file."""

    corpus: CleanedCorpus
    file: Path | None = None
    before: Selection | None = field(default=None, repr=False)

    @property
    def key(self) -> str:
        """Return a key for the kept pairs, independent of the reasons for the others."""
        return self.corpus.stage.key if self.file is None else str(summary_of(self.file)["key"])

    @property
    def blocks(self) -> list[tuple[Path, Mask]]:
        """Yield the corpus' blocks with their masks."""
        if self.file is None:
            mask = np.ones(sum(self.corpus.sizes), np.bool_)
        else:
            with Saved(self.file) as saved:
                mask = saved["mask"]
        return list(zip(self.corpus.blocks, np.split(mask, np.cumsum(self.corpus.sizes)[:-1]), strict=False))

    def summary(self) -> dict[str, Any]:
        """Return `kept`, and numbers `dropped` by rule after cleaning, with `samples`."""
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
        """Write the pairs that are kept after further rules, given as a mask per block and rule."""
        blocks = self.blocks
        lost = [np.logical_or.reduce(of_block) for of_block in zip(*dropped.values(), strict=True)]
        kept = [old & ~new for (_, old), new in zip(blocks, lost, strict=True)]
        mask = np.concatenate([np.zeros(0, np.bool_), *kept])
        summary = {
            "kept": int(mask.sum()),
            "dropped": {rule: int(sum(part.sum() for part in parts)) for rule, parts in dropped.items()},
            "samples": {rule: _samples([path for path, _ in blocks], parts) for rule, parts in dropped.items()},
            "key": key_of(clean=self.corpus.stage.key, mask=hashlib.sha256(np.packbits(mask).tobytes()).hexdigest()),
        }
        save(out, summary, mask=mask)


Selections = Mapping[str, Sequence[Selection]]  # training text by language pair


def _samples(blocks: Sequence[Path], dropped: Sequence[Mask]) -> list[Sample]:
    """Return the first dropped pairs, with their lines."""
    found: list[Sample] = []
    for path, mask in zip(blocks, dropped, strict=True):
        rows = np.flatnonzero(mask)[: SAMPLES - len(found)]
        if len(rows):
            with Saved(path) as saved:
                source, target = (saved.some_lines(side, rows) for side in SIDES)
                found += map(sample, saved["lines"][rows].tolist(), source, target)
        if len(found) == SAMPLES:
            break
    return found


def find_duplicates(tools: Tools, selections: Selections, filters: Filters) -> dict[str, list[Selection]]:
    """Return the selections by language pair without duplicates; the first of equal pairs is kept."""
    actions = [filters.duplicates.name, filters.near_duplicates.name]
    stages = {
        pair: tools.work.stage("distinct", pairs=[selection.key for selection in of_pair], filters=actions)
        for pair, of_pair in selections.items()
    }
    left = [pair for pair, stage in stages.items() if stage.result() is None]
    left.sort(key=lambda pair: -sum(sum(selection.corpus.sizes) for selection in selections[pair]))  # the longest first
    tools.do("Comparing pairs", [partial(_compare, selections[pair], filters, stages[pair]) for pair in left])
    return {
        pair: [Selection(one.corpus, stages[pair].block(number), one) for number, one in enumerate(of_pair)]
        for pair, of_pair in selections.items()
    }


def _compare(selections: Sequence[Selection], filters: Filters, stage: Stage) -> int:
    """Write the selections of a language pair's corpora; return the number of their pairs."""
    partitions = stage.folder / "keys"
    shutil.rmtree(partitions, ignore_errors=True)  # a killed run's
    blocks = [block for selection in selections for block in selection.blocks]
    stays = [mask for _, mask in blocks]
    exact = _firsts(blocks, "exact", partitions) if filters.duplicates is Action.drop else stays
    near = _firsts(blocks, "near", partitions) if filters.near_duplicates is Action.drop else stays
    shutil.rmtree(partitions, ignore_errors=True)
    duplicate = iter([a & ~b for a, b in zip(stays, exact, strict=True)])
    near_duplicate = iter([a & ~b for a, b in zip(exact, near, strict=True)])
    for number, selection in enumerate(selections):
        count = len(selection.corpus.sizes)
        rules = {"duplicate": list(islice(duplicate, count)), "near_duplicate": list(islice(near_duplicate, count))}
        selection.write_rest(rules, stage.block(number))
    pairs = sum(map(len, stays))
    stage.finish({"pairs": pairs})
    return pairs


def _firsts(blocks: Blocks, kind: str, folder: Path) -> list[Mask]:
    """Yield a mask per block of the kept pairs whose key occurs for the first time."""
    (folder / kind).mkdir(parents=True)
    files = []
    for number, (path, mask) in enumerate(blocks):
        files.append(folder / kind / f"{number:06d}.npy")
        with Saved(path) as saved:
            np.save(files[-1], saved[kind][mask])
    found = []
    for (_, mask), first in zip(blocks, first_occurrences(files, folder / f"{kind}-parts", MEMORY), strict=True):
        found.append(np.zeros(len(mask), np.bool_))
        found[-1][mask] = first
    return found


def draw_held_out(
    tools: Tools, selections: Selections, sizes: Mapping[str, Mapping[str, int]], seed: int
) -> dict[str, dict[str, Path]]:
    """Draw `sizes` pairs by the smallest hashes of source sentences; return a file for each pair and split."""
    jobs, found = [], {}
    for pair, wanted in sizes.items():
        made_from = [selection.key for selection in selections[pair]]
        stage = tools.work.stage("drawn", text=made_from, sizes=dict(wanted), seed=seed)
        found[pair] = {split: stage.block(number) for number, split in enumerate(wanted)}
        if stage.result() is None:
            jobs.append(partial(_draw, pair, selections[pair], wanted, seed, stage))
    tools.do("Drawing held-out pairs", jobs)
    return found


def _draw(pair: str, selections: Sequence[Selection], sizes: Mapping[str, int], seed: int, stage: Stage) -> int:
    """Write a language pair's held-out pairs, of `sizes` by split; return the number of its pairs."""
    needed = sum(sizes.values())
    draws = np.zeros(0, np.uint64)
    where = np.zeros((0, 3), np.int64)  # corpus, block, row
    total = 0
    for corpus, selection in enumerate(selections):
        for block, (path, mask) in enumerate(selection.blocks):
            rows = np.flatnonzero(mask)
            total += len(rows)
            with Saved(path) as saved:
                keys = saved["source_keys"][rows]
            new = mixed(np.full_like(keys, seed), keys)
            found = np.stack([np.full_like(rows, corpus), np.full_like(rows, block), rows], axis=1)
            draws, first = np.unique(np.concatenate([draws, new]), return_index=True)  # the first of equal sources
            where = np.concatenate([where, found])[first[:needed]]
            draws = draws[:needed]
    check_enough(pair, needed, total if len(draws) == needed else len(draws))
    text: dict[tuple[int, ...], tuple[str, str]] = {}
    for corpus, block in sorted({(int(corpus), int(block)) for corpus, block, _ in where}):
        rows = where[(where[:, 0] == corpus) & (where[:, 1] == block), 2]
        with Saved(selections[corpus].corpus.stage.block(block)) as saved:
            pairs = zip(saved.some_lines("source", rows), saved.some_lines("target", rows), strict=True)
        text |= {(corpus, block, row): both for row, both in zip(rows.tolist(), pairs, strict=True)}
    drawn = iter([text[key] for key in map(tuple, where.tolist())])
    for number, size in enumerate(sizes.values()):
        sides = dict(zip(SIDES, map(list, zip(*islice(drawn, size), strict=True)), strict=True))
        arrays = {name: array for side, lines in sides.items() for name, array in packed(side, lines).items()}
        arrays |= {f"{side}_keys": sentence_keys(lines) for side, lines in sides.items()}
        save(stage.block(number), {"kept": size, "references": 0}, **arrays)
    stage.finish({"pairs": total})
    return total


def remove_held_out(
    tools: Tools, selections: Selections, evaluated: Iterable[Path], drawn: Mapping[str, Iterable[Path]] | None = None
) -> dict[str, list[Selection]]:
    """Return the selections without sentences of `evaluated` files; `drawn` has those drawn from a pair itself."""
    pairs_drawn = {
        pair: joined_keys(map(partial(keys_in, of_pairs=True), files)) for pair, files in (drawn or {}).items()
    }
    keys = joined_keys(map(keys_in, evaluated))
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
                jobs.append(partial(_filter, selection, held_out.block(0), pairs_drawn.get(pair, none), out))
    jobs.sort(key=lambda job: -sum(job.args[0].corpus.sizes))  # the longest first
    tools.do("Removing held-out pairs", jobs)
    return found


def joined_keys(keys: Iterable[Keys]) -> Keys:
    """Return the distinct keys, sorted."""
    return np.unique(np.concatenate([np.zeros(0, np.uint64), *keys]))


def keys_in(path: Path, of_pairs: bool = False) -> Keys:
    """Return the keys of a file's sentences, further references included, or of its pairs."""
    with Saved(path) as saved:
        source, target = (saved[f"{side}_keys"] for side in SIDES)
        if of_pairs:
            return mixed(source, target)
        references = [saved.lines(f"reference{number}") for number in range(saved.summary["references"])]
        return np.concatenate([source, target, *map(sentence_keys, references)])


@lru_cache(4)
def _load_keys(path: Path) -> Keys:
    with Saved(path) as saved:
        return saved["keys"]


def _filter(selection: Selection, keys_file: Path, drawn_keys: Keys, out: Path) -> int:
    """Write a corpus' selection without held-out sentences and sorted `drawn_keys`; return its number of pairs."""
    keys = _load_keys(keys_file)
    drawn, held_out = [], []
    for path, mask in selection.blocks:
        with Saved(path) as saved:
            source, target = (saved[f"{side}_keys"] for side in SIDES)
        drawn.append(mask & are_among(mixed(source, target), drawn_keys))
        held_out.append(mask & ~drawn[-1] & (are_among(source, keys) | are_among(target, keys)))
    selection.write_rest({DRAWN: drawn, "held_out": held_out}, out)
    return sum(map(len, held_out))
