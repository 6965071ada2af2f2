"""Writers of `fairseq-preprocess`'s formats: dictionaries, `.bin` and `.idx`.

The last two are fairseq's `MMapIndexedDataset`.

The writers do not import fairseq, which takes seconds and writes one sentence at a time. Tests
compare both.
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
EOS = SPECIAL.index("</s>")
UNKNOWN = SPECIAL.index("<unk>")
_MAGIC = b"MMIDIDX\x00\x00"
_VERSION = 1
_CODES = {np.uint16: 8, np.uint32: 9}  # of fairseq's `indexed_dataset._code_to_dtype`


def write_dictionary(path: Path, symbols: Sequence[str]) -> None:
    """Write `dict.xx.txt` like fairseq's `Dictionary.save`."""
    path.write_text("".join(f"{symbol} 1\n" for symbol in symbols), encoding="utf-8")


def id_type(symbols: int) -> type[np.uint16] | type[np.uint32]:
    """Return fairseq's `best_fitting_int_dtype` for a dictionary of this size."""
    return np.uint16 if symbols < 65500 else np.uint32


@contextmanager
def writer(
    prefix: Path, symbols: int
) -> Iterator[Callable[[NDArray[Any], NDArray[np.int32]], None]]:
    """Write `.bin` and `.idx` like fairseq's `MMapIndexedDatasetBuilder`.

    Both are complete at the end.

    Yields a function that adds sentences, given their concatenated ids and their lengths. `symbols`
    decides the ids' type.
    """
    dtype = id_type(symbols)
    parts = [np.zeros(0, np.int32)]
    with open(f"{prefix}.bin", "wb") as ids_file:

        def add(ids: NDArray[Any], lengths: NDArray[np.int32]) -> None:
            ids_file.write(ids.astype(dtype, copy=False).tobytes())
            parts.append(lengths)

        yield add
    lengths = np.concatenate(parts)
    addresses = np.cumsum(lengths, dtype=np.int64)  # in bytes
    addresses -= lengths
    addresses *= np.dtype(dtype).itemsize
    with open(f"{prefix}.idx", "wb") as index:
        index.write(_MAGIC + struct.pack("<QBQ", _VERSION, _CODES[dtype], len(lengths)))
        lengths.tofile(index)
        addresses.tofile(index)
