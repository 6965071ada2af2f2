"""The last stage: ids of many blocks become the files that stock fairseq reads (`MMapIndexedDataset`)."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from fairseq_mtmoe.data.corpora.engine.encoding import id_type
from fairseq_mtmoe.data.corpora.engine.store import Saved
from fairseq_mtmoe.data.corpora.recipes import Shards

_MAGIC = b"MMIDIDX\x00\x00"
_VERSION = 1
_CODES = {np.uint16: 8, np.uint32: 9}  # of fairseq's `indexed_dataset._code_to_dtype`
_LENGTHS_AT_ONCE = 1 << 20


def shards_of(pairs: int, settings: Shards) -> int:
    """Into how many directories a language pair's training data is dealt out."""
    return max(1, min(settings.most, -(-pairs // settings.pairs)))


def sizes_of(pairs: int, shards: int) -> list[int]:
    """How many pairs each shard gets: they are dealt out in turn."""
    return [len(range(shard, pairs, shards)) for shard in range(shards)]


@dataclass(frozen=True)
class SideJob:
    """One side of a split of a language pair: the files of its ids, and where it goes.

    Attributes:
        prefixes: paths without suffix, one for each shard.
        symbols: of the dictionary.
    """

    ids: Sequence[Path]
    side: str  # source or target
    prefixes: Sequence[Path]
    symbols: int
    is_training: bool


def write_side(job: SideJob) -> int:
    """Deal sentences out to the shards in turn, and write each shard's `.bin` and `.idx`; how many there are."""
    count = 0
    with ExitStack() as stack:
        writers = [stack.enter_context(Writer(prefix, job.symbols)) for prefix in job.prefixes]
        for path in job.ids:
            with Saved(path) as saved:
                ids, lengths = saved[f"{job.side}_ids"], saved[f"{job.side}_lengths"]
            shard_of = (count + np.arange(len(lengths))) % len(writers)
            for shard, writer in enumerate(writers):
                mine = shard_of == shard
                writer.add(ids[np.repeat(mine, lengths)], lengths[mine])
            count += len(lengths)
    return count


class Writer:
    """Writes `.bin` and `.idx` as fairseq's `MMapIndexedDatasetBuilder` does, many sentences at a time, holding none.

    To be used in a `with` statement; the files are whole at its end.

    Args:
        prefix: of both files.
        symbols: of the dictionary: it decides about the type of numbers.
    """

    def __init__(self, prefix: Path, symbols: int) -> None:
        self._prefix = prefix
        self._type = id_type(symbols)
        self._lengths = Path(f"{prefix}.lengths")  # until the index is written, which begins with their number
        self._count = 0

    def __enter__(self) -> Writer:
        self._bin_file: BinaryIO = open(f"{self._prefix}.bin", "wb")
        self._lengths_file: BinaryIO = open(self._lengths, "wb")
        return self

    def add(self, ids: NDArray[Any], lengths: NDArray[np.int32]) -> None:
        """Sentences, one behind the other, and their lengths."""
        self._bin_file.write(ids.astype(self._type, copy=False).tobytes())
        self._lengths_file.write(lengths.astype(np.int32, copy=False).tobytes())
        self._count += len(lengths)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bin_file.close()
        self._lengths_file.close()
        try:
            if error is None:
                self._write_index()
        finally:
            self._lengths.unlink()

    def _write_index(self) -> None:
        """`magic version(8) type(1) count(8) lengths(4·n) addresses(8·n)`, addresses in bytes."""
        with open(f"{self._prefix}.idx", "wb") as index, open(self._lengths, "rb") as lengths:
            index.write(_MAGIC + struct.pack("<QBQ", _VERSION, _CODES[self._type], self._count))
            while part := lengths.read(4 * _LENGTHS_AT_ONCE):
                index.write(part)
            lengths.seek(0)
            address = 0
            while part := lengths.read(4 * _LENGTHS_AT_ONCE):
                ends = np.cumsum(np.frombuffer(part, np.int32), dtype=np.int64) * np.dtype(self._type).itemsize
                starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]]) + address
                index.write(starts.tobytes())
                address += int(ends[-1])
