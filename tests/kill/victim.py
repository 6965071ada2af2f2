"""`fairseq-train` that kills itself with signal 9 at a chosen call of a chosen function.

    python -m tests.kill.victim 'os:replace|checkpoint_best|before|2' DATA --arch … the arguments of fairseq-train

kills at the second call of `os.replace` that has "checkpoint_best" among its arguments, before anything is done.
Without a moment (''), or when there are fewer calls, training goes on to its end. Nothing else is changed.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
from collections import Counter
from typing import Any, BinaryIO, NoReturn

from tests.kill.moments import PLACES, Moment

COUNTS = "KILL_TEST_COUNTS"  # the environment variable that names a file for the numbers of calls


class HalfWritten:
    """A file that takes a number of bytes, brings them to the disk, and kills the process."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self.file, self.left = file, size

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def write(self, data: Any) -> int:
        """As the file's, until it is full."""
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


def arm(places: list[str], moment: Moment | None) -> Counter[str]:
    """Count the calls at each place, and kill at the moment; returns the counter."""
    calls: Counter[str] = Counter()
    for place in places:
        function, argument = place.split("|")
        module, _, path = function.partition(":")
        *owners, name = path.split(".")
        owner = importlib.import_module(module)
        for part in owners:
            owner = getattr(owner, part)
        chosen = moment if moment and moment.place == place else None
        setattr(owner, name, _counted(getattr(owner, name), place, argument, calls, chosen))
    return calls


def _counted(original: Any, place: str, argument: str, calls: Counter[str], moment: Moment | None) -> Any:
    def function(*args: Any, **kwargs: Any) -> Any:
        if argument and not any(argument in str(getattr(value, "name", value)) for value in args):
            return original(*args, **kwargs)
        calls[place] += 1
        if moment is None or calls[place] != moment.call:
            return original(*args, **kwargs)
        if moment.when == "before":
            kill()
        if moment.when == "inside":
            args = (args[0], HalfWritten(args[1], 200_000), *args[2:])
        original(*args, **kwargs)
        kill()

    return function


def main() -> None:
    """Train, and perhaps die."""
    text, sys.argv[1:] = sys.argv[1], sys.argv[2:]
    import fairseq.models  # noqa: F401  (so that the plugin registers itself when it is imported)
    from fairseq_cli.train import cli_main

    calls = arm(PLACES, Moment.parse(text) if text else None)
    cli_main()
    if COUNTS in os.environ:
        with open(os.environ[COUNTS], "w", encoding="utf-8") as file:
            json.dump(calls, file)


if __name__ == "__main__":
    main()
