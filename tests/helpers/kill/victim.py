"""`fairseq-train` in a process that kills itself with signal 9 at a chosen call of a chosen function.

Nothing else is changed: the command is fairseq's own, with a user's arguments.
"""

import itertools
import os
import pkgutil
import signal
import sys
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from fairseq_cli.train import cli_main

import fairseq_mtmoe  # noqa: F401  (what `--user-dir` imports; a process that is forked from here has it already)
from tests.helpers.kill.moments import Moment


class HalfWritten:
    """A file that takes a number of bytes, brings them to the disk, and kills the process."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self.file, self.left = file, size

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def write(self, data: Any) -> int:
        piece = bytes(data)[: self.left]
        self.left -= len(piece)
        written = self.file.write(piece)
        if not self.left:
            self.file.flush()
            kill()
        return written


def kill() -> NoReturn:
    """End this process as kill -9 and the system's lack of memory do: no code of ours runs afterwards."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("signal 9 has no handler")


def arm(moment: Moment) -> None:
    """Kill this process at the moment."""
    path, _, name = moment.function.replace(":", ".").rpartition(".")
    owner = pkgutil.resolve_name(path)
    original, calls = getattr(owner, name), itertools.count(1)

    def function(*args: Any, **kwargs: Any) -> Any:
        is_counted = not moment.argument or any(moment.argument in str(getattr(value, "name", value)) for value in args)
        if not is_counted or next(calls) != moment.call:
            return original(*args, **kwargs)
        if moment.when == "before":
            kill()
        if moment.when == "inside":
            args = (args[0], HalfWritten(args[1], 200_000), *args[2:])
        original(*args, **kwargs)
        kill()

    setattr(owner, name, function)


def train(arguments: list[str], moment: Moment | None, log: Path) -> None:
    """Train, with the output in `log`, and perhaps die."""
    with open(log, "wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.argv[1:] = arguments
    if moment is not None:
        arm(moment)
    try:
        cli_main()
    except Exception:
        sys.excepthook(*sys.exc_info())  # as at the end of a program: ours shows a sentence, and waits for nobody
        raise
