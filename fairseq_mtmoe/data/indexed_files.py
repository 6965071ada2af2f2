"""Number of sentences in a binarized file, read from its index, and checks that the file is whole.

The formats are `fairseq-preprocess`'s: `mmap`, and the older `lazy` and `cached`. fairseq trusts the index when it maps
the file, so lengths, offsets and ids are checked first.
"""

import os
import struct
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from fairseq_mtmoe.errors import UserError, raise_invalid
from fairseq_mtmoe.io.files import read_text, regular_file

# Integer types by the code in fairseq's header.
_TYPES: dict[int, type[np.integer]] = {
    1: np.uint8, 2: np.int8, 3: np.int16, 4: np.int32, 5: np.int64, 8: np.uint16, 9: np.uint32, 10: np.uint64,
}  # fmt: skip
_MMAP, _CACHED, _HUFFMAN = b"MMIDIDX\0\0", b"TNTIDX\0\0", b"HUFFIDX"
_FORMATS = {_MMAP: ("mmap",), _CACHED: ("cached", "lazy"), _HUFFMAN: ("huffman",)}
_BLOCK = 1 << 20  # sentences checked at a time
_LONGEST = 2**31 - 1


@dataclass(frozen=True)
class _Index:
    sentences: int
    tokens: int
    type: type[np.integer]
    zero: int  # stored number of id 0


def count_sentences(prefix: str, impl: str | None = None, may_be_empty: bool = False) -> int | None:
    """Return the number of sentences in `prefix.bin`; None for other formats (UserError: damaged, or not `impl`)."""
    index = _read_index(prefix, impl, 0 if may_be_empty else 1)
    return None if index is None else index.sentences


def check_ids(prefix: str, symbols: int, impl: str | None = None) -> None:
    """Check that `prefix.bin` has only ids of a dictionary of this many symbols (UserError: it has others)."""
    index = _read_index(prefix, impl, 1)
    if index is None:
        return
    tokens = np.memmap(f"{prefix}.bin", index.type, "r", shape=(index.tokens,))
    for extreme in (int(tokens.min()), int(tokens.max())):
        if not 0 <= extreme - index.zero < symbols:
            raise UserError(
                f"`{prefix}.bin` must hold ids of its dictionary, from 0 to {symbols - 1}, but holds "
                f"{extreme - index.zero}; preprocess it again with this dictionary."
            )


def _read_index(prefix: str, impl: str | None, least: int) -> _Index | None:
    if os.path.lexists(prefix) and impl in (None, "raw"):
        read_text(prefix)  # fairseq prefers it to a binarized file
    if impl == "raw":
        return None
    if os.path.lexists(prefix) and not os.path.lexists(f"{prefix}.idx"):
        raise_invalid("--dataset-impl", f"raw, the format of {prefix}", impl)
    path, data = regular_file(f"{prefix}.idx", "an index"), regular_file(f"{prefix}.bin", "binarized data")
    content = np.memmap(path, np.uint8, "r") if path.stat().st_size else np.zeros(0, np.uint8)
    magic = next((magic for magic in _FORMATS if content[: len(magic)].tobytes() == magic), None)
    if magic is None:
        raise _damaged(path)
    if impl not in (None, *_FORMATS[magic]):
        raise_invalid("--dataset-impl", f"{' or '.join(_FORMATS[magic])}, the format of {path}", impl)
    if magic == _HUFFMAN:
        return None
    try:
        index = (_read_mmap if magic == _MMAP else _read_cached)(content, least)
    except (struct.error, ValueError, KeyError):  # KeyError: unknown type code
        raise _damaged(path) from None
    if index.sentences == 0:
        raise UserError(f"`{prefix}.bin` must hold at least one sentence, but is empty; preprocess it again.")
    if data.stat().st_size < index.tokens * np.dtype(index.type).itemsize:
        raise _damaged(data)
    return index


def _read_mmap(content: np.ndarray, least: int) -> _Index:
    """Read `magic(9) version(8) type(1) count(8) lengths(4·n) addresses(8·n)`, addresses in bytes."""
    version, code, count = struct.unpack("<QBQ", content[9:26].tobytes())
    lengths = _numbers(content, 26, count, np.int32)
    addresses = _numbers(content, 26 + 4 * count, count, np.int64)
    tokens = _count_tokens(lengths, addresses, np.dtype(_TYPES[code]).itemsize, least)
    if version != 1:
        raise ValueError("another version")
    return _Index(count, tokens, _TYPES[code], 0)


def _read_cached(content: np.ndarray, least: int) -> _Index:
    """Read the older format, addresses in tokens; each sentence has one dimension, and so one length.

    `magic(8) version(8) type(8) item size(8) count(8) s(8) dimensions(8·(n+1)) addresses(8·(n+1)) lengths(8·s)`
    """
    version, code, item_size, count, num_lengths = struct.unpack("<QQQQQ", content[8:48].tobytes())
    dimensions = _numbers(content, 48, count + 1, np.int64)
    addresses = _numbers(content, 48 + 8 * (count + 1), count + 1, np.int64)
    lengths = _numbers(content, 48 + 16 * (count + 1), num_lengths, np.int64)
    if (version, item_size, num_lengths) != (1, np.dtype(_TYPES[code]).itemsize, count):
        raise ValueError("another version, type or number of dimensions")
    tokens = _count_tokens(lengths, addresses[:-1], 1, least)
    if addresses[-1] != tokens or _count_tokens(np.ones(count, np.int64), dimensions[:-1], 1, 1) != dimensions[-1]:
        raise ValueError("lengths and addresses disagree")
    return _Index(count, tokens, _TYPES[code], 1)


def _numbers(content: np.ndarray, start: int, count: int, kind: type[np.integer]) -> np.ndarray:
    end = start + count * np.dtype(kind).itemsize
    if end > len(content):
        raise ValueError("the index is too short")
    return np.frombuffer(content[start:end], kind)


def _count_tokens(lengths: np.ndarray, addresses: np.ndarray, unit: int, least: int) -> int:
    """Return the sum of the lengths, block by block (ValueError: a length or address is wrong)."""
    tokens = 0
    for start, end in pairwise([*range(0, len(lengths), _BLOCK), len(lengths)]):
        block = lengths[start:end].astype(np.int64)
        if block.min() < least or block.max() > _LONGEST:
            raise ValueError("a sentence has no length")
        ends = tokens + np.cumsum(block)
        if not np.array_equal(addresses[start:end], (ends - block) * unit):
            raise ValueError("a sentence does not begin where the one before ends")
        tokens = int(ends[-1])
    return tokens


def _damaged(path: object) -> UserError:
    return UserError(f"`{path}` must be a whole file, but is truncated or damaged; preprocess or copy it again.")
