"""Checkpoint files that say whether they are whole: a sha256 of their bytes in the zip archive's comment.

It is `mtmoe sha256:<64 lower-case hex digits>` in the archive's last record (EOCD), so that stock torch still reads the
file; hashed is every byte before the comment, with the comment's final length. Without a comment the CRC-32 of each
record must be right. Of files from before torch 1.6, which are no archives, nothing can be checked.
"""

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
    """Compare an open file with its checksum, or its records'; return the digest in hex, None without one (Damaged)."""
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
    """A digest that tells a checkpoint from others: its checksum's, not compared, or else its bytes'."""
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
    """The comment's length in the EOCD record that ends `before_end` bytes before the file; None: no record."""
    start = os.fstat(file.fileno()).st_size - before_end - _EOCD_SIZE
    if start < 0:
        return None
    file.seek(start)
    record = file.read(_EOCD_SIZE)
    return int(_LENGTH.unpack(record[-_LENGTH.size :])[0]) if record.startswith(_EOCD) else None


def _check_records(file: BinaryIO) -> None:
    """Compare each record with its CRC, and refuse what torch and Python read apart: packed, skipped, of one name."""
    if not is_archive(file):
        raise Damaged
    try:
        with zipfile.ZipFile(file) as archive:
            records = archive.infolist()
            are_plain = all(
                (one.compress_type, one.compress_size) == (zipfile.ZIP_STORED, one.file_size)
                and not one.external_attr & _FOLDER
                for one in records
            )
            names = {record.filename for record in records}
            if not are_plain or len(names) < len(records) or archive.testzip() is not None:
                raise Damaged
    # A damaged directory sends Python's reader anywhere, even before the file's start (EINVAL).
    except (zipfile.BadZipFile, RuntimeError, ValueError, EOFError, OverflowError, struct.error, OSError) as error:
        if isinstance(error, OSError) and error.errno != errno.EINVAL:
            raise
        raise Damaged from error
