"""Calls in a process of their own, for libraries in C++ or Rust: a crafted file may crash them, or fill the memory."""

import contextlib
import os
import pickle
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import TypeVar

from fairseq_mtmoe.errors import UserError, first_line

Result = TypeVar("Result")

_BEGIN = "import sys; sys.path[:] = sys.argv[1:]; from fairseq_mtmoe.io.isolated import serve; serve()"


class Lost(Exception):
    """The call has no result. The message says why, as the end of a sentence."""


def isolated(function: Callable[..., Result], *arguments: object, memory: int, seconds: int = 60) -> Result:
    """What `function(*arguments)` returns in another process, which may use `memory` bytes and `seconds`.

    Raises:
        UserError: as the function does.
        Lost: the process ended, or was ended, without an answer.
    """
    call = pickle.dumps((memory, seconds)) + pickle.dumps((function, arguments))
    done = subprocess.run([sys.executable, "-c", _BEGIN, *sys.path], input=call, stdout=subprocess.PIPE)
    try:
        kind, value = pickle.loads(done.stdout)
    except (EOFError, pickle.UnpicklingError) as error:  # it ended before, or while, it wrote an answer
        raise Lost(_ending(done.returncode, seconds)) from error
    if kind is not None:
        raise kind(value)
    result: Result = value
    return result


def _ending(code: int, seconds: int) -> str:
    """Why a process ended that did not say so."""
    if code == -signal.SIGALRM:
        return f"reading it takes over {seconds} seconds"
    if code == -signal.SIGKILL:
        return "the process that reads it was stopped from outside, for want of memory most likely"
    return f"the library that reads it crashes ({signal.Signals(-code).name if code < 0 else f'exit status {code}'})"


def serve() -> None:
    """In the other process: do the call that stands on standard input, and write what comes of it."""
    results = os.fdopen(os.dup(1), "wb")
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (1, 2):  # what a library prints, and the traces of its crashes
        os.dup2(nowhere, descriptor)
    memory, seconds = pickle.load(sys.stdin.buffer)
    function, arguments = pickle.load(sys.stdin.buffer)  # imports the module, before there are limits
    _limit(memory)
    signal.alarm(seconds)  # nobody handles it, so that it ends this process even within the library
    answer: tuple[type[Exception] | None, object]
    try:
        answer = None, function(*arguments)
    except UserError as error:
        answer = UserError, str(error)
    except MemoryError:
        answer = Lost, f"reading it takes over {memory >> 20} MiB of memory"
    except BaseException as error:  # Rust's panics are no `Exception`
        answer = Lost, first_line(error)[:300] or type(error).__name__
    pickle.dump(answer, results)
    results.flush()
    os._exit(0)  # what a library does at the end may crash as well


def _limit(memory: int) -> None:
    """Let this process take so many bytes more than it has."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError, ValueError):  # systems without /proc, and limits that are lower already
        with open("/proc/self/statm", encoding="ascii") as file:
            taken = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (taken + memory, taken + memory))
