"""Number of sentences in a binarized file, read from its index, and checks that the file is whole.

The formats are `fairseq-preprocess`'s: `mmap`, and the older `lazy` and `cached`. fairseq trusts the index when it maps
the file, so sizes and ids are checked first.
"""

import os
import struct
from dataclasses import dataclass

import numpy as np

from fairseq_mtmoe.errors import UserError, raise_invalid
from fairseq_mtmoe.io.files import read_text, regular_file

# Integer types by the code in fairseq's header.
_TYPES: dict[int, type[np.integer]] = {
    1: np.uint8, 2: np.int8, 3: np.int16, 4: np.int32, 5: np.int64, 8: np.uint16, 9: np.uint32, 10: np.uint64,
}  # fmt: skip
_MMAP, _CACHED, _HUFFMAN = b"MMIDIDX\0\0", b"TNTIDX\0\0", b"HUFFIDX"
_FORMATS = {_MMAP: ("mmap",), _CACHED: ("cached", "lazy"), _HUFFMAN: ("huffman",)}


@dataclass(frozen=True)
class _Index:
    sentences: int
    tokens: int
    type: type[np.integer]
    zero: int  # stored number of id 0


def count_sentences(prefix: str, impl: str | None = None) -> int | None:
    """Return the number of sentences in `prefix.bin`; None for other formats (UserError: damaged, or not `impl`)."""
    index = _read_index(prefix, impl)
    return None if index is None else index.sentences


def check_ids(prefix: str, symbols: int, impl: str | None = None) -> None:
    """Check that `prefix.bin` has only ids of a dictionary of this many symbols (UserError: it has others)."""
    index = _read_index(prefix, impl)
    if index is None:
        return
    tokens = np.memmap(f"{prefix}.bin", index.type, "r", shape=(index.tokens,))
    for extreme in (int(tokens.min()), int(tokens.max())):
        if not 0 <= extreme - index.zero < symbols:
            raise UserError(
                f"`{prefix}.bin` must hold ids of its dictionary, from 0 to {symbols - 1}, but holds "
                f"{extreme - index.zero}; preprocess it again with this dictionary."
            )


def _read_index(prefix: str, impl: str | None) -> _Index | None:
    if os.path.lexists(prefix) and impl in (None, "raw"):
        read_text(prefix)  # fairseq prefers it to a binarized file
    if impl == "raw":
        return None
    if os.path.lexists(prefix) and not os.path.lexists(f"{prefix}.idx"):
        raise_invalid("--dataset-impl", f"raw, the format of {prefix}", impl)
    path, data = (
        regular_file(f"{prefix}.idx", "an index"),
        regular_file(f"{prefix}.bin", "binarized data"),
    )
    content = np.memmap(path, np.uint8, "r") if path.stat().st_size else np.zeros(0, np.uint8)
    magic = next((magic for magic in _FORMATS if content[: len(magic)].tobytes() == magic), None)
    if magic is None:
        raise _damaged(path)
    if impl not in (None, *_FORMATS[magic]):
        raise_invalid(
            "--dataset-impl", f"{' or '.join(_FORMATS[magic])}, the format of {path}", impl
        )
    if magic == _HUFFMAN:
        return None
    try:
        index = _read_mmap(content) if magic == _MMAP else _read_cached(content)
    except (struct.error, ValueError, KeyError):  # KeyError: unknown type code
        raise _damaged(path) from None
    if index.sentences == 0:
        raise UserError(
            f"`{prefix}.bin` must hold at least one sentence, but is empty; preprocess it again."
        )
    if data.stat().st_size != index.tokens * np.dtype(index.type).itemsize:
        raise _damaged(data)
    return index


def _read_mmap(content: np.ndarray) -> _Index:
    """Read `magic(9) version(8) type(1) count(8) lengths(4·n) addresses(8·n)`."""
    _, code, count = struct.unpack("<QBQ", content[9:26].tobytes())
    _check_size(content, 26 + 12 * count)
    lengths = np.frombuffer(content[26 : 26 + 4 * count], np.int32)
    return _Index(count, int(lengths.sum(dtype=np.int64)), _TYPES[code], 0)


def _read_cached(content: np.ndarray) -> _Index:
    """Read the older format, whose addresses are in tokens.

    `magic(8) version(8) type(8) item size(8) count(8) s(8) dimensions(8·(n+1)) addresses(8·(n+1)) lengths(8·s)`
    """
    _, code, _, count, num_lengths = struct.unpack("<QQQQQ", content[8:48].tobytes())
    end = 48 + 16 * (count + 1)
    _check_size(content, end + 8 * num_lengths)
    (tokens,) = struct.unpack("<Q", content[end - 8 : end].tobytes())
    return _Index(count, tokens, _TYPES[code], 1)


def _check_size(content: np.ndarray, size: int) -> None:
    if len(content) < size:
        raise ValueError("the index is too short")


def _damaged(path: object) -> UserError:
    return UserError(
        f"`{path}` must be a whole file, but is truncated or damaged; preprocess or copy it again."
    )
