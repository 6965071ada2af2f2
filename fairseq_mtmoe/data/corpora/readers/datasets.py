"""Folders and files of Hugging Face's `datasets`: tables of Arrow or Parquet, with a text column for each language, or
one with the translations of both (`{"translation": {"en": …, "de": …}}`).

pyarrow reads them in a process of its own (`io.isolated`): crafted files make it take any memory, or crash.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from fairseq_mtmoe.data.corpora.blocks import BadLine, CorpusFiles
from fairseq_mtmoe.data.corpora.readers.assembling import Pairs
from fairseq_mtmoe.data.corpora.readers.faults import FREE_EXPANSION, MAX_EXPANSION, MAX_LINE, Fault
from fairseq_mtmoe.data.corpora.readers.jsonl import find_keys, unknown_keys
from fairseq_mtmoe.data.corpora.readers.units import Unit, gather
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.io.files import regular_file
from fairseq_mtmoe.io.isolated import Lost, isolated_items

_ROWS = 1000
_BYTES_OF_A_ROW = 16
_MEMORY, _MEMORY_PER_BYTE = 2 << 30, 16  # in all, and for each byte of the largest file
_SECONDS = 600  # for a group of rows, which Parquet reads together
MAGIC = (b"PAR1", b"ARROW1", b"\xff\xff\xff\xff")
"""How files of Parquet and Arrow begin: the last is an Arrow stream, which `save_to_disk` writes."""


def read_datasets(files: CorpusFiles) -> Iterator[Pairs | BadLine]:
    """The pairs of a folder that `save_to_disk` wrote, of a folder of Parquet files, or of one such file."""
    return gather(_units(files), files)


def _units(files: CorpusFiles) -> Iterator[Unit]:
    number = 0
    paths = data_files(files.paths[0])
    memory = _MEMORY + _MEMORY_PER_BYTE * max(path.stat().st_size for path in paths)
    try:
        for rows in isolated_items(read_rows, files, paths, memory=memory, seconds=_SECONDS):
            if isinstance(rows, _Wrong):
                raise Fault(*rows)
            for source, target in rows:
                number += 1
                yield Unit(number, source, target)
    except Lost as error:
        raise Fault("damaged", str(error)) from error


class _Wrong(NamedTuple):
    """What makes the rest of a file unreadable: see `Fault`."""

    reason: str
    message: str


def read_rows(files: CorpusFiles, paths: Sequence[Path]) -> Iterator[list[tuple[str | None, str | None]] | _Wrong]:
    """The texts of some rows at a time, in the process that may die."""
    try:
        for path in paths:
            most = FREE_EXPANSION + MAX_EXPANSION * path.stat().st_size
            for batch in _batches(path):
                rows = list(zip(*_sides(batch, files), strict=True))
                most -= sum(len(text) for row in rows for text in row if text)
                if most < 0:
                    raise Fault("bomb", path.name)
                yield rows
    except Fault as fault:
        yield _Wrong(fault.reason, fault.message)
    except UserError:
        raise
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in ("pyarrow", "builtins") or isinstance(error, MemoryError):
            raise
        yield _Wrong("damaged", f"{path.name}: {error}")


def data_files(place: Path) -> list[Path]:
    """The files of a data set, in their order.

    Raises:
        UserError: there is none, or there are several splits to choose from.
    """
    if not place.is_dir():
        return [regular_file(place, "a corpus' file")]
    found = sorted(path for path in place.iterdir() if path.suffix in (".arrow", ".parquet"))
    found = [path for path in found if path.name != "indices.arrow" and not path.name.startswith("cache-")]
    if not found:
        splits = sorted(path.name for path in place.iterdir() if path.is_dir() and any(path.glob("*.arrow")))
        which = f"; give one of its splits: {', '.join(splits)}" if splits else ""
        raise UserError(f"`{place}` must be a folder of Arrow or Parquet files, but has none{which}.")
    return found


def _batches(path: Path) -> Iterator[Any]:
    """Record batches of a file, some rows at a time."""
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ImportError as error:
        raise UserError("A folder of `datasets` needs pyarrow: `pip install 'fairseq_mtmoe[datasets]'`.") from error
    arrow.set_memory_pool(arrow.system_memory_pool())  # others take addresses by the gigabyte
    arrow.set_cpu_count(1)
    with path.open("rb") as file:
        magic = file.read(6)
        file.seek(0)
        if magic.startswith(MAGIC[0]):
            table = parquet.ParquetFile(file)
            _check_size(table.metadata, path)
            _check_rows(table.metadata.num_rows, path)
            yield from table.iter_batches(_ROWS, use_threads=False)
            return
        source = arrow.memory_map(str(path))
        if magic.startswith(MAGIC[1]):
            reader = arrow.ipc.open_file(source)
            batches = (reader.get_batch(index) for index in range(reader.num_record_batches))
        else:
            batches = iter(arrow.ipc.open_stream(source))
        for batch in batches:
            _check_rows(batch.num_rows, path)
            batch.validate(full=True)
            for start in range(0, batch.num_rows, _ROWS):
                yield batch.slice(start, _ROWS)
        if magic.startswith(MAGIC[2]) and not _ends(file):
            raise Fault("truncated", f"{path.name} has no end")


def _ends(file: BinaryIO) -> bool:
    """Whether an Arrow stream has the mark of its end: one that is cut between two batches looks whole otherwise."""
    file.seek(-8, os.SEEK_END)
    return file.read() == b"\xff\xff\xff\xff\0\0\0\0"


def _check_size(metadata: Any, path: Path) -> None:
    """See that no group of rows, which is read together, grows out of all proportion."""
    sizes = (metadata.row_group(index).total_byte_size for index in range(metadata.num_row_groups))
    if max(sizes, default=0) > max(MAX_EXPANSION * path.stat().st_size, 0):
        raise Fault("bomb", path.name)


def _check_rows(rows: int, path: Path) -> None:
    """See that there are not so many rows as no file of this size has: where all are the same, they take no bytes."""
    if rows * _BYTES_OF_A_ROW > FREE_EXPANSION + MAX_EXPANSION * path.stat().st_size:
        raise Fault("bomb", f"{path.name} says that it has {rows:,} rows")


def _sides(batch: Any, files: CorpusFiles) -> tuple[list[str | None], list[str | None]]:
    """Both columns of a batch."""
    if not batch.num_rows:
        return [], []
    first = batch.slice(0, 1).to_pylist()[0]
    keys = find_keys(first, files)
    if keys is None:
        raise UserError(unknown_keys(first, files))
    source, target = (_column(batch, key) for key in keys)
    return source, target


def _column(batch: Any, keys: tuple[str, ...]) -> list[str | None]:
    import pyarrow.compute

    column = batch.column(keys[0])
    for key in keys[1:]:
        column = pyarrow.compute.struct_field(column, key)
    # of a text that is too long for a corpus as much as shows that it is
    return [text[: MAX_LINE + 1] if isinstance(text, str) else None for text in column.to_pylist()]
