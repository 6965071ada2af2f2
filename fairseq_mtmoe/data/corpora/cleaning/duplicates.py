"""Which of many keys on disk occurred before: exactly, and within a given memory, however many there are.

Keys are dealt out by their first bits into files of their own, so small that one at a time can be sorted. Of equal keys
the first in the order of the files stays, so the answer is the same for any memory.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fairseq_mtmoe.data.corpora.cleaning.keys import Keys
from fairseq_mtmoe.errors import UserError, raise_invalid

BYTES_PER_KEY = 64
"""Memory for a key while its part is sorted: key and place, their order, and what sorting needs besides; measured."""

DISK_PER_KEY = 17
"""Disk for a key, in `work`, until the last mask is taken: key, place and mask."""

_ENTRY = np.dtype([("key", "<u8"), ("place", "<u8")])
_MOST_PARTS = 1024
_LEAST = BYTES_PER_KEY << 16


def first_occurrences(key_files: Sequence[Path], work: Path, memory: int) -> Iterator[NDArray[np.bool_]]:
    """For each file, which of its keys are the first of their kind in all files.

    Args:
        key_files: `numpy.save` wrote them, one array of uint64 each; the order of files and keys is that of the text.
        work: a folder for files in between, which is emptied first and removed when the last mask was taken.
        memory: in bytes, for everything but one key file and its mask. Parts hold `BYTES_PER_KEY` for each of their
            keys; how many there are depends on it, up to 1024, and the result does not.

    Raises:
        UserError: a file is not one of keys, or `memory` is too little for any work.
    """
    if memory < _LEAST:
        raise_invalid("memory", f"at least {_LEAST:,} bytes", memory)
    sizes = [len(_keys(path)) for path in key_files]
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        yield from _masks(key_files, sizes, work, memory)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _masks(key_files: Sequence[Path], sizes: Sequence[int], work: Path, memory: int) -> Iterator[NDArray[np.bool_]]:
    total = sum(sizes)
    bits = _bits(total, memory)
    _deal_out(key_files, work, bits, memory)
    is_first = np.memmap(work / "is_first", np.bool_, "w+", shape=(max(total, 1),))
    for part in sorted(work.glob("part*")):
        _mark(part, is_first)
        part.unlink()
    first = 0
    for size in sizes:
        yield np.array(is_first[first : first + size])
        first += size


def _bits(total: int, memory: int) -> int:
    """How many of the first bits say the part, so that each fits: keys are evenly spread."""
    bits = 0
    while (total * BYTES_PER_KEY >> bits) > memory and 1 << bits < _MOST_PARTS:
        bits += 1
    return bits


def _deal_out(key_files: Sequence[Path], work: Path, bits: int, memory: int) -> None:
    """Append every key with its place to the file of its part; of equal keys in one go the first is enough."""
    at_once = memory // BYTES_PER_KEY
    place = 0
    for path in key_files:
        keys = _keys(path)
        for begin in range(0, len(keys), at_once):
            some = np.array(keys[begin : begin + at_once])
            first = _first_of_each(some)
            entries = np.empty(len(first), _ENTRY)
            entries["key"], entries["place"] = some[first], first + place
            _append(entries, work, bits)
            place += len(some)


def _append(entries: NDArray[np.void], work: Path, bits: int) -> None:
    """Append entries, which are sorted by key, to the files of their parts."""
    parts = 1 << bits
    begins = np.searchsorted(entries["key"], np.arange(parts, dtype=np.uint64) << np.uint64((64 - bits) % 64))
    for part, some in enumerate(np.split(entries, begins[1:])):
        if len(some):
            with open(work / f"part{part:04d}", "ab") as file:
                file.write(some.tobytes())


def _mark(part: Path, is_first: NDArray[np.bool_]) -> None:
    """Mark the places of the first of each key of a part. They were appended in the order of their places."""
    entries = np.fromfile(part, _ENTRY)
    is_first[entries["place"][_first_of_each(np.ascontiguousarray(entries["key"]))]] = True


def _first_of_each(keys: Keys) -> NDArray[np.int64]:
    """The first index of every key, in the order of the keys."""
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    first: NDArray[np.int64] = order[np.append(True, keys[1:] != keys[:-1])[: len(keys)]]
    return first


def _keys(path: Path) -> Keys:
    try:
        keys: Keys = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise UserError(f"`{path}` must be a file of keys, but cannot be read as one: {error}.") from error
    if keys.dtype != np.uint64 or keys.ndim != 1:
        raise UserError(f"`{path}` must be a file of keys (uint64, one behind the other), but is of {keys.dtype}.")
    return keys
