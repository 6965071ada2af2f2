"""The second stage: remove duplicates and draw held-out pairs.

Held-out sentences are removed, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.corpora.blocks import CorpusFiles
from fairseq_mtmoe.corpora.cleaning.cleaner import SAMPLES, Sample, sample
from fairseq_mtmoe.corpora.cleaning.keys import (
    NO_KEYS,
    are_among,
    first_occurrences,
    mixed,
    sentence_keys,
)
from fairseq_mtmoe.corpora.engine.cleaning import check_enough
from fairseq_mtmoe.corpora.engine.state import (
    SIDES,
    CorpusState,
    Mask,
    Place,
    kept_in,
    names_of,
    places_of,
    training_by_pair,
)
from fairseq_mtmoe.corpora.engine.work import lines_of, load, packed, save
from fairseq_mtmoe.corpora.engine.workers import Tools
from fairseq_mtmoe.corpora.recipes.schema import Action, Filters, Role

DRAWN = "drawn"  # in place of a rule: drawn for the corpus' own language pair, which is no loss
KEYS = ("source_keys", "target_keys")


@dataclass(frozen=True)
class Draw:
    """Numbers of pairs to draw by language pair and split, and a seed."""

    sizes: Mapping[str, Mapping[str, int]]
    seed: int


def select(
    tools: Tools, corpora: Sequence[CorpusState], filters: Filters, draw: Draw, folder: Path
) -> list[CorpusState]:
    """Return what is left of training corpora, evaluation corpora, and drawn ones."""
    evaluation = [corpus for corpus in corpora if not corpus.is_training]
    training = list(chain.from_iterable(training_by_pair(corpora).values()))
    training = remove_held_out(tools, training, evaluation, folder / "held-out")
    training = remove_duplicates(tools, training, filters, folder / "distinct")
    drawn = draw_held_out(tools, training, draw, folder / "drawn")
    if drawn:
        training = remove_held_out(tools, training, drawn, folder / "rest")
    for pair, in_pair in training_by_pair(training).items():
        if not kept_in(in_pair):
            raise UserError(
                f"`{pair}` has no training pairs: {names_of(in_pair)} contain only sentences of"
                " validation and test sets; add text to the recipe, or remove these corpora."
            )
    return [*training, *evaluation, *drawn]


def remove_held_out(
    tools: Tools, training: Sequence[CorpusState], held_out: Sequence[CorpusState], folder: Path
) -> list[CorpusState]:
    """Return the training corpora without sentences of the corpora `held_out`."""
    folder.mkdir()
    keys = [NO_KEYS]
    for place in places_of(held_out):
        keys += load(place.block, *KEYS, "reference_keys").values()
    save(folder / "keys.npz", keys=np.unique(np.concatenate(keys)))
    drawn: dict[str, list[Path]] = {}
    for corpus in held_out:
        if corpus.files.is_drawn:
            drawn.setdefault(corpus.files.pair, []).extend(corpus.blocks)
    jobs = []
    for number, corpus in enumerate(training):
        blocks = drawn.get(corpus.files.pair, [])
        out = folder / f"{number:05d}.npy"
        job = partial(filter_corpus, corpus, folder / "keys.npz", blocks, out)
        jobs.append((job, corpus.kept))
    return tools.run("Removing held-out pairs", jobs)


def filter_corpus(
    corpus: CorpusState, keys_file: Path, drawn: Sequence[Path], out: Path
) -> CorpusState:
    """Return a corpus without held-out sentences and drawn blocks' pairs; a job."""
    keys = load(keys_file, "keys")["keys"]
    pair_keys = [NO_KEYS]
    for block in drawn:
        pair_keys.append(mixed(*load(block, *KEYS).values()))
    drawn_keys = np.unique(np.concatenate(pair_keys))
    kept = corpus.kept_pairs()
    is_drawn = np.zeros_like(kept)
    is_held_out = np.zeros_like(kept)
    for place in corpus.places:
        source, target = load(place.block, *KEYS).values()
        rows = slice(place.start, place.start + place.size)
        is_drawn[rows] = are_among(mixed(source, target), drawn_keys)
        is_held_out[rows] = are_among(source, keys) | are_among(target, keys)
    is_drawn &= kept
    drop(corpus, {DRAWN: is_drawn, "held_out": is_held_out & kept & ~is_drawn}, out)
    return corpus


def drop(corpus: CorpusState, dropped: Mapping[str, Mask], out: Path) -> None:
    """Leave pairs out, given as a mask per rule; write the mask `out`."""
    kept = corpus.kept_pairs()
    for rule, left_out in dropped.items():
        corpus.add_samples(rule, _first_samples(corpus, left_out))
        corpus.dropped[rule] += int(left_out.sum())
        kept &= ~left_out
    np.save(out, kept)
    corpus.mask, corpus.kept = out, int(kept.sum())


def _first_samples(corpus: CorpusState, left_out: Mask) -> list[Sample]:
    """Return the first dropped pairs, with their lines."""
    samples: list[Sample] = []
    for place in corpus.places:
        rows = np.flatnonzero(left_out[place.start : place.start + place.size])
        rows = rows[: SAMPLES - len(samples)]
        if len(rows):
            lines, source, target = load(place.block, "lines", *SIDES).values()
            texts = lines_of(source, rows), lines_of(target, rows)
            samples += map(sample, lines[rows].tolist(), *texts)
    return samples


def remove_duplicates(
    tools: Tools, training: Sequence[CorpusState], filters: Filters, folder: Path
) -> list[CorpusState]:
    """Return the training corpora without duplicates within a language pair."""
    folder.mkdir()
    jobs = []
    for pair, in_pair in training_by_pair(training).items():
        jobs.append((partial(compare, in_pair, filters, folder / pair), kept_in(in_pair)))
    compared = tools.run("Comparing pairs", jobs)
    return list(chain.from_iterable(compared))


def compare(
    corpora: Sequence[CorpusState], filters: Filters, folder: Path
) -> Sequence[CorpusState]:
    """Return a language pair's corpora without duplicates; a job."""
    folder.mkdir(exist_ok=True)
    kept = np.concatenate(list(map(CorpusState.kept_pairs, corpora)))
    places = places_of(corpora)
    exact = _firsts(places, kept, "exact", filters.duplicates)
    near = _firsts(places, kept, "near", filters.near_duplicates)
    rules = {"duplicate": kept & ~exact, "near_duplicate": exact & ~near}
    start = 0
    for number, corpus in enumerate(corpora):
        end = start + sum(corpus.sizes)
        dropped = {rule: mask[start:end] for rule, mask in rules.items()}
        drop(corpus, dropped, folder / f"{number:05d}.npy")
        start = end
    return corpora


def _firsts(places: Sequence[Place], kept: Mask, kind: str, action: Action) -> Mask:
    """Return a mask of the kept pairs whose key occurs for the first time."""
    if action is Action.keep:
        return kept
    keys = np.empty(np.count_nonzero(kept), np.uint64)  # one array: 8 bytes for each pair
    start = filled = 0
    for place in places:
        kept_keys = load(place.block, kind)[kind][kept[start : start + place.size]]
        keys[filled : filled + len(kept_keys)] = kept_keys
        start += place.size
        filled += len(kept_keys)
    firsts = kept.copy()
    firsts[kept] = first_occurrences(keys)
    return firsts


def draw_held_out(
    tools: Tools, training: Sequence[CorpusState], draw: Draw, folder: Path
) -> list[CorpusState]:
    """Return a corpus of drawn pairs for each language pair and split of `draw`."""
    folder.mkdir()
    by_pair = training_by_pair(training)
    jobs = []
    for pair in draw.sizes:
        real = [corpus for corpus in by_pair[pair] if not corpus.files.is_synthetic]
        jobs.append((partial(draw_pair, pair, real, draw, folder), kept_in(real)))
    drawn = tools.run("Drawing held-out pairs", jobs)
    return list(chain.from_iterable(drawn))


def draw_pair(
    pair: str, corpora: Sequence[CorpusState], draw: Draw, folder: Path
) -> list[CorpusState]:
    """Return a corpus for each split, with the smallest hashes of sources; a job."""
    sizes = draw.sizes[pair]
    needed = sum(sizes.values())
    places = places_of(corpora)
    hashes = NO_KEYS
    drawn = np.zeros((0, 2), np.int64)  # number of the place, row
    total = 0
    for number, place in enumerate(places):
        rows = place.rows()
        total += len(rows)
        keys = load(place.block, "source_keys")["source_keys"][rows]
        new_hashes = mixed(np.full_like(keys, draw.seed), keys)
        new_drawn = np.stack([np.full_like(rows, number), rows], axis=1)
        # The first of equal sources is drawn.
        hashes, first = np.unique(np.concatenate([hashes, new_hashes]), return_index=True)
        drawn = np.concatenate([drawn, new_drawn])[first[:needed]]
        hashes = hashes[:needed]
    available = total
    if len(hashes) < needed:  # all sources that differ
        available = len(hashes)
    check_enough(pair, needed, available)
    made = []
    start = 0
    for split, size in sizes.items():
        texts = _texts(places, drawn[start : start + size])
        made.append(_drawn_corpus(pair, Role[split], texts, folder / f"{split}.{pair}.npz"))
        start += size
    return made


def _texts(places: Sequence[Place], drawn: NDArray[np.int64]) -> tuple[list[str], list[str]]:
    """Return the sources and targets of drawn pairs, given by their place and row."""
    source, target = [""] * len(drawn), [""] * len(drawn)
    for number in np.unique(drawn[:, 0]).tolist():
        positions = np.flatnonzero(drawn[:, 0] == number)
        arrays = load(places[number].block, *SIDES)
        for side, lines in zip(SIDES, (source, target), strict=True):
            drawn_lines = lines_of(arrays[side], drawn[positions, 1])
            for position, line in zip(positions, drawn_lines, strict=True):
                lines[position] = line
    return source, target


def _drawn_corpus(pair: str, role: Role, sides: Sequence[list[str]], out: Path) -> CorpusState:
    arrays: dict[str, NDArray[Any]] = {}
    for side, lines in zip(SIDES, sides, strict=True):
        arrays |= {side: packed(lines), f"{side}_keys": sentence_keys(lines)}
    save(out, **arrays)
    source, target = pair.split("-")
    size = len(sides[0])
    files = CorpusFiles(f"{role.name}.{pair}", (), source, target, pair=pair, role=role)
    return CorpusState(files, blocks=[out], sizes=[size], read=size, kept=size)
