"""Tries of a reader on new files, each in a process of its own: it ends with a value, or with one sentence.

What else may happen is a finding: another exception, a signal, a hang, more memory than a small file is worth. Its
seed, the files and the traceback are kept.
"""

import contextlib
import faulthandler
import importlib
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import click

from fairseq_mtmoe import register
from fairseq_mtmoe.cli.main import commands
from fairseq_mtmoe.errors import find_user_error

MEMORY = 3 << 30  # bytes more than the process has when the try begins
_WALL = 20  # seconds for each of the processor: other processes may use it, too
_LONGEST = 1500  # characters of a sentence
_OUTPUT, _FINDING = "output.txt", "finding.txt"


@dataclass(frozen=True)
class Reader:
    """What reads files, and how to make some."""

    name: str
    make: Callable[[random.Random, Path], None]  # writes new files into an empty folder
    read: Callable[[Path, random.Random], object]  # is given that folder
    seconds: int = 30  # of the processor, which a try may take
    begin: Callable[[], object] = lambda: None  # makes, once, what all tries need


class Finding(NamedTuple):
    """A try that ended otherwise; `folder`, of the reader's name and the seed, has its files."""

    what: str
    folder: Path


def attempt(reader: Reader, seed: str, kept: Path) -> Finding | None:
    """One try. A finding's files are moved below `kept`."""
    reader.begin()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as parent:
        folder = Path(parent, "try")
        folder.mkdir()
        draw = random.Random(f"{reader.name} {seed}")
        child = multiprocessing.get_context("fork").Process(target=_try, args=(reader, draw, folder))
        child.start()
        what, noted = _ending(child, reader.seconds), folder / _FINDING
        if what is None and not noted.exists():
            return None
        what = what or noted.read_text(errors="replace").partition("\n")[0]
        target = kept / f"{reader.name.replace(' ', '_')}-{seed}"
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(folder, target, symlinks=True)
        return Finding(what, target)


def _try(reader: Reader, draw: random.Random, folder: Path) -> None:
    os.setpgid(0, 0)
    output = os.open(folder / _OUTPUT, os.O_WRONLY | os.O_CREAT)
    os.dup2(output, 1), os.dup2(output, 2)
    faulthandler.disable()  # pytest's writes to the screen
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
    os._exit(0)  # and wait for no thread


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


def _ending(child: multiprocessing.Process, seconds: int) -> str | None:
    """How a child ended other than by its own end; None where it did."""
    child.join(_WALL * seconds)
    code = child.exitcode
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)  # and those that it has started
    child.join()
    if code is None:
        return f"more than {_WALL * seconds} seconds, most of them waiting"
    if code == -signal.SIGXCPU:
        return f"more than {seconds} seconds"
    return None if not code else f"signal {-code}" if code < 0 else f"no try was made (exit code {code})"


def mtmoe(*arguments: object) -> None:
    try:
        commands.main(list(map(str, arguments)), standalone_mode=False)
    except (click.ClickException, click.Abort):
        return


def fairseq(command: str, *arguments: object) -> None:
    sys.argv = [f"fairseq-{command}", *map(str, arguments)]
    importlib.import_module(f"fairseq_cli.{command}").cli_main()


def import_all() -> None:
    """Import what the commands import, so that a try need not."""
    import tests.helpers.forked  # noqa: F401

    register()
    for command in ("generate", "train", "validate"):
        importlib.import_module(f"fairseq_cli.{command}")
    for command in commands.list_commands(click.Context(commands)):
        commands.get_command(click.Context(commands), command)
