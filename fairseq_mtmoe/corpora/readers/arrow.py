"""Reader of tables in Arrow and Parquet, the files of Hugging Face's `datasets`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.corpora.blocks import CorpusFiles, Segment, excerpt_of, unreadable
from fairseq_mtmoe.corpora.readers.tables import Keys, find_keys, value_of

if TYPE_CHECKING:
    from pyarrow import RecordBatch

PARQUET_MAGIC = b"PAR1"
ARROW_MAGIC = b"ARROW1"
STREAM_MAGIC = b"\xff\xff\xff\xff"  # of Arrow's format for streams, which `save_to_disk` writes
_ROWS = 10_000


def arrow_segments(files: CorpusFiles) -> Iterator[Segment]:
    """Yield the rows of a table.

    Columns are in `fields` (`translation.en` if nested), or detected, as keys of JSON are.

    Raises:
        UserError: the file is damaged, or the columns of both texts are unclear.
    """
    keys: tuple[Keys, Keys] | None = None
    for batch in _batches(files):
        rows = batch.to_pylist()
        keys = keys or find_keys(rows, files)
        for row in rows:
            try:
                yield Segment(value_of(row, keys[0]), value_of(row, keys[1]))
            except LookupError:
                yield Segment(None, None, (), "keys", excerpt_of(str(row)))


def _batches(files: CorpusFiles) -> Iterator[RecordBatch]:
    """Yield a table's rows in batches."""
    try:
        import pyarrow
        from pyarrow import ipc, parquet
    except ModuleNotFoundError as error:
        raise UserError(
            f"Tables of Arrow and Parquet need the Python package {error.name}: run "
            "`pip install 'fairseq_mtmoe[datasets]'`."
        ) from error
    (content,) = files.contents
    try:
        with content.path.open("rb") as file:
            head = file.read(len(ARROW_MAGIC))
            file.seek(0)
            if head.startswith(PARQUET_MAGIC):
                yield from parquet.ParquetFile(file).iter_batches(_ROWS)
            elif head == ARROW_MAGIC:
                reader = ipc.open_file(file)
                yield from map(reader.get_batch, range(reader.num_record_batches))
            else:
                yield from ipc.open_stream(file)
    except (pyarrow.ArrowException, OSError) as error:
        raise unreadable(content.name, error) from error
