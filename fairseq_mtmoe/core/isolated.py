"""Calls in a separate process, and the start of worker processes.

C++ and Rust libraries, which files may crash, are called in one.

The process also limits memory and time.
"""

import contextlib
import os
import pickle
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from multiprocessing import parent_process
from multiprocessing.connection import wait
from typing import TypeVar, cast

from fairseq_mtmoe.core.errors import UserError, first_line

Result = TypeVar("Result")

_BEGIN = (
    "import sys; sys.path[:] = sys.argv[1:]; from fairseq_mtmoe.core.isolated import serve; serve()"
)


class Lost(Exception):
    """The call has no result; the message says why, as the end of a sentence."""


def isolated(
    function: Callable[..., Result], *arguments: object, memory: int, seconds: int = 60
) -> Result:
    """Return `function(*arguments)` from another process with limits.

    Args:
        function: importable by its name.
        arguments: picklable.
        memory: limit in bytes.
        seconds: limit of time.

    Raises:
        UserError: as the function does.
        Lost: the process ended without an answer.
    """
    call = pickle.dumps((memory, seconds, function, arguments))
    done = subprocess.run(
        [sys.executable, "-c", _BEGIN, *sys.path], input=call, stdout=subprocess.PIPE
    )
    try:
        answer = pickle.loads(done.stdout)
    except (EOFError, pickle.UnpicklingError) as error:  # it ended before it wrote an answer
        raise Lost(_ending(done.returncode, seconds)) from error
    if isinstance(answer, Exception):
        raise answer
    return cast(Result, answer)


def _ending(code: int, seconds: int) -> str:
    """Return why a process ended without an answer."""
    if code == -signal.SIGALRM:
        return f"reading it takes over {seconds} seconds"
    if code == -signal.SIGKILL:
        return "the process that reads it was stopped from outside, for want of memory most likely"
    reason = signal.Signals(-code).name if code < 0 else f"exit status {code}"
    return f"the library that reads it crashes ({reason})"


def serve() -> None:
    """Run the call on standard input in the other process, and write its result."""
    results = os.fdopen(os.dup(1), "wb")
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (1, 2):  # output and crash traces of libraries
        os.dup2(nowhere, descriptor)
    # This imports the module, before limits apply.
    memory, seconds, function, arguments = pickle.load(sys.stdin.buffer)
    _limit(memory)
    signal.alarm(seconds)  # without a handler it ends this process even inside the library
    answer: object
    try:
        answer = function(*arguments)
    except UserError as error:
        answer = error
    except MemoryError:
        answer = Lost(f"reading it takes over {memory >> 20} MiB of memory")
    except BaseException as error:  # Rust's panics are no `Exception`
        answer = Lost(first_line(error)[:300] or type(error).__name__)
    pickle.dump(answer, results)
    results.flush()
    os._exit(0)  # a library's exit handlers may crash, too


def _limit(memory: int) -> None:
    """Limit this process to `memory` more bytes than it has."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError, ValueError):  # systems without /proc, or with lower limits
        with open("/proc/self/statm", encoding="ascii") as file:
            taken = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (taken + memory, taken + memory))


def begin_worker() -> None:
    """Prepare this worker process.

    It ignores interrupts, which its parent handles, and ends with the parent.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    assert parent is not None
    threading.Thread(target=lambda: wait([parent.sentinel]) and os._exit(1), daemon=True).start()
