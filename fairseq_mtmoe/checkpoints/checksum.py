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
import os
import struct
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

_PREFIX = b"mtmoe sha256:"
_COMMENT_SIZE = len(_PREFIX) + 64
_LENGTH = struct.Struct("<H")  # an EOCD record's last field: how long the comment is
_EOCD = b"PK\x05\x06"
_EOCD_SIZE = 22
ARCHIVE = b"PK\x03\x04"  # how an archive begins, by which torch, too, tells them from its files of before 1.6
_FOLDER = 0x10  # the attribute of a zip record that makes torch's reader skip its content
_LEGACY_MAGIC = bytes.fromhex("8a0a6cfc9c46f9206aa850192e")  # torch's magic number, pickled: files before 1.6 begin so


class Damaged(Exception):
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


def verify(file: BinaryIO) -> str | None:
    """Read a whole open file and compare it with its checksum, or with its records' where it has none.

    Returns:
        The digest of a file with a checksum, in hex; None for one without, and for one from before torch 1.6.

    Raises:
        Damaged: the file is truncated or damaged.
        OSError: it cannot be read.
    """
    if is_legacy(file):
        return None
    if _comment_length(file) == 0:
        _check_records(file)
        return None
    size = os.fstat(file.fileno()).st_size
    if _comment_length(file, before_end=_COMMENT_SIZE) != _COMMENT_SIZE:
        raise Damaged
    digest = hashlib.file_digest(_Head(file, size - _COMMENT_SIZE), "sha256").hexdigest()
    if file.read(_COMMENT_SIZE + 1) != _PREFIX + digest.encode():
        raise Damaged
    return digest


def identity(path: str | Path) -> str:
    """A digest that tells a checkpoint from others: its checksum's, which is not compared, or else its bytes'.

    It opens the file for itself, before anything loads it: whoever has scores of this checkpoint need not.

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


def is_legacy(file: BinaryIO) -> bool:
    """Whether the file is of the format that torch wrote before 1.6."""
    file.seek(0)
    return _LEGACY_MAGIC in file.read(32)


def is_plain(archive: zipfile.ZipFile) -> bool:
    """Whether torch and Python read the same in an archive, and not more than lies in it: its records are as torch
    writes them, not compressed, not skipped as folders, no two of one name or over the same bytes."""
    records = archive.infolist()
    return (
        len({record.filename for record in records}) == len(records)
        and sum(record.file_size for record in records) <= archive.start_dir
        and all(
            record.compress_type == zipfile.ZIP_STORED
            and record.compress_size == record.file_size
            and not record.external_attr & _FOLDER
            for record in records
        )
    )


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
    if file.read(len(ARCHIVE)) != ARCHIVE:
        raise Damaged
    try:
        with zipfile.ZipFile(file) as archive:
            if not is_plain(archive) or archive.testzip() is not None:
                raise Damaged
    # A damaged directory sends Python's reader anywhere, even before the file's start (EINVAL).
    except (zipfile.BadZipFile, RuntimeError, ValueError, EOFError, OverflowError, struct.error) as error:
        raise Damaged from error
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        raise Damaged from error
