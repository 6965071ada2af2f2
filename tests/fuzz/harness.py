"""Tries of a reader on new files, each in a process of its own: it ends with a value, or with one sentence.

What else may happen is a finding: another exception, a signal, a hang, more memory than a small file is worth. Its
seed, the files and the traceback are kept.
"""

from __future__ import annotations

import contextlib
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fairseq_mtmoe.errors import find_user_error

MEMORY = 3 << 30  # bytes more than the process has when the try begins
_WALL = 20  # seconds for each of the processor: other processes may use it, too
_LONGEST = 1500  # characters of a sentence
_OUTPUT, _FINDING = "output.txt", "finding.txt"


@dataclass(frozen=True)
class Reader:
    """What reads files, and how to make some.

    Args:
        name: of both.
        make: writes new files into an empty folder.
        read: is given that folder.
        seconds: of the processor, which a try may take.
        begin: makes, once, what all tries need.
    """

    name: str
    make: Callable[[random.Random, Path], None]
    read: Callable[[Path, random.Random], object]
    seconds: int = 30
    begin: Callable[[], object] = lambda: None


@dataclass(frozen=True)
class Finding:
    """A try that ended otherwise; `folder` has its files."""

    reader: str
    seed: str
    what: str
    folder: Path

    def __str__(self) -> str:
        return f"{self.reader} (seed {self.seed}): {self.what}; files in {self.folder}"


def tries(reader: Reader, seed: int, kept: Path, number: int = 10**9, seconds: float = 1e9) -> Iterator[Finding | None]:
    """Try new files until there were so many or it took so long; for each what was found, if anything."""
    end = time.monotonic() + seconds
    for count in range(number):
        if time.monotonic() > end:
            return
        yield attempt(reader, f"{seed}-{count}", kept)


def attempt(reader: Reader, seed: str, kept: Path) -> Finding | None:
    """One try. A finding's files are moved below `kept`."""
    reader.begin()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        folder = Path(place, "try")
        folder.mkdir()
        sys.stdout.flush(), sys.stderr.flush()
        child = os.fork()
        if not child:
            _try(reader, random.Random(f"{reader.name} {seed}"), folder)
        what, noted = _ending(child, reader.seconds), folder / _FINDING
        if what is None and not noted.exists():
            return None
        what = what or noted.read_text(errors="replace").partition("\n")[0]
        target = kept / f"{reader.name.replace(' ', '_')}-{seed}"
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(folder, target, symlinks=True)
        return Finding(reader.name, seed, what, target)


def _try(reader: Reader, draw: random.Random, folder: Path) -> None:
    code = 1
    try:
        os.setpgid(0, 0)
        output = os.open(folder / _OUTPUT, os.O_WRONLY | os.O_CREAT)
        os.dup2(output, 1), os.dup2(output, 2)
        reader.make(draw, folder)
        # Of data alone: V8, which draws charts, reserves gigabytes of addresses that it does not use.
        pages = int(Path("/proc/self/statm").read_text().split()[5])
        limit = pages * resource.getpagesize() + MEMORY
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        spent = int(time.process_time()) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (spent + reader.seconds, spent + reader.seconds + 1))
        try:
            reader.read(folder, draw)
        except BaseException as error:
            if not _is_sentence(error):
                (folder / _FINDING).write_text(_described(error), errors="replace")
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _is_sentence(error: BaseException) -> bool:
    found = find_user_error(error)
    if found is not None:
        return "\n" not in str(found) and len(str(found)) < _LONGEST
    return isinstance(error, SystemExit) and error.code in (0, None)


def _described(error: BaseException) -> str:
    """The kind of error and where it was raised, in one line; and the traceback."""
    found = find_user_error(error)
    if found is not None:
        return f"a sentence of several lines or {len(str(found))} characters: {str(found)[:_LONGEST]!r}"
    last = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{'/'.join(Path(last.filename).parts[-3:])}:{last.lineno} {last.name}"
    text = " ".join(str(error).split())[:200]
    return f"{type(error).__name__} at {where}: {text}\n{''.join(traceback.format_exception(error))[-20000:]}"


def _ending(child: int, seconds: int) -> str | None:
    """How a child ended other than by its own end; None where it did."""
    deadline = time.monotonic() + _WALL * seconds
    pause = 0.001
    while True:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            code = os.waitstatus_to_exitcode(status)
            _end_group(child)
            if code == -signal.SIGXCPU:
                return f"more than {seconds} seconds"
            return None if not code else f"signal {-code}" if code < 0 else f"no try was made (exit code {code})"
        if time.monotonic() > deadline:
            _end_group(child)
            os.waitpid(child, 0)
            return f"more than {_WALL * seconds} seconds, most of them waiting"
        time.sleep(pause)
        pause = min(0.05, 2 * pause)


def _end_group(child: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
