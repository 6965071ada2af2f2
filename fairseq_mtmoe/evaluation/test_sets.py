"""Which language pairs a data directory of fairseq-preprocess holds, and how many sentences of each."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from fairseq import utils

from fairseq_mtmoe.data.translation.file_names import indexed_sides, side_name
from fairseq_mtmoe.data.translation.pairs import sentences_of
from fairseq_mtmoe.data.translation.recorded_sizes import with_shards
from fairseq_mtmoe.data.translation.tiers import FILE_NAME, load_tiers
from fairseq_mtmoe.errors import UserError, raise_invalid


def folders(data: str) -> list[Path]:
    """The folders of a fairseq data argument: one, or shards, joined by colons or in a directory of their own.

    Raises:
        UserError: one of them does not exist.
    """
    paths = [Path(path) for path in utils.split_paths(with_shards(data))]
    for path in paths:
        if not path.is_dir():
            raise UserError(f"There is no data directory {path}: make one with mtmoe prepare or fairseq-preprocess.")
    return paths


def sizes_of(data: str, subset: str) -> dict[str, int]:
    """Sentences of every pair that has a file `<subset>.<source>-<target>.<target>.idx`, in the first folder.

    Like fairseq, which reads validation and test sets from the first of several shards.

    Raises:
        UserError: no pair has such a subset, or a file is empty or truncated.
    """
    folder = folders(data)[0]
    sizes = _sizes(folder, subset)
    if not sizes:
        subsets = sorted({side.split for side in indexed_sides(folder)})
        if not subsets:
            raise UserError(
                f"The data directory {folder} must have files of `fairseq-preprocess` or `mtmoe prepare`, but has "
                "none; those of a benchmark are for checkpoints of its tasks."
            )
        raise_invalid("--subset", f"one that the data directory {folder} has ({', '.join(subsets)})", subset)
    return sizes


def tiers_of(data: str, pairs: Sequence[str]) -> dict[str, str]:
    """The tiers of the pairs, by the directory's tiers.json or by training sentences over all its shards.

    Without either, nothing is known of any pair.
    """
    training: dict[str, int] = {}
    for folder in folders(data):
        for pair, size in _sizes(folder, "train").items():
            training[pair] = training.get(pair, 0) + size
    sizes = {pair: size_of(pair, training) for pair in pairs}
    known = {pair: size for pair, size in sizes.items() if size is not None}
    first = folders(data)[0]
    if not known and os.path.lexists(first / FILE_NAME):
        known = dict.fromkeys(pairs, 0)
    return load_tiers(first, known)


def choose_pairs(sizes: Mapping[str, int], trained: Sequence[str], wanted: Sequence[str]) -> list[str]:
    """The pairs to evaluate: the wanted ones, else those of the directory that the model was trained on, else all.

    Args:
        sizes: sentences of each pair of the directory; its files serve both directions of a pair.
        trained: the pairs that the checkpoint speaks of.
        wanted: the user's choice, or nothing.

    Raises:
        UserError: a wanted pair has no data.
    """
    for pair in wanted:
        if size_of(pair, sizes) is None:
            raise_invalid("--lang-pairs", f"pairs that the data directory has ({', '.join(sorted(sizes))})", pair)
    known = [pair for pair in trained if size_of(pair, sizes) is not None]
    return list(dict.fromkeys(wanted or known or sizes))


def size_of(pair: str, sizes: Mapping[str, int]) -> int | None:
    """Sentences of a pair, from the files of either direction; None if there are none."""
    source, _, target = pair.partition("-")
    return sizes.get(pair, sizes.get(f"{target}-{source}"))


def _sizes(folder: Path, subset: str) -> dict[str, int]:
    pairs = [side.pair for side in indexed_sides(folder) if (side.split, side.lang) == (subset, side.target)]
    return {pair: sentences_of(str(folder / side_name(subset, pair, pair.split("-")[1]))) for pair in pairs}
