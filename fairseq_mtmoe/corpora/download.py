"""Downloads, which can be resumed (`NAME.part`) and are verified.

Files get their names only when they are complete.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict, deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread
from typing import Protocol

import requests
import urllib3

from fairseq_mtmoe import __version__
from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.core.files import move_into_place, open_in_place, read_json, write_text
from fairseq_mtmoe.core.locked import lock
from fairseq_mtmoe.corpora.raw_files import Item, is_there, mismatch, write_record

# Seconds before each try without progress; after the last one the file fails.
PAUSES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
TIMEOUT = (20.0, 60.0)  # seconds for connecting, and without received bytes
PER_HOST = 2
_PIECE = 1 << 18
_TRIES_OF_WRONG = 2  # complete downloads with a wrong checksum before the file fails
_TRY_AGAIN = {408, 425, 429, 500, 502, 503, 504}
_LONGEST_PAUSE = 300.0
_RANGE = re.compile(r"bytes (\d+)-")


class Watch(Protocol):
    """Observer of downloads, which several threads call.

    It gets a file's bytes so far, or is called before a pause.
    """

    def has(self, item: Item, done: int, size: int | None) -> None:
        """Take the number of bytes of a file so far, and of the whole if known."""

    def waits(self, item: Item, reason: str, pause: float) -> None:
        """Take the reason and length, in seconds, of a pause before another try."""


class Stopped(Exception):
    """The download was asked to stop."""


class _Interrupted(Exception):
    """The connection or the server failed, and another try may succeed.

    The try begins after `pause` seconds, as asked by the server.
    """

    def __init__(self, reason: str, pause: float = 0.0, is_unreachable: bool = False) -> None:
        super().__init__(reason)
        self.pause = pause
        self.is_unreachable = is_unreachable


@dataclass
class _Run:
    """Settings and state of one call of `download`."""

    watch: Watch
    pauses: Sequence[float]
    timeout: tuple[float, float]
    stop: Event = field(default_factory=Event)
    # Hosts and reasons: their other files fail at once.
    unreachable: dict[str, str] = field(default_factory=dict)


def download(
    items: Sequence[Item],
    raw: Path,
    watch: Watch,
    pauses: Sequence[float] = PAUSES,
    timeout: tuple[float, float] = TIMEOUT,
) -> dict[str, str]:
    """Download missing files below `raw`; return an error message by failed file.

    The next call resumes.
    """
    run = _Run(watch, pauses, timeout)
    failed = dict[str, str]()
    raised = list[BaseException]()
    queues: dict[str, deque[Item]] = defaultdict(deque)
    for item in items:
        queues[item.host].append(item)

    def work(queue: deque[Item]) -> None:
        with _new_session() as session:
            while queue and not run.stop.is_set():
                try:
                    item = queue.popleft()
                except IndexError:  # the host's other thread took the last one
                    return
                try:
                    _fetch(item, raw / item.file, run, session)
                except UserError as error:
                    failed[item.file] = str(error)
                except OSError as error:
                    reason = f"{error.strerror or error} (`{error.filename}`)"
                    failed[item.file] = f"`{raw / item.file}` cannot be written: {reason}."
                except Stopped:
                    return
                except BaseException as error:  # a bug; the waiting thread raises it again
                    run.stop.set()
                    raised.append(error)

    hosts = [queue for queue in queues.values() for _ in range(min(PER_HOST, len(queue)))]
    threads = [Thread(target=work, args=(queue,), daemon=True) for queue in hosts]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        run.stop.set()  # after an interrupt; the next call resumes from the files on disk
    if raised:
        raise raised[0]
    return failed


def _new_session() -> requests.Session:
    """Return a session with proxies from the environment.

    It has no passwords from `.netrc`.
    """
    session = requests.Session()
    session.auth = lambda request: request
    session.headers["User-Agent"] = f"fairseq_mtmoe/{__version__}"
    session.headers["Accept-Encoding"] = "identity"
    return session


def _fetch(item: Item, target: Path, run: _Run, session: requests.Session) -> None:
    """Download a file to `target` unless it exists.

    Raises `UserError` if it failed; `target` is then unchanged.
    """
    if is_there(target, item):
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with _Part(target, item) as part:
        for _ in range(_TRIES_OF_WRONG):
            _receive(part, run, session)
            sha256, wrong = mismatch(part.path, item, target)
            if not wrong:
                move_into_place(part.path, target)
                part.note_path.unlink(missing_ok=True)
                write_record(target, item.address, sha256)
                return
            part.begin_anew()
        raise UserError(f"`{item.address}` is not the expected file: {wrong}.")


class _Part:
    """Partial download of a file, locked against other runs within a `with` statement."""

    def __init__(self, target: Path, item: Item) -> None:
        self.item = item
        self.path = target.with_name(f"{target.name}.part")
        self.note_path = target.with_name(f"{target.name}.part.json")

    def __enter__(self) -> _Part:
        self.file = open_in_place(self.path, "ab", buffering=0)
        try:
            name = self.path.with_suffix("")
            lock(self.file, f"`{name}` is being downloaded by another run; wait for its end.")
        except UserError:
            self.file.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        if self.path.exists() and not self.size:
            self.path.unlink()
        self.file.close()

    @property
    def size(self) -> int:
        """Return the number of bytes so far."""
        return self.path.stat().st_size

    def begin_anew(self) -> None:
        """Discard the partial download."""
        self.file.truncate(0)
        self.note_path.unlink(missing_ok=True)

    def validator(self) -> str | None:
        """Return the ETag or date for requesting the rest of the same file.

        It is None if the download must start again.
        """
        with suppress(ValueError, TypeError):
            note = dict(read_json(self.note_path))
            validator = str(note.get("validator") or "")
            is_sure = validator or self.item.sha256 or self.item.md5
            if is_sure and self.size and note.get("address") == self.item.address:
                return validator
        return None


def _receive(part: _Part, run: _Run, session: requests.Session) -> None:
    """Download a whole file into its part.

    There are further tries as long as they make progress.
    """
    item = part.item
    furthest = part.size
    tries = 0
    while True:
        if item.host in run.unreachable:
            raise _refused(item, run.unreachable[item.host])
        try:
            _ask(part, run, session)
            return
        except _Interrupted as error:
            tries = 0 if part.size > furthest else tries + 1
            furthest = max(furthest, part.size)
            if tries > len(run.pauses):
                if error.is_unreachable:
                    run.unreachable[item.host] = str(error)
                raise _refused(item, f"{error}", f" after {tries} tries") from error
            pause = max(run.pauses[max(tries - 1, 0)], error.pause)
            run.watch.waits(item, str(error), pause)
            if run.stop.wait(pause):
                raise Stopped from error


def _refused(item: Item, why: str, when: str = "") -> UserError:
    return UserError(f"`{item.address}` cannot be downloaded{when}: {why}.")


def _ask(part: _Part, run: _Run, session: requests.Session) -> None:
    """Request a file, or the rest of it, and append the answer to the part."""
    item = part.item
    validator = part.validator()
    if validator is None:
        part.begin_anew()
    headers = {"Range": f"bytes={part.size}-"} if part.size else {}
    if validator:
        headers["If-Range"] = validator
    try:
        with session.get(
            item.address, headers=headers, stream=True, timeout=run.timeout
        ) as response:
            _check(response, part)
            _append(response, part, run)
    except UserError:
        raise
    except (ValueError, requests.TooManyRedirects) as error:  # raised for bad redirects
        raise _refused(item, f"it redirects to no web address ({error})") from error
    except requests.ConnectionError as error:
        raise _Interrupted(
            f"{item.host} cannot be reached ({_said(error)})", is_unreachable=True
        ) from error
    except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
        raise _Interrupted(_said(error)) from error


def _check(response: requests.Response, part: _Part) -> None:
    """Check that an answer has the file, or the requested rest of it."""
    item = part.item
    status = response.status_code
    answer = f"the server answers {response.status_code} {response.reason}"
    if status == 416 and part.size:
        part.begin_anew()
        raise _Interrupted("the file is not longer than the part downloaded before")
    if status in _TRY_AGAIN:
        seconds = response.headers.get("Retry-After", "")
        pause = min(float(seconds), _LONGEST_PAUSE) if seconds.isdecimal() else 0.0
        raise _Interrupted(answer, pause)
    if status not in (200, 206):
        raise _refused(item, answer)
    if response.headers.get("Content-Type", "").partition(";")[0].strip().lower() == "text/html":
        raise _refused(item, "the server answers with an HTML page instead of a file")
    if item.address.startswith("https:") and not response.url.startswith("https:"):
        raise _refused(item, f"it redirects to {response.url}, which is not encrypted")
    if status == 200:
        part.begin_anew()
    span = _RANGE.match(response.headers.get("Content-Range", ""))
    if status == 206 and (not span or int(span[1]) != part.size):
        raise _Interrupted("the server sends another part of the file than requested")


def _append(response: requests.Response, part: _Part, run: _Run) -> None:
    """Append an answer's body to the part, without decompressing it."""
    item = part.item
    length = response.headers.get("Content-Length", "")
    size = part.size + int(length) if length.isdecimal() else None
    if item.size is not None and size is not None and size != item.size:
        part.begin_anew()
        raise _refused(item, f"it has {size:,} bytes, not the published {item.size:,}")
    tag = response.headers.get("ETag", "")
    is_weak = not tag or tag.startswith("W/")
    validator = response.headers.get("Last-Modified", "") if is_weak else tag
    write_text(part.note_path, json.dumps({"address": item.address, "validator": validator}) + "\n")
    run.watch.has(item, part.size, size)
    try:
        while piece := response.raw.read1(_PIECE, decode_content=False):
            left = memoryview(piece)
            while left:
                left = left[part.file.write(left) :]
            run.watch.has(item, part.size, size)
            if item.size is not None and part.size > item.size:
                part.begin_anew()
                raise _refused(item, f"it has more than the published {item.size:,} bytes")
            if run.stop.is_set():
                raise Stopped
        if size in (None, part.size):
            return
    except urllib3.exceptions.ProtocolError:
        pass
    whole = "an unknown number of" if size is None else f"{size:,}"
    raise _Interrupted(f"the connection ended after {part.size:,} of {whole} bytes")


def _said(error: BaseException) -> str:
    """Return a short description of an error, from the innermost of nested ones."""
    while isinstance(
        inner := getattr(error, "reason", None) or next(iter(error.args), None), BaseException
    ):
        error = inner
    return " ".join(str(error).split())[:200] or type(error).__name__
