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
import os
import struct
import zipfile
from pathlib import Path
from typing import BinaryIO

ARCHIVE = b"PK\x03\x04"  # how an archive begins, by which torch, too, tells them from its files of before 1.6
_PREFIX = b"mtmoe sha256:"
_COMMENT_SIZE = len(_PREFIX) + 64
_LENGTH = struct.Struct("<H")  # an EOCD record's last field: how long the comment is
_EOCD = b"PK\x05\x06"
_EOCD_SIZE = 22
_FOLDER = 0x10  # the attribute of a zip record that makes torch's reader skip its content
_LEGACY_MAGIC = bytes.fromhex("8a0a6cfc9c46f9206aa850192e")  # torch's magic number, pickled: files before 1.6 begin so
_BLOCK = 1 << 20


class Damaged(Exception):
    """A file is not what was written."""


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
    if _comment_length(file, before_end=_COMMENT_SIZE) != _COMMENT_SIZE:
        raise Damaged
    left, digest = os.fstat(file.fileno()).st_size - _COMMENT_SIZE, hashlib.sha256()
    file.seek(0)
    while block := file.read(min(left, _BLOCK)):
        digest.update(block)
        left -= len(block)
    if file.read() != _PREFIX + digest.hexdigest().encode():
        raise Damaged
    return digest.hexdigest()


def identity(path: str | Path) -> str:
    """A digest that tells a checkpoint from others: its checksum's, which is not compared, or else its bytes'."""
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


def is_archive(file: BinaryIO) -> bool:
    """Whether the file is of today's format."""
    file.seek(0)
    return file.read(len(ARCHIVE)) == ARCHIVE


def _comment_length(file: BinaryIO, before_end: int = 0) -> int | None:
    """The comment's length in the EOCD record that ends so many bytes before the file does; None if none ends there."""
    start = os.fstat(file.fileno()).st_size - before_end - _EOCD_SIZE
    if start < 0:
        return None
    file.seek(start)
    record = file.read(_EOCD_SIZE)
    return int(_LENGTH.unpack(record[-_LENGTH.size :])[0]) if record.startswith(_EOCD) else None


def _check_records(file: BinaryIO) -> None:
    """Compare each record with its CRC, for want of a checksum, and refuse records that torch writes otherwise.

    torch and Python would read them apart: packed ones, skipped ones, two of one name.
    """
    if not is_archive(file):
        raise Damaged
    try:
        with zipfile.ZipFile(file) as archive:
            records = archive.infolist()
            are_plain = all(
                record.compress_type == zipfile.ZIP_STORED
                and record.compress_size == record.file_size
                and not record.external_attr & _FOLDER
                for record in records
            )
            names = {record.filename for record in records}
            if not are_plain or len(names) < len(records) or archive.testzip() is not None:
                raise Damaged
    # A damaged directory sends Python's reader anywhere, even before the file's start (EINVAL).
    except (zipfile.BadZipFile, RuntimeError, ValueError, EOFError, OverflowError, struct.error) as error:
        raise Damaged from error
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        raise Damaged from error
