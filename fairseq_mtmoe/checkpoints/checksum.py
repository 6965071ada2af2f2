"""Checkpoint files that say whether they are whole: a sha256 of their bytes in the zip archive's comment.

torch writes a zip archive and checks none of its checksums on reading: a flipped bit loads as another weight. Ours is
`mtmoe sha256:<64 lower-case hex digits>` as the comment of the archive's last record (its end-of-central-directory
record, EOCD), so that stock torch still reads the file. What is hashed is every byte before the comment, from the
first of the file to the two of the comment's length, which is already its final 77. A file is then one of three:

- with a checksum: it ends in an EOCD record with exactly our comment, and the digest is right;
- without one (stock fairseq's, or of an older version of ours): it ends in an EOCD record without a comment, and the
  checksum (CRC-32) that the archive keeps of each record is right;
- damaged: anything else.

Before torch 1.6 files were no archives and have no checksum: of those nothing can be checked.
"""

from __future__ import annotations

import errno
import hashlib
import io
import math
import os
import struct
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

import torch

from fairseq_mtmoe.checkpoints.contents import is_plain, read
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.io.files import regular_file

_PREFIX = b"mtmoe sha256:"
_COMMENT_SIZE = len(_PREFIX) + 64
_LENGTH = struct.Struct("<H")  # an EOCD record's last field: how long the comment is
_EOCD = b"PK\x05\x06"
_EOCD_SIZE = 22
_FIRST_RECORD = b"PK\x03\x04"
_LEGACY_MAGIC = bytes.fromhex("8a0a6cfc9c46f9206aa850192e")  # torch's magic number, pickled: files before 1.6 begin so


class _Damaged(Exception):
    """A file is not what was written."""


class _Head(io.RawIOBase):
    """The first `size` bytes of a file, to be read once."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        file.seek(0)
        self._file, self._left = file, size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._file.read(min(len(buffer), self._left))
        buffer[: len(data)] = data
        self._left -= len(data)
        return len(data)


def write_checksum(path: str | Path) -> str:
    """Write a finished archive's checksum into its comment, before it gets its name; returns the hex digits."""
    with open(path, "r+b") as file:
        assert _comment_length(file) == 0, "only a finished archive without a comment can get one"
        file.seek(-_LENGTH.size, os.SEEK_END)
        file.write(_LENGTH.pack(_COMMENT_SIZE))
        file.seek(0)
        digest = hashlib.file_digest(file, "sha256").hexdigest()  # leaves the file at its end
        file.write(_PREFIX + digest.encode())
    return digest


def verify(path: str | Path) -> str | None:
    """Read the whole file and compare it with its checksum, or with its records' where it has none.

    Returns:
        The digest of a file with a checksum, in hex; None for one without, and for one from before torch 1.6.

    Raises:
        UserError: the file is truncated or damaged, or it is a folder, a pipe or the like.
        OSError: the file cannot be read.
    """
    with open(regular_file(path, "a checkpoint file"), "rb") as file:
        return verify_open(path, file)


def verify_open(path: str | Path, file: BinaryIO) -> str | None:
    """As `verify`, of a file that is open; `path` is for the sentence."""
    try:
        return _inspect_open(file)
    except _Damaged as error:
        raise damaged(path) from error


def identity(path: str | Path) -> str:
    """A digest that tells a checkpoint from others: its checksum's, which is not compared, or else its bytes'.

    Raises:
        OSError: the file cannot be read.
    """
    with open(path, "rb") as file:
        if _comment_length(file, before_end=_COMMENT_SIZE) == _COMMENT_SIZE:
            file.seek(-_COMMENT_SIZE, os.SEEK_END)
            comment = file.read()
            if comment.startswith(_PREFIX):
                return comment.removeprefix(_PREFIX).decode("ascii", errors="replace")
        file.seek(0)
        return hashlib.file_digest(file, "sha256").hexdigest()


def damaged(path: str | Path) -> UserError:
    """The sentence for a damaged file: it names the newest good one beside it, if there is one."""
    return UserError(
        f"`{path}` must be a whole checkpoint, but is truncated or damaged; use an older one{suggested_fallback(path)}."
    )


def suggested_fallback(path: str | Path) -> str:
    """The end of a sentence that tells somebody to use another checkpoint than `path`."""
    other = newest_good(path)
    return f": the newest good one beside it is `{other}`" if other else ", there is no good one beside it"


def newest_good(path: str | Path) -> Path | None:
    """The newest checkpoint in the same folder, other than `path`, that is good; None where there is none.

    The file of some experts, `X.experts/<id>/0-3.pt`, is a part of `X.pt`: what is beside that one counts.
    """
    given = Path(path)
    if len(given.parents) > 2 and given.parents[1].suffix == ".experts":
        given = given.parents[1].with_suffix(".pt")
    return newest_good_in(given.parent, without=given.name)


def newest_good_in(folder: str | Path, without: str = "") -> Path | None:
    """The newest checkpoint in a folder that is whole and whose weights are finite; None where there is none."""
    files = [file for file in Path(folder).glob("checkpoint*.pt") if file.name != without]
    return next((file for file in sorted(files, key=_age) if _is_good(file)), None)


def _age(path: Path) -> float:
    """A key that sorts the newest file first, and last what is no longer there."""
    try:
        return -path.stat().st_mtime
    except OSError:
        return 0.0


def _is_good(path: Path) -> bool:
    """Whether the file and those of its experts are seen to be whole and of one save, and have finite weights."""
    try:
        if _inspect(path) is None:
            with open(path, "rb") as opened:
                if _is_legacy(opened):  # it may be whole, or not
                    return False
        state = read(path, mapped=True)
        experts = state.get("experts", {})
        folder = path.with_suffix(".experts") / str(experts.get("id"))
        digests = {folder / entry["name"]: entry["sha256"] for entry in experts.get("files", ())}
        if any(_inspect(file) != digest for file, digest in digests.items()):
            return False
        return all(_has_finite_weights(content) for content in (state, *(read(file, mapped=True) for file in digests)))
    except Exception:  # whatever is wrong with it, it is nothing to go on from
        return False


def _has_finite_weights(content: dict[str, Any]) -> bool:
    tensors = [value for value in content.get("model", {}).values() if torch.is_tensor(value) and value.numel()]
    return all(
        tensor.numel() * tensor.element_size() <= tensor.untyped_storage().nbytes()  # else it repeats a small memory
        and bool(torch.linalg.vector_norm(tensor, math.inf).isfinite())
        for tensor in tensors
        if tensor.is_floating_point()
    )


def _inspect(path: str | Path) -> str | None:
    """`verify`, raising `_Damaged`."""
    with open(regular_file(path, "a checkpoint file"), "rb") as file:
        return _inspect_open(file)


def _inspect_open(file: BinaryIO) -> str | None:
    if _is_legacy(file):
        return None
    if _comment_length(file) == 0:
        _check_records(file)
        return None
    size = os.fstat(file.fileno()).st_size
    if _comment_length(file, before_end=_COMMENT_SIZE) != _COMMENT_SIZE:
        raise _Damaged
    digest = hashlib.file_digest(_Head(file, size - _COMMENT_SIZE), "sha256").hexdigest()
    if file.read(_COMMENT_SIZE + 1) != _PREFIX + digest.encode():
        raise _Damaged
    return digest


def _is_legacy(file: BinaryIO) -> bool:
    """Whether the file is of the format that torch wrote before 1.6."""
    file.seek(0)
    return _LEGACY_MAGIC in file.read(32)


def _comment_length(file: BinaryIO, before_end: int = 0) -> int | None:
    """The comment's length in the EOCD record that ends so many bytes before the file does; None if none ends there."""
    start = os.fstat(file.fileno()).st_size - before_end - _EOCD_SIZE
    if start < 0:
        return None
    file.seek(start)
    record = file.read(_EOCD_SIZE)
    return int(_LENGTH.unpack(record[-_LENGTH.size :])[0]) if record.startswith(_EOCD) else None


def _check_records(file: BinaryIO) -> None:
    """Compare each record with its CRC, for want of a checksum, and refuse what torch and Python read apart."""
    file.seek(0)
    if file.read(len(_FIRST_RECORD)) != _FIRST_RECORD:
        raise _Damaged
    try:
        with zipfile.ZipFile(file) as archive:
            if not is_plain(archive) or archive.testzip() is not None:
                raise _Damaged
    # A damaged directory sends Python's reader anywhere, even before the file's start (EINVAL).
    except (zipfile.BadZipFile, RuntimeError, ValueError, EOFError, OverflowError, struct.error) as error:
        raise _Damaged from error
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        raise _Damaged from error
