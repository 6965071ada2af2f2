"""Members of tar and zip archives, read one by one and never extracted: their names are only ever compared."""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import cast

from fairseq_mtmoe.data.corpora.readers.faults import Fault, excerpt_of
from fairseq_mtmoe.data.corpora.readers.streams import Source, Stream, fault_of
from fairseq_mtmoe.errors import UserError

_TAR_HEADER = 1 << 16
"""Bytes that a header of a member of a tar archive may have: names, times … A crafted one claims gigabytes."""

_SHOWN_NAMES = 5


def is_zip(magic: bytes) -> bool:
    """Whether a file that begins like this is a zip archive."""
    return magic.startswith((b"PK\x03\x04", b"PK\x05\x06"))


def is_tar(head: bytes) -> bool:
    """Whether a file with these first 512 bytes is a tar archive."""
    return head[257:262] == b"ustar"


def zip_names(raw: io.BufferedReader) -> list[str]:
    """The names of all files in a zip archive."""
    try:
        with zipfile.ZipFile(raw) as archive:
            return [info.filename for info in archive.infolist() if not info.is_dir()]
    except Exception as error:
        raise fault_of(error) from error


def zip_member(raw: io.BufferedReader, path: Path, member: str, stack: ExitStack) -> tuple[Source, int]:
    """A file in a zip archive, and how many bytes it has there."""
    try:
        archive = stack.enter_context(zipfile.ZipFile(raw))
        found = [info for info in archive.infolist() if same_name(info.filename, member) and not info.is_dir()]
        if not found:
            raise UserError(_no_member(path, member, archive.namelist()))
        if found[-1].flag_bits & 1:
            raise UserError(f"`{path}` must be a file that can be read, but is encrypted; unpack it yourself.")
        return cast(Source, stack.enter_context(archive.open(found[-1]))), found[-1].compress_size
    except UserError:
        raise
    except NotImplementedError as error:
        raise UserError(f"`{path}` is packed in a way that Python cannot read: {error}; unpack it yourself.") from error
    except Exception as error:
        raise fault_of(error) from error


def tar_names(stream: Stream) -> list[str]:
    """The names of all files in a tar archive."""
    return [info.name for info, _ in tar_members(stream) if info.isreg()]


def tar_member(stream: Stream, path: Path, member: str) -> Source:
    """A file in a tar archive, which is read as a stream: no place of it is visited twice."""
    names: list[str] = []
    for info, source in tar_members(stream):
        if same_name(info.name, member):
            if not is_plain(info):
                raise UserError(f"`{path}` must be a file in the archive, but is a link, a folder or a device.")
            return source
        names += [info.name] * (len(names) <= _SHOWN_NAMES)
    raise UserError(_no_member(path, member, names))


def is_plain(info: tarfile.TarInfo) -> bool:
    """Whether a member is a file whose bytes are there as they are."""
    return info.isreg() and not info.issparse()


def tar_members(stream: Stream) -> Iterator[tuple[tarfile.TarInfo, Source]]:
    """The members of a tar archive, each to be read, if at all, before the next one is asked for."""
    tape = _Tape(stream)
    try:
        archive = tarfile.TarFile(fileobj=tape, mode="r")  # type: ignore[arg-type]
        while (info := archive.next()) is not None:
            yield info, _TarMember(tape, info.size)
            tape.seek(archive.offset)
            archive.members = []  # type: ignore[attr-defined]  # it would keep them all
    except (Fault, UserError):
        raise
    except Exception as error:
        raise fault_of(error) from error


class _Tape:
    """What tarfile reads headers from, and members are read from in between. It goes forward only, and a header that
    claims to be huge is not believed."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._at = 0

    def tell(self) -> int:
        return self._at

    def read(self, size: int) -> bytes:
        if not 0 <= size <= _TAR_HEADER:
            raise Fault("bomb", "a header of the archive says that it is enormous")
        data = self._stream.read(size)
        self._at += len(data)
        return data

    def seek(self, position: int) -> None:
        if position < self._at:
            raise Fault("damaged", "the archive's members overlap")
        while self._at < position:
            if not self.read(min(position - self._at, _TAR_HEADER)):
                raise Fault("truncated", "the archive ends before the member")


class _TarMember:
    """The bytes of the member whose header was just read."""

    def __init__(self, tape: _Tape, size: int) -> None:
        self._tape = tape
        self._left = size

    def read1(self, size: int, /) -> bytes:
        data = self._tape.read(min(size, self._left, _TAR_HEADER))
        self._left -= len(data)
        if not data and self._left and size:
            raise EOFError("the archive ends within the member")
        return data


def matching(names: Sequence[str], pattern: str, path: Path) -> str:
    """The one name that is like the pattern, in which `*` stands for any characters."""
    found = [name for name in names if is_like(name, pattern)]
    if len(found) > 1:
        raise UserError(
            f"`{path}` must be one member of the archive, but is both `{excerpt_of(found[0])}` and"
            f" `{excerpt_of(found[1])}`."
        )
    if not found:
        raise UserError(_no_member(path, pattern, names))
    return found[0]


def is_like(name: str, pattern: str) -> bool:
    """Whether a member is meant by a name in which `*` stands for any characters; a leading `./` means nothing."""
    first, *others = pattern.removeprefix("./").split("*")
    name = name.removeprefix("./")
    if not others:
        return name == first
    *between, last = others
    at, end = len(first), len(name) - len(last)
    if at > end or not name.startswith(first) or not name.endswith(last):
        return False
    for part in between:  # where it comes first leaves most for the others: no way back is needed
        found = name.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return True


def same_name(name: str, member: str) -> bool:
    """Whether a member has this name."""
    return name.removeprefix("./") == member.removeprefix("./")


def _no_member(path: Path, member: str, names: Sequence[str]) -> str:
    shown = ", ".join(map(excerpt_of, names[:_SHOWN_NAMES])) + (" …" if len(names) > _SHOWN_NAMES else "")
    return f"`{path}` must be a member of the archive, but there is no `{member}`, only {shown or 'nothing at all'}."
