"""A file of lines with checksums, by which a killed process resumes.

A torn line ends the journal and is overwritten.
"""

import fcntl
import json
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.io.files import open_in_place, read_bytes
from fairseq_mtmoe.io.typed import fault


def entries(path: Path, kind: Any = Any) -> list[Any]:
    """Return the values before the first torn line (UserError: one is not of `kind`).

    Without a file there are none.
    """
    values = [value for value, _ in _whole_lines(read_bytes(path, "a journal"))] if os.path.lexists(path) else []
    for number, value in enumerate(values, start=1):
        found = fault(value, kind)
        if found is not None:
            raise UserError(f"Line {number} of the journal `{path}` {found}; remove the file to begin anew.")
    return values


class Journal:
    """A journal to append to, for one process at a time (UserError).

    A torn end is removed.
    """

    def __init__(self, path: Path, in_use: str | None = None) -> None:
        """Open the journal; `in_use` is the error if another process has it open."""
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = _locked(path)
            content = self._file.read()
            end = max((end for _, end in _whole_lines(content)), default=0)
            self._file.seek(end)
            self._file.truncate()
        except BlockingIOError as error:
            sentence = f"`{path.parent}` must be a folder that no other command writes to, but is not."
            raise UserError(in_use or sentence) from error
        except OSError as error:
            raise UserError(f"`{path}` cannot be written: {error.strerror or error}.") from error

    def add(self, value: object) -> None:
        """Append a JSON value, and wait until it is on the disk (UserError: it fails)."""
        text = json.dumps(value, ensure_ascii=False).encode()
        try:
            self._file.write(b"%08x %s\n" % (zlib.crc32(text), text))
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise UserError(f"`{self.path}` cannot be written: {error.strerror or error}.") from error

    def replace(self, value: object) -> None:
        """Replace all values by one; a kill leaves this or the last value at the start.

        Behind the new value, a killed process leaves a torn line or old lines.
        """
        self._file.seek(0)
        self.add(value)
        self._file.truncate()

    def clear(self) -> None:
        """Remove all lines."""
        self._file.seek(0)
        self._file.truncate()

    def remove(self) -> None:
        """Delete the file: the work is done."""
        self.path.unlink(missing_ok=True)
        self._file.close()

    def close(self) -> None:
        """Close the file, and delete it if it is empty."""
        if not self._file.closed and not os.fstat(self._file.fileno()).st_size:
            self.path.unlink(missing_ok=True)
        self._file.close()


def _locked(path: Path) -> BinaryIO:
    """Return the file, open and locked.

    Another process may delete it, empty, before it is locked.
    """
    while True:
        file: BinaryIO = open_in_place(path, "r+b")
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(file.fileno()).st_nlink:
            return file
        file.close()


def _whole_lines(content: bytes) -> Iterator[tuple[Any, int]]:
    """Yield the values of whole lines, each with its end's offset."""
    offset = 0
    for line in content.splitlines(keepends=True):
        offset += len(line)
        text = line[9:-1]
        if not line.endswith(b"\n") or line[:9] != b"%08x " % zlib.crc32(text):
            return
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return
        yield value, offset
