"""How many sentences a binarized file holds, read from its index without loading it, and whether it is whole.

The formats are those that `fairseq-preprocess` writes: `mmap` (the default), and the older `lazy` and `cached`.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from typing import BinaryIO

from fairseq_mtmoe.errors import UserError

# Bytes per number, by the code that fairseq writes in the header.
_ITEM_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 8, 7: 8, 8: 2, 9: 4, 10: 8}


def count_sentences(prefix: str) -> int | None:
    """The number of sentences in `prefix.bin`, or None if its format is another than those above.

    Raises:
        UserError: the file is empty, or shorter than its index says.
    """
    reader = _reader(prefix)
    if reader is None:
        return None
    try:
        with open(f"{prefix}.idx", "rb") as index:
            count, data_bytes = reader(index, os.path.getsize(f"{prefix}.idx"))
    except (struct.error, KeyError):  # KeyError: a type of number that there is not
        raise _truncated(f"{prefix}.idx") from None
    if count == 0:
        raise UserError(f"`{prefix}.bin` must hold at least one sentence, but is empty; preprocess it again.")
    if os.path.getsize(f"{prefix}.bin") < data_bytes:
        raise _truncated(f"{prefix}.bin")
    return count


def _reader(prefix: str) -> Callable[[BinaryIO, int], tuple[int, int]] | None:
    if not (os.path.isfile(f"{prefix}.idx") and os.path.isfile(f"{prefix}.bin")):
        return None
    with open(f"{prefix}.idx", "rb") as index:
        magic = index.read(8)
    if magic == b"MMIDIDX\0":
        return _read_mmap
    if magic == b"TNTIDX\0\0":
        return _read_cached
    # An index that was cut within its first bytes has no magic number to tell it by.
    return _read_mmap if len(magic) < 8 else None


def _read_mmap(index: BinaryIO, size: int) -> tuple[int, int]:
    """Number of sentences, and bytes of data: `magic(9) version(8) type(1) count(8) lengths(4·n) addresses(8·n)`."""
    _, code, count = struct.unpack("<QBQ", index.read(26)[9:])
    if count == 0:
        return 0, 0
    if size < 26 + 12 * count:
        raise struct.error
    index.seek(26 + 4 * (count - 1))
    (last_length,) = struct.unpack("<i", index.read(4))
    index.seek(26 + 12 * count - 8)
    (last_address,) = struct.unpack("<q", index.read(8))
    return count, last_address + last_length * _ITEM_SIZES[code]


def _read_cached(index: BinaryIO, size: int) -> tuple[int, int]:
    """The same: `magic(8) version(8) type(8) item size(8) count(8) s(8) dimensions(8·(n+1)) addresses(8·(n+1)) …`."""
    _, _, item_size, count, lengths = struct.unpack("<QQQQQ", index.read(48)[8:])
    if size < 48 + 16 * (count + 1) + 8 * lengths:
        raise struct.error
    index.seek(48 + 16 * (count + 1) - 8)
    (end,) = struct.unpack("<q", index.read(8))
    return count, end * item_size


def _truncated(path: str) -> UserError:
    return UserError(f"`{path}` must be a whole file, but is truncated or damaged; preprocess or copy it again.")
