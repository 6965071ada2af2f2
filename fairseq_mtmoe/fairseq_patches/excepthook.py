"""How an error that nothing catches ends a command: in one sentence if a user can do something about it, and at once
where other processes wait.
"""

from __future__ import annotations

import atexit
import os
import re
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any

from fairseq_mtmoe.errors import UserError, find_user_error, show
from fairseq_mtmoe.training import rank_failures

_IN_SPAWNED = re.compile(
    r"^fairseq_mtmoe\.(?:errors\.UserError|training\.rank_failures\.LostProcess): (.*)$", re.MULTILINE
)

Hook = Callable[[type[BaseException], BaseException, TracebackType | None], Any]


def showing_sentences(previous: Hook) -> Hook:
    """A `sys.excepthook` that prints a `UserError`'s sentence instead of its traceback, and leaves the rest to another.

    In several processes it also has this one end at once: the interpreter's ordinary exit can wait for the others.
    """

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        sentence = rank_failures.lost_process(error) or raised_in_spawned(error) or find_user_error(error)
        if sentence is None:
            previous(kind, error, trace)
        else:
            show(sentence)
        if rank_failures.several_processes():
            atexit.register(_leave)  # when torch's hook, which is around this one, has printed what it collects

    # hydra prints exceptions itself, with a stack trace, unless it is told to let them through.
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")
    return hook


def _leave() -> None:
    """End this process, so that the others notice at once; leaving in order could wait for them."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


def raised_in_spawned(error: BaseException) -> UserError | None:
    """The `UserError` in the traceback that torch brings, as text, from a process that it started."""
    match = _IN_SPAWNED.search(str(error)) if type(error).__name__ == "ProcessRaisedException" else None
    return UserError(match[1]) if match else None
