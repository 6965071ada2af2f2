"""One file from the web: resumed where it broke off, verified, and under its name only when it is complete."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from io import FileIO
from pathlib import Path
from threading import Event
from typing import Protocol

import requests

from fairseq_mtmoe.data.corpora.download.connection import (
    Body,
    Changed,
    Interrupted,
    NothingLeft,
    Patience,
    Unavailable,
    Unreachable,
    ask,
    differ,
)
from fairseq_mtmoe.data.corpora.download.hosts import Hosts
from fairseq_mtmoe.data.corpora.download.items import Item
from fairseq_mtmoe.data.corpora.download.records import (
    digests,
    is_there,
    mismatch,
    read_record,
    record_path,
    write_record,
)
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.io.files import move_into_place, read_json, regular_file, write_text

PAUSES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
"""Seconds before each try, counted from the last that got further than any before; after these the file is left."""

_WRONG = 2  # complete downloads with a wrong checksum after which a third is not tried


class DiskFull(UserError):
    """No room for a file: none for the others either."""


class Stopped(Exception):
    """Somebody asked to stop."""


class Watch(Protocol):
    """Who is told how far a file is; from several threads."""

    def has(self, item: Item, done: int, size: int | None) -> None:
        """So many bytes of it are there, of so many in all, if that is known."""
        ...

    def waits(self, item: Item, reason: str, pause: float) -> None:
        """Something went wrong, and it is tried again after so many seconds."""
        ...


@dataclass(frozen=True)
class _Note:
    """What is known of a file of which a part is there."""

    address: str
    validator: str
    size: int | None


def fetch(
    item: Item,
    raw: Path,
    session: requests.Session,
    watch: Watch,
    stop: Event,
    patience: Patience = Patience(),  # noqa: B008 (it is frozen)
    pauses: Sequence[float] = PAUSES,
    hosts: Hosts | None = None,
) -> bool:
    """Let `item` be below `raw`; what an earlier call got of it is kept. Several calls may share `hosts`.

    Returns:
        Whether anything was downloaded: the file may be there already.

    Raises:
        UserError: it cannot be had, or is not what it must be; nothing is under its name then that was not before.
        Stopped: `stop` was set; the next call goes on.
    """
    target = raw / item.file
    with _in_a_sentence(target):
        if is_there(target, item):
            return False
        with _only_here(target) as part:
            if is_there(target, item):  # another run was faster
                return False
            for _ in range(_WRONG):
                _receive(item, part, session, watch, stop, patience, pauses, hosts or Hosts())
                sums, size = digests(part.path), part.size()
                wrong = mismatch(sums, size, item, read_record(target))
                if not wrong:
                    move_into_place(part.path, target)
                    part.note_path.unlink(missing_ok=True)
                    write_record(target, item.address, sums["sha256"])
                    return True
                part.begin_anew()
            hint = "" if item.sha256 or item.md5 else f"; if the new one is right, delete {record_path(target)}"
            raise UserError(f"`{item.address}` is not what it must be: {wrong}{hint}.")


@contextmanager
def _in_a_sentence(target: Path) -> Iterator[None]:
    """Say in a sentence what disks have: a name that is too long, a folder in a file's place, no permission."""
    try:
        yield
    except OSError as error:
        raise UserError(f"`{target}` cannot be written: {error.strerror or error} (`{error.filename}`).") from error


class _Part:
    """The beginning of a file, in `NAME.part`, with what is known of the file in `NAME.part.json`."""

    def __init__(self, target: Path, file: FileIO) -> None:
        self.path = _part_path(target)
        self.note_path = target.with_name(f"{target.name}.part.json")
        self.file = file

    def size(self) -> int:
        """In bytes."""
        return self.path.stat().st_size

    def append(self, piece: bytes) -> None:
        """Add bytes at the end; each call is on its way to the disk when it returns."""
        left = memoryview(piece)
        while left:
            left = left[self.file.write(left) :]

    def begin_anew(self) -> None:
        """Forget what there is."""
        self.file.truncate(0)
        self.note_path.unlink(missing_ok=True)

    def rest(self, item: Item) -> tuple[int, str]:
        """From where on, and of which file, the rest is to be asked for."""
        size, note = self.size(), self.note()
        if size and note and note.address == item.address:
            if note.validator:
                return size, note.validator
            if item.sha256 or item.md5:  # which tell at the end whether both parts are of the same file
                return size, ""
        self.begin_anew()
        return 0, ""

    def note(self) -> _Note | None:
        """What was noted of the file; None if nothing was."""
        try:
            return _Note(**read_json(self.note_path))
        except (UserError, TypeError):
            return None


def _part_path(target: Path) -> Path:
    return target.with_name(f"{target.name}.part")


@contextmanager
def _only_here(target: Path) -> Iterator[_Part]:
    """The part of a file, which no other run writes meanwhile; one without a byte goes away at the end."""
    target.parent.mkdir(parents=True, exist_ok=True)
    path = _part_path(target)
    if path.is_symlink():  # it could lead out of the folder
        raise UserError(f"`{path}` must be a file, but is a link; delete it, and run this again.")
    if os.path.exists(path):
        regular_file(path)
    with open(path, "ab", buffering=0) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(f"`{target}` is being downloaded by another run; wait for its end.") from error
        try:
            yield _Part(target, file)
        finally:
            with suppress(OSError):
                if path.stat().st_size == 0:
                    path.unlink()


def _receive(
    item: Item,
    part: _Part,
    session: requests.Session,
    watch: Watch,
    stop: Event,
    patience: Patience,
    pauses: Sequence[float],
    hosts: Hosts,
) -> None:
    """Get all of a file into its part: tried again as long as a try gets further than those before it."""
    furthest, tries = part.size(), 0
    while True:
        if reason := hosts.why_left(item.host):
            raise UserError(f"`{item.address}` cannot be had: {reason}.")
        start, validator = part.rest(item)
        try:
            with ask(session, item.address, start, validator, patience) as body:
                hosts.answers(item.host)
                _append(body, item, part, watch, stop)
            return
        except NothingLeft:
            return
        except Unavailable as error:
            hosts.answers(item.host)
            raise UserError(f"`{item.address}` cannot be had: {error}.") from error
        except Interrupted as error:
            if isinstance(error, Changed):
                part.begin_anew()
            reached = part.size()
            tries = 0 if reached > furthest else tries + 1
            furthest = max(furthest, reached)
            worth = hosts.pauses(error.host, pauses) if isinstance(error, Unreachable) else pauses
            if tries > len(worth):
                if isinstance(error, Unreachable):
                    hosts.leave(error.host, str(error))
                raise UserError(f"`{item.address}` cannot be had after {_times(tries)}: {error}.") from error
            pause = max(pauses[max(tries - 1, 0)], error.pause or 0.0)
            watch.waits(item, str(error), pause)
            if stop.wait(pause):
                raise Stopped from error


def _times(tries: int) -> str:
    return "one try" if tries == 1 else f"{tries} tries"


def _append(body: Body, item: Item, part: _Part, watch: Watch, stop: Event) -> None:
    """Add what comes to the part, or begin it anew where the server sends the file from its beginning."""
    note = part.note()
    if item.size is not None and body.size is not None and body.size != item.size:
        raise Unavailable(f"it has {body.size:,} bytes and not the {item.size:,} that are published")
    if body.start == 0:
        part.begin_anew()
        write_text(part.note_path, json.dumps(asdict(_Note(item.address, body.validator, body.size))) + "\n")
    elif note and None not in (note.size, body.size) and note.size != body.size:
        raise Changed("the file has another size than before")
    elif note and differ(note.validator, body.validator):
        raise Changed("the server sends the rest of another version of the file")
    done = body.start
    _check_room(part.path, (body.size or done) - done)
    watch.has(item, done, body.size)
    try:
        for piece in body.pieces():
            part.append(piece)
            done += len(piece)
            if item.size is not None and done > item.size:  # a server need not say how much it sends
                part.begin_anew()
                raise Unavailable(f"it has more than the {item.size:,} bytes that are published")
            watch.has(item, done, body.size)
            if stop.is_set():
                raise Stopped
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise DiskFull(f"`{part.path.parent}` has no room left; make some, and run this again: it goes on.") from error


def _check_room(part: Path, needed: int) -> None:
    free = shutil.disk_usage(part.parent).free
    if needed > free:
        raise DiskFull(
            f"`{part.parent}` must have room for {needed:,} more bytes of {part.name.removesuffix('.part')}, but has"
            f" {free:,}; make some, and run this again: it goes on."
        )
