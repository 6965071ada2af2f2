"""The first stage: unpack raw files, and read and clean them.

The workers read and clean them in parts.
"""

from __future__ import annotations

import csv
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.core.normalisation import normalise
from fairseq_mtmoe.corpora import blocks
from fairseq_mtmoe.corpora.blocks import HARMLESS, BadLine, Block, CorpusFiles
from fairseq_mtmoe.corpora.cleaning.cleaner import clean as clean_pairs
from fairseq_mtmoe.corpora.cleaning.keys import NO_KEYS, sentence_keys
from fairseq_mtmoe.corpora.engine.samples import check_sample
from fairseq_mtmoe.corpora.engine.state import (
    BAD_LINES,
    CorpusState,
    kept_in,
    names_of,
    training_by_pair,
)
from fairseq_mtmoe.corpora.engine.work import packed, save
from fairseq_mtmoe.corpora.engine.workers import MEGABYTE, Tools
from fairseq_mtmoe.corpora.readers import parts_of, read
from fairseq_mtmoe.corpora.readers.unpacking import is_packed, split_member, unpack
from fairseq_mtmoe.corpora.recipes.schema import Filters

# Bytes of a part, on both sides together.
# A block's pairs have fewer unless they are over 300 bytes each.
PART_BYTES = 16 << 20


def clean(
    tools: Tools, corpora: Sequence[CorpusFiles], filters: Filters, folder: Path
) -> list[CorpusState]:
    """Return the corpora with their cleaned pairs, in files in `folder`."""
    unpacked = _unpack_all(tools, corpora, folder / "unpacked")
    named = [files for files in unpacked if files.data_set]
    tools.run("Checking samples", [(partial(check_sample, files), 1) for files in named], "corpora")
    cuts = []
    for files in unpacked:
        cuts.append((partial(parts_of, files, blocks.BLOCK, PART_BYTES), _megabytes(files)))
    cut_parts = tools.run("Finding lines", cuts, "MB")
    jobs, owners = [], []
    states = list(map(CorpusState, corpora))
    for number, (files, parts) in enumerate(zip(unpacked, cut_parts, strict=True)):
        (folder / f"{number:05d}").mkdir()
        for part_number, part_files in enumerate(parts or [files]):
            out = folder / f"{number:05d}" / f"{part_number:06d}"
            job = partial(clean_part, part_files, filters, blocks.BLOCK, out)
            jobs.append((job, _megabytes(part_files)))
            owners.append(states[number])
    cleaned = tools.run("Reading and cleaning", jobs, "MB")
    for owner, part in zip(owners, cleaned, strict=True):
        owner.add_part(part)
    shutil.rmtree(folder / "unpacked", ignore_errors=True)
    return states


def _unpack_all(tools: Tools, corpora: Sequence[CorpusFiles], folder: Path) -> list[CorpusFiles]:
    """Return the corpora with their packed files unpacked into `folder`."""
    folder.mkdir()
    places: dict[Path, Path] = {}
    by_archive: dict[Path, dict[Path, Path]] = {}
    for files in corpora:
        for path in files.paths:
            if path not in places and is_packed(path):
                places[path] = folder / str(len(places))
                by_archive.setdefault(split_member(path)[0], {})[path] = places[path]
    jobs = []
    for archive, members in by_archive.items():
        jobs.append((partial(unpack, members), archive.stat().st_size / MEGABYTE))
    tools.run("Unpacking", jobs, "MB")
    unpacked = []
    for files in corpora:
        paths = tuple(map(places.get, files.paths, files.paths))
        unpacked.append(replace(files, unpacked=paths))
    return unpacked


def _megabytes(files: CorpusFiles) -> float:
    """Return the size of the bytes to read of a corpus or a part of it."""
    size = 0
    for content, (start, end) in zip(files.contents, files.spans, strict=False):
        size += (end or content.path.stat().st_size) - start
    return size / MEGABYTE


def clean_part(files: CorpusFiles, filters: Filters, block_size: int, out: Path) -> CorpusState:
    """Clean a part of a corpus and save it in files named from `out` on; a job."""
    part = CorpusState(files)
    bad_list = out.with_name(f"{out.name}.{BAD_LINES}")
    with open(bad_list, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter="\t", lineterminator="\n")
        for item in read(files, block_size):
            if isinstance(item, BadLine):
                name = part.add_bad_line(item)
                if item.reason != HARMLESS:
                    writer.writerow([files.name, name, item.line, item.reason, item.excerpt])
            else:
                block = out.with_name(f"{out.name}-{len(part.blocks):04d}.npz")
                part.add_part(clean_block(item, files, filters, block))
    if bad_list.stat().st_size:
        part.bad_lists.append(bad_list)
    return part


def clean_block(block: Block, files: CorpusFiles, filters: Filters, out: Path) -> CorpusState:
    """Clean and save a block, with the sides in the pair's order."""
    if files.is_turned:  # its references are its target's
        block = replace(block, source=block.target, target=block.source, references=())
    cleaned = clean_pairs(block, files.pair.split("-"), None if files.is_evaluation else filters)
    arrays = {"source": packed(cleaned.source), "target": packed(cleaned.target)}
    reference_keys = [NO_KEYS]
    for number, lines in enumerate(block.references):
        lines = list(map(normalise, lines))
        arrays[f"reference{number}"] = packed(lines)
        reference_keys.append(sentence_keys(lines))
    arrays["reference_keys"] = np.concatenate(reference_keys)
    for name in ("lines", "exact", "near", "source_keys", "target_keys"):
        arrays[name] = getattr(cleaned, name)
    save(out, **arrays)
    return CorpusState(
        files,
        blocks=[out],
        sizes=[len(cleaned.source)],
        references=len(block.references),
        read=len(block.source),
        kept=len(cleaned.source),
        dropped=cleaned.counts,
        samples=cleaned.samples,
    )


def check_cleaned(
    corpora: Sequence[CorpusState], held_out: Mapping[str, Mapping[str, int]]
) -> None:
    """Check that enough is left of each language pair to hold pairs out.

    The smallest pair is the first, so that its advice suits the others.
    """
    by_pair = training_by_pair(corpora)
    for pair in sorted(by_pair, key=lambda pair: kept_in(by_pair[pair])):
        in_pair = by_pair[pair]
        if kept := kept_in(in_pair):
            check_enough(pair, sum(held_out.get(pair, {}).values()), kept)
            continue
        lost = Counter[str]()
        for corpus in in_pair:
            lost += corpus.dropped + Counter(unreadable=corpus.bad.total())
        reasons = ", ".join(f"{count:,} {rule}" for rule, count in lost.most_common())
        raise UserError(
            f"`{pair}` has no training pairs left after cleaning of {names_of(in_pair)}"
            f" ({reasons or 'which are empty'}); check that their files have the languages"
            " and columns of the recipe, loosen its `filters`, or remove these corpora."
        )


def check_enough(pair: str, held_out: int, pairs: int) -> None:
    """Check that a pair keeps at least as many training pairs as are held out."""
    if pairs < 2 * held_out:
        fewer = max(1, min(100, pairs // 8))
        raise UserError(
            f"`held_out` would take {held_out} of the {pairs} pairs of {pair} for validation and"
            f" test, more than it leaves for training; lower it to {fewer} (with `--recipe folder`:"
            f" `--held-out {fewer}`), or add text for validation and test."
        )
