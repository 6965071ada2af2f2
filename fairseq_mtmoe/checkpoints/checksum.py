"""Checksums of checkpoint files: a SHA-256 in the zip archive's comment.

The comment is `mtmoe sha256:<64 lower-case hex digits>` in the archive's last record (EOCD), so
stock torch still reads the file. The digest covers every byte before the comment, with the
comment's final length. Without a comment, the CRC-32 of each record must be right. Files from
before torch 1.6 are no archives and cannot be checked.
"""

import errno
import hashlib
import os
import struct
import zipfile
from pathlib import Path
from typing import BinaryIO

ARCHIVE = b"PK\x03\x04"  # start of an archive; torch, too, tells them from older files by it
_PREFIX = b"mtmoe sha256:"
_COMMENT_SIZE = len(_PREFIX) + 64
_LENGTH = struct.Struct("<H")  # an EOCD record's last field: the comment's length
_EOCD = b"PK\x05\x06"
_EOCD_SIZE = 22
_FOLDER = 0x10  # attribute of a zip record whose content torch's reader skips
# torch's pickled magic number: start of files before 1.6
_LEGACY_MAGIC = bytes.fromhex("8a0a6cfc9c46f9206aa850192e")
_BLOCK = 1 << 20


class Damaged(Exception):
    """A file differs from what was written."""


def write_checksum(path: str | Path) -> str:
    """Write a finished archive's checksum into its comment; return the hex digits."""
    with open(path, "r+b") as file:
        assert _comment_length(file) == 0, "only a finished archive without a comment can get one"
        file.seek(-_LENGTH.size, os.SEEK_END)
        file.write(_LENGTH.pack(_COMMENT_SIZE))
        file.seek(0)
        digest = hashlib.file_digest(file, "sha256").hexdigest()  # leaves the file at its end
        file.write(_PREFIX + digest.encode())
    return digest


def verify(file: BinaryIO) -> str | None:
    """Verify an open file by its checksum or its records (Damaged).

    Returns the digest in hex, or None if the file has none.
    """
    if is_legacy(file):
        return None
    if _comment_length(file) == 0:
        _check_records(file)
        return None
    if _comment_length(file, before_end=_COMMENT_SIZE) != _COMMENT_SIZE:
        raise Damaged
    left = os.fstat(file.fileno()).st_size - _COMMENT_SIZE
    digest = hashlib.sha256()
    file.seek(0)
    while block := file.read(min(left, _BLOCK)):
        digest.update(block)
        left -= len(block)
    if file.read() != _PREFIX + digest.hexdigest().encode():
        raise Damaged
    return digest.hexdigest()


def identity(path: str | Path) -> str:
    """Return a checkpoint's identity: its unverified checksum, or its bytes' digest."""
    with open(path, "rb") as file:
        if _comment_length(file, before_end=_COMMENT_SIZE) == _COMMENT_SIZE:
            file.seek(-_COMMENT_SIZE, os.SEEK_END)
            comment = file.read()
            if comment.startswith(_PREFIX):
                return comment.removeprefix(_PREFIX).decode("ascii", errors="replace")
        file.seek(0)
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_legacy(file: BinaryIO) -> bool:
    """Return whether the file has torch's format from before 1.6."""
    file.seek(0)
    return _LEGACY_MAGIC in file.read(32)


def is_archive(file: BinaryIO) -> bool:
    """Return whether the file has torch's current format."""
    file.seek(0)
    return file.read(len(ARCHIVE)) == ARCHIVE


def _comment_length(file: BinaryIO, before_end: int = 0) -> int | None:
    """Return the comment's length in the EOCD record; None without a record.

    The record ends `before_end` bytes before the file does.
    """
    start = os.fstat(file.fileno()).st_size - before_end - _EOCD_SIZE
    if start < 0:
        return None
    file.seek(start)
    record = file.read(_EOCD_SIZE)
    return int(_LENGTH.unpack(record[-_LENGTH.size :])[0]) if record.startswith(_EOCD) else None


def _check_records(file: BinaryIO) -> None:
    """Verify each record's CRC (Damaged).

    Compressed, skipped and duplicate records are refused: torch and Python read them differently.
    """
    if not is_archive(file):
        raise Damaged
    try:
        with zipfile.ZipFile(file) as archive:
            records = archive.infolist()
            are_plain = all(
                (record.compress_type, record.compress_size)
                == (zipfile.ZIP_STORED, record.file_size)
                and not record.external_attr & _FOLDER
                for record in records
            )
            names = {record.filename for record in records}
            if not are_plain or len(names) < len(records) or archive.testzip() is not None:
                raise Damaged
    # A damaged directory sends Python's reader anywhere, even before the file's start (EINVAL).
    except Exception as error:
        if isinstance(error, OSError) and error.errno != errno.EINVAL:
            raise
        raise Damaged from error
