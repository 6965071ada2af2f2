"""Number of sentences in a binarized file, and checks that the file is whole.

The format is `fairseq-preprocess`'s, `mmap`. fairseq trusts the index when it maps the file, so
sizes and ids are checked first.
"""

import os
import struct
from dataclasses import dataclass

import numpy as np

from fairseq_mtmoe.core.errors import UserError, raise_invalid
from fairseq_mtmoe.core.files import read_text, regular_file

# Integer types by the code in fairseq's header.
_TYPES: dict[int, type[np.integer]] = {
    1: np.uint8,
    2: np.int8,
    3: np.int16,
    4: np.int32,
    5: np.int64,
    8: np.uint16,
    9: np.uint32,
    10: np.uint64,
}


@dataclass(frozen=True)
class _Index:
    sentences: int
    tokens: int
    type: type[np.integer]
    size: int  # bytes of the index


def count_sentences(prefix: str, impl: str | None = None) -> int | None:
    """Return the number of sentences in `prefix.bin`; None for other formats.

    Raises `UserError` if the file is damaged or its format is not `impl`.
    """
    index = _read_index(prefix, impl)
    return None if index is None else index.sentences


def check_ids(prefix: str, symbols: int, impl: str | None = None) -> None:
    """Check that ids in `prefix.bin` are below the number of symbols (UserError)."""
    index = _read_index(prefix, impl)
    if index is None:
        return
    tokens = np.memmap(f"{prefix}.bin", index.type, "r", shape=(index.tokens,))
    for extreme in (int(tokens.min()), int(tokens.max())):
        if not 0 <= extreme < symbols:
            raise UserError(
                f"`{prefix}.bin` must hold ids of its dictionary, from 0 to {symbols - 1}, but "
                f"holds {extreme}; preprocess it again with this dictionary."
            )


def _read_index(prefix: str, impl: str | None) -> _Index | None:
    if os.path.lexists(prefix) and impl in (None, "raw"):
        read_text(prefix)  # fairseq prefers it to a binarized file
    if impl == "raw":
        return None
    if os.path.lexists(prefix) and not os.path.lexists(f"{prefix}.idx"):
        raise_invalid("--dataset-impl", f"raw, the format of {prefix}", impl)
    path = regular_file(f"{prefix}.idx", "an index")
    data = regular_file(f"{prefix}.bin", "binarized data")
    if not path.stat().st_size:
        raise _damaged(path)
    content = np.memmap(path, np.uint8, "r")
    magic = next((begin for begin in _FORMATS if content[: len(begin)].tobytes() == begin), None)
    if magic is None:
        raise _damaged(path)
    impls = _FORMATS[magic]
    if impl not in (None, *impls):
        raise_invalid("--dataset-impl", f"{' or '.join(impls)}, the format of {path}", impl)
    if impls != ("mmap",):
        return None
    try:
        index = _read_mmap(content)
    except (struct.error, ValueError, KeyError):  # KeyError: unknown type code
        raise _damaged(path) from None
    if len(content) < index.size:
        raise _damaged(path)
    if index.sentences == 0:
        raise UserError(f"`{prefix}.bin` contains no sentence; preprocess it again.")
    if data.stat().st_size != index.tokens * np.dtype(index.type).itemsize:
        raise _damaged(data)
    return index


def _read_mmap(content: np.ndarray) -> _Index:
    """Read `magic(9) version(8) type(1) count(8) lengths(4·n) addresses(8·n)`."""
    _, code, count = struct.unpack("<QBQ", content[9:26].tobytes())
    lengths = np.frombuffer(content[26 : 26 + 4 * count], np.int32)
    return _Index(count, int(lengths.sum(dtype=np.int64)), _TYPES[code], 26 + 12 * count)


# The values of `--dataset-impl` by the beginning of an index; only `mmap` is read here.
_FORMATS = {
    b"MMIDIDX\0\0": ("mmap",),
    b"TNTIDX\0\0": ("cached", "lazy"),
    b"HUFFIDX": ("huffman",),
}


def _damaged(path: object) -> UserError:
    return UserError(f"`{path}` is truncated or damaged; preprocess or copy it again.")
