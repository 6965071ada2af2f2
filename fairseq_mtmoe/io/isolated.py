"""Calls in a process of their own, for libraries in C++ or Rust: a crafted file may crash them, or fill the memory.

The process ends at a limit of memory and time, and whoever called it gets an exception.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO, TypeVar

from fairseq_mtmoe.errors import UserError, first_line

Item = TypeVar("Item")

_BEGIN = "import sys; sys.path[:] = sys.argv[1:]; from fairseq_mtmoe.io.isolated import serve; serve()"
_ITEM, _END, _SENTENCE, _FAULT = "item", "end", "sentence", "fault"


class Lost(Exception):
    """The call has no result. The message says why, as the end of a sentence."""


def isolated_items(
    function: Callable[..., Iterable[Item]], *arguments: object, memory: int, seconds: int = 60
) -> Iterator[Item]:
    """What `function(*arguments)` yields, in another process.

    Args:
        function: of a module, which the other process imports; what it is given and yields is pickled.
        memory: bytes that it may take.
        seconds: that it may take for each item.

    Raises:
        UserError: the function raised it.
        Lost: the function raised something else, or its process crashed or reached a limit.
    """
    command = [sys.executable, "-c", _BEGIN, *sys.path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            with contextlib.suppress(BrokenPipeError):
                pickle.dump((memory, seconds), process.stdin)
                pickle.dump((function, arguments), process.stdin)
                process.stdin.close()
            yield from _items(process.stdout)
        except (EOFError, pickle.UnpicklingError):
            raise Lost(_ending(process.wait(), seconds)) from None
        finally:
            process.kill()


def isolated(function: Callable[..., Item], *arguments: object, memory: int, seconds: int = 60) -> Item:
    """What `function(*arguments)` returns, in another process; see `isolated_items`."""
    results: list[Item] = list(isolated_items(_returned, function, arguments, memory=memory, seconds=seconds))
    return results[0]


def _returned(function: Callable[..., Item], arguments: tuple[object, ...]) -> Iterator[Item]:
    yield function(*arguments)


def _items(results: Any) -> Iterator[Any]:
    while True:
        kind, value = pickle.load(results)
        if kind == _END:
            return
        if kind == _SENTENCE:
            raise UserError(value)
        if kind == _FAULT:
            raise Lost(value)
        yield value


def _ending(code: int, seconds: int) -> str:
    """Why a process ended that did not say so."""
    if code == -signal.SIGALRM:
        return f"reading it takes over {seconds} seconds"
    if code == -signal.SIGKILL:
        return "the process that reads it was stopped from outside, for want of memory most likely"
    return f"the library that reads it crashes ({signal.Signals(-code).name if code < 0 else f'exit status {code}'})"


# ---- in the other process ----


def serve() -> None:
    """Do the call that is asked for on standard input, and write what comes of it to standard output."""
    results = os.fdopen(os.dup(1), "wb")
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (1, 2):  # what a library prints, and the traces of its crashes
        os.dup2(nowhere, descriptor)
    memory, seconds = pickle.load(sys.stdin.buffer)
    function, arguments = pickle.load(sys.stdin.buffer)  # imports the module, before there are limits
    _limit(memory)
    try:
        signal.alarm(seconds)  # nobody handles it, so that it ends this process even within the library
        for item in function(*arguments):
            signal.alarm(0)
            _tell(results, _ITEM, item)
            signal.alarm(seconds)
        _tell(results, _END, None)
    except BrokenPipeError:  # nobody waits any more
        os._exit(0)
    except UserError as error:
        _tell(results, _SENTENCE, str(error))
    except MemoryError:
        _tell(results, _FAULT, f"reading it takes over {memory >> 20} MiB of memory")
    except BaseException as error:  # Rust's panics are no `Exception`
        _tell(results, _FAULT, first_line(error)[:300] or type(error).__name__)
    os._exit(0)  # what a library does at the end may crash as well


def _tell(results: BinaryIO, kind: str, value: object) -> None:
    pickle.dump((kind, value), results)
    results.flush()


def _limit(memory: int) -> None:
    """Let this process take so many bytes more than it has."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError, ValueError):  # systems without /proc, and limits that are lower already
        with open("/proc/self/statm", encoding="ascii") as file:
            taken = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (taken + memory, taken + memory))
