"""Writers of `fairseq-preprocess`'s formats: dictionaries, `.bin` and `.idx` (`MMapIndexedDataset`).

They do without fairseq, which takes seconds to import and writes one sentence at a time; tests compare both.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

# fairseq's own symbols, with which every dictionary begins, even if its file lacks them.
SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
EOS, UNKNOWN = SPECIAL.index("</s>"), SPECIAL.index("<unk>")
_MAGIC = b"MMIDIDX\x00\x00"
_VERSION = 1
_CODES = {np.uint16: 8, np.uint32: 9}  # of fairseq's `indexed_dataset._code_to_dtype`
_LENGTHS_AT_ONCE = 1 << 20


def write_dictionary(path: Path, symbols: Sequence[str]) -> None:
    """Write `dict.xx.txt` like fairseq's `Dictionary.save`."""
    path.write_text("".join(f"{symbol} 1\n" for symbol in symbols), encoding="utf-8", newline="\n")


def id_type(symbols: int) -> type[np.uint16] | type[np.uint32]:
    """Return fairseq's `best_fitting_int_dtype` for a dictionary of this size."""
    return np.uint16 if symbols < 65500 else np.uint32


@contextmanager
def writer(
    prefix: Path, symbols: int
) -> Iterator[Callable[[NDArray[Any], NDArray[np.int32]], None]]:
    """Write `.bin` and `.idx` like fairseq's `MMapIndexedDatasetBuilder`; both are complete at the end.

    Yields a function that adds sentences, given their concatenated ids and their lengths. `symbols` decides the ids'
    type.
    """
    dtype = id_type(symbols)
    path = Path(f"{prefix}.lengths")  # temporary, as the index begins with the number of lengths
    try:
        with open(f"{prefix}.bin", "wb") as ids_file, open(path, "wb") as lengths_file:

            def add(ids: NDArray[Any], lengths: NDArray[np.int32]) -> None:
                ids_file.write(ids.astype(dtype, copy=False).tobytes())
                lengths_file.write(lengths.astype(np.int32, copy=False).tobytes())

            yield add
        _write_index(Path(f"{prefix}.idx"), path, dtype)
    finally:
        path.unlink(missing_ok=True)


def _write_index(index: Path, lengths: Path, dtype: type[np.uint16] | type[np.uint32]) -> None:
    """Write `magic version(8) type(1) count(8) lengths(4·n) addresses(8·n)`, addresses in bytes."""
    with open(index, "wb") as out, open(lengths, "rb") as file:
        out.write(
            _MAGIC + struct.pack("<QBQ", _VERSION, _CODES[dtype], lengths.stat().st_size // 4)
        )
        while part := file.read(4 * _LENGTHS_AT_ONCE):
            out.write(part)
        file.seek(0)
        address = 0
        while part := file.read(4 * _LENGTHS_AT_ONCE):
            ends = (
                np.cumsum(np.frombuffer(part, np.int32), dtype=np.int64) * np.dtype(dtype).itemsize
            )
            starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]]) + address
            out.write(starts.tobytes())
            address += int(ends[-1])
