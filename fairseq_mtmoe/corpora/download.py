"""Downloads, which can be resumed (`NAME.part`) and are verified.

Files get their names only when they are complete.
"""

import json
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import BinaryIO

import requests
from rich.progress import Progress
from urllib3.exceptions import HTTPError

from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.core.files import move_into_place, open_in_place, read_json, write_text
from fairseq_mtmoe.core.locked import lock
from fairseq_mtmoe.corpora import web
from fairseq_mtmoe.corpora.raw_files import Item, is_there, mismatch, write_record

PER_HOST = 2
_PIECE = 1 << 18


def download(items: Sequence[Item], raw: Path, progress: Progress) -> dict[str, str]:
    """Download missing files below `raw`; return an error message by failed file.

    The next call resumes.
    """
    with web.Session(web.TRIES) as session, ExitStack() as stack:
        # An interrupt ends these threads, but would wait for those of `concurrent.futures`.
        pools = defaultdict[str, ThreadPool](lambda: stack.enter_context(ThreadPool(PER_HOST)))
        results = {}
        for item in items:
            arguments = (item, raw / item.file, session, progress)
            results[item.file] = pools[item.host].apply_async(_fetch, arguments)
        messages = {file: result.get() for file, result in results.items()}
    return {file: message for file, message in messages.items() if message}


def _fetch(item: Item, target: Path, session: web.Session, progress: Progress) -> str:
    """Download a file unless it exists; return an error message, or nothing."""
    try:
        if not is_there(target, item):
            target.parent.mkdir(parents=True, exist_ok=True)
            with open_in_place(target.with_name(f"{target.name}.part"), "ab") as file:
                lock(file, f"`{target}` is being downloaded by another run; wait for its end.")
                _Part(item, target, file, progress).complete(session)
    except UserError as error:
        return str(error)
    except OSError as error:
        return f"`{error.filename or target}` cannot be written: {error.strerror or error}."
    return ""


class _Part:
    """Partial download of a file, with a note of what it is a part of."""

    def __init__(self, item: Item, target: Path, file: BinaryIO, progress: Progress) -> None:
        self._item, self._target, self._file, self._progress = item, target, file, progress
        self._path = Path(file.name)
        self._note = target.with_name(f"{target.name}.part.json")
        self._bar = progress.add_task(item.file, total=item.size)

    def complete(self, session: web.Session) -> None:
        """Download the rest of the file, verify it and give it its name."""
        try:
            for _ in range(2):  # the part may belong to another version of the file
                self._receive(session)
                sha256, wrong = mismatch(self._path, self._item, self._target)
                if not wrong:
                    move_into_place(self._path, self._target)
                    self._note.unlink(missing_ok=True)
                    write_record(self._target, self._item.address, sha256)
                    return
                self._begin_anew()
            raise UserError(f"`{self._item.address}` is not the expected file: {wrong}.")
        finally:
            self._progress.remove_task(self._bar)
            if self._path.exists() and not self._file.tell():
                self._path.unlink()

    def _begin_anew(self) -> None:
        self._file.seek(0)
        self._file.truncate()
        self._note.unlink(missing_ok=True)

    def _receive(self, session: web.Session) -> None:
        """Receive the rest of the file; tries that make progress do not count."""
        tries = 0
        longest = self._file.tell()
        while True:
            with session.begin_download(self._item.address, self._headers()) as response:
                if self._append(response):
                    return
            tries = 1 if self._file.tell() > longest else tries + 1
            longest = max(longest, self._file.tell())
            if tries == web.TRIES:
                why = f"the connection ends after {longest:,} bytes"
                raise web.refused(self._item.address, why)
            time.sleep(web.BACKOFF * 2**tries)

    def _headers(self) -> dict[str, str]:
        """Return the headers that request the rest; none if the file may be another."""
        headers: dict[str, str] = {}
        with suppress(ValueError, TypeError):  # there is no note, or a damaged one
            note = dict(read_json(self._note))
            validator = str(note.get("validator") or "")
            is_sure = validator or self._item.sha256 or self._item.md5
            if self._file.tell() and is_sure and note.get("address") == self._item.address:
                headers["Range"] = f"bytes={self._file.tell()}-"
            if headers and validator:
                headers["If-Range"] = validator
        return headers

    def _append(self, response: requests.Response) -> bool:
        """Append an answer's body as it is; return whether the file is whole."""
        span = response.headers.get("Content-Range", "")
        if response.status_code == 200:
            self._begin_anew()
        elif not span.startswith(f"bytes {self._file.tell()}-"):
            self._begin_anew()
            return False
        length = response.headers.get("Content-Length", "")
        total = self._file.tell() + int(length) if length.isdecimal() else None
        published = self._item.size
        if None not in (published, total) and total != published:
            self._begin_anew()
            why = f"it has {total:,} bytes, not the published {published:,}"
            raise web.refused(self._item.address, why)
        note = {"address": self._item.address, "validator": web.validator_of(response)}
        write_text(self._note, json.dumps(note) + "\n")
        try:
            while piece := response.raw.read1(_PIECE, decode_content=False):
                self._file.write(piece)
                self._progress.update(self._bar, completed=self._file.tell(), total=total)
                if published is not None and self._file.tell() > published:
                    self._begin_anew()
                    why = f"it has more than the published {published:,} bytes"
                    raise web.refused(self._item.address, why)
        except HTTPError:
            return False
        self._file.flush()
        return True
