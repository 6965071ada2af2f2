"""Bytes that are read in full pieces, and what an unpacker's errors mean."""

from __future__ import annotations

import lzma
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from typing import Protocol

from fairseq_mtmoe.data.corpora.readers.faults import FREE_EXPANSION, MAX_EXPANSION, Fault

_DAMAGED = (
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, ValueError),
    *(IndexError, OverflowError, RecursionError),  # of tarfile and zipfile on crafted headers
)


class Source(Protocol):
    """What a `Stream` reads from: files of Python's own and its packers'."""

    def read1(self, size: int, /) -> bytes:
        """Some bytes, at most `size` of them; none at the end."""
        ...


class Stream:
    """Bytes that are read in full pieces. What goes wrong comes as a `Fault`, after every byte before it.

    Memory is constant, and what grows too much ends as a bomb (`MAX_EXPANSION`).
    """

    def __init__(self, source: Source, spent: Callable[[], int]) -> None:
        """
        Args:
            source: where bytes come from.
            spent: how many bytes of the packed file it took so far.
        """
        self._source = source
        self._spent = spent
        self._head = b""
        self._total = 0
        self._fault: Fault | None = None

    def peek(self, size: int) -> bytes:
        """The next bytes, fewer only at the end or before a fault, which is left for `read`."""
        while len(self._head) < size and (data := self._pull(size - len(self._head))):
            self._head += data
        return self._head[:size]

    def read(self, size: int) -> bytes:
        """The next `size` bytes, fewer only at the end or before a fault; none at the end."""
        pieces = [self._head[:size]]
        self._head = self._head[size:]
        missing = size - len(pieces[0])
        while missing and (data := self._pull(missing)):
            pieces.append(data)
            missing -= len(data)
        whole = b"".join(pieces)
        if not whole and size and self._fault:
            raise self._fault
        return whole

    read1 = read

    def _pull(self, size: int) -> bytes:
        if self._fault:
            return b""
        try:
            data = self._source.read1(size)
            self._check(len(data))
        except Fault as fault:
            self._fault = fault
        except Exception as error:
            self._fault = fault_of(error)
        else:
            return data
        return b""

    def _check(self, size: int) -> None:
        """Count bytes, and stop at a bomb."""
        self._total += size
        if self._total > FREE_EXPANSION and self._total > MAX_EXPANSION * self._spent():
            raise Fault("bomb", f"after {self._total >> 20} MiB")


def fault_of(error: Exception) -> Fault:
    """The fault that an unpacker's error stands for; errors of the disk and of our own go on as they are."""
    message = str(error) or type(error).__name__
    if isinstance(error, EOFError) or "unexpected end of data" in message:
        return Fault("truncated", message)
    if isinstance(error, OSError):
        if error.errno is not None:
            raise error
        return Fault("damaged", message)  # gzip's and bz2's
    if isinstance(error, _DAMAGED) or type(error).__name__ == "ZstdError":
        return Fault("damaged", message)
    raise error
