"""A failure of one process ends the whole run, soon and with one sentence.

gloo and NCCL raise unclear errors, and wait for a failed process until their timeout. Therefore the first process that
fails writes its sentence to the rendezvous store, and a thread in each other process polls it.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from types import TracebackType
from typing import Any

from torch import distributed as dist
from torch.distributed import distributed_c10d

from fairseq_mtmoe.errors import UserError, chain_of, find_user_error, first_line

# Messages of gloo, of the rendezvous store and of NCCL when another process is gone or silent.
_LOST = re.compile(
    r"gloo/transport|Connection (closed|reset|refused)|Timed out waiting|Broken pipe|Socket Timeout|[Ww]ait timeout"
    r"|TCPStore|Application timeout|NCCL (error|communicator)|ncclRemoteError|ncclSystemError"
    r"|collective operation timeout"
)
_KEY = "first error"
_PAUSE = 0.5  # seconds between two polls
_GRACE = 1.0  # seconds in which a process may end by itself, with its own message

_seconds: float | None = None  # the last value of `set_timeout`
_between_hosts: dict[Any, Any] = {}  # the group of `between_hosts`, by the group of all processes
_broadcast: ErrorBroadcast | None = None

Hook = Callable[[type[BaseException], BaseException, TracebackType | None], Any]


# ---- groups and their timeout ----


def several_processes() -> bool:
    """Return whether this process is one of several in a process group."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def set_timeout(seconds: float | None) -> None:
    """Set the timeout of every process group and of the store; None keeps it."""
    global _seconds
    if seconds is None or not several_processes():
        return
    _seconds = seconds
    timeout = timedelta(seconds=seconds)
    distributed_c10d._get_default_store().set_timeout(timeout)
    for group in list(distributed_c10d._world.pg_map):
        distributed_c10d._set_pg_timeout(timeout, group)


def between_hosts(make: bool = True) -> Any:
    """Return a gloo group of all processes, which never sends through a GPU.

    A collective call. Without `make`, it returns the default group if there is no such group yet.

    Raises:
        UserError: gloo cannot connect the hosts.
    """
    world = dist.group.WORLD
    if dist.get_backend() == "gloo":
        return world
    if make and world not in _between_hosts:
        try:
            _between_hosts.clear()
            _between_hosts[world] = dist.new_group(backend="gloo")
        except RuntimeError as error:
            raise UserError(
                "`GLOO_SOCKET_IFNAME` must name the network interface by which the machines of the run reach each "
                f"other; gloo, through which they save together, could not connect them. ({first_line(error)})"
            ) from error
    return _between_hosts.get(world, world)


# ---- broadcast of the first error ----


class ErrorBroadcast:
    """Shares the first error through a store; a thread then ends this process.

    report: called with the error's sentence before this process ends.
    """

    def __init__(self, store: Any, rank: int, world_size: int, report: Callable[[str], None]) -> None:
        self.rank, self._who, self._report = rank, f"Process {rank} of {world_size}", report
        self._line: socket.socket | None = None  # shows that a store is gone; asking it would print torch's stack
        with suppress(AttributeError, OSError):  # a store in a file has no address
            self._line = socket.create_connection((store.host, store.port), timeout=_GRACE)
            self._line.setblocking(False)  # with a timeout, even MSG_DONTWAIT would wait
        with suppress(AttributeError, RuntimeError, NotImplementedError):
            store = store.clone()  # a connection of its own, since other threads may wait in theirs
        self._store = dist.PrefixStore("fairseq_mtmoe errors", store)  # type: ignore[attr-defined]
        self._heard: UserError | None = None  # kept, because the store may go
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="first error", daemon=True)
        self._thread.start()

    def tell(self, error: BaseException) -> None:
        """Send this process's error to all others, unless another process failed first."""
        sentence = find_user_error(error)
        words = str(sentence or f"process {self.rank}: {type(error).__name__}: {first_line(error)}")
        with suppress(RuntimeError):  # the store is gone, and with it rank 0
            self._store.compare_set(_KEY, "", json.dumps([sentence is not None, words]))
        self.heard()  # keeps the error, even if it is its own

    def heard(self) -> UserError | None:
        """Return the first error of any process as a `UserError`, or None."""
        if self._heard is None:
            with suppress(RuntimeError):
                if self._is_there() and self._store.check([_KEY]):
                    is_sentence, words = json.loads(self._store.get(_KEY))
                    self._heard = UserError(words) if is_sentence else self.lost(words)
        return self._heard

    def lost(self, words: str) -> UserError:
        """Return the error of a lost process; `words` are the known reason."""
        within = "in time" if _seconds is None else f"within {_seconds:g} seconds (`--distributed-timeout`)"
        return UserError(
            f"{self._who} lost another process, which failed, was killed or did not answer {within}; see the first "
            f"message of the other processes, and continue from checkpoint_last.pt. ({words})"
        )

    def _is_there(self) -> bool:
        try:
            return self._line is None or self._line.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) != b""
        except BlockingIOError:
            return True  # open, but without data
        except OSError:
            return False

    def stop(self) -> None:
        """Stop the thread: Python may crash if it ends while the thread runs."""
        self._stopped.set()
        self._thread.join(timeout=_GRACE)
        if self._heard is not None:
            time.sleep(2.5 * _PAUSE)  # the store may end with this process; the others need time to poll it
        if self._line is not None:
            self._line.close()

    def _listen(self) -> None:
        while not self._stopped.wait(_PAUSE):
            sentence = self.heard()
            if sentence is not None and not self._stopped.wait(_GRACE):
                self._report(str(sentence))
                _leave()


def print_error(sentence: str) -> None:
    """Print the error that ends this process."""
    print(f"error: {sentence}", file=sys.stderr, flush=True)


def start(store: Any, rank: int, world_size: int, report: Callable[[str], None] = print_error) -> None:
    """Start to end this process after an error of another one at the same store."""
    global _broadcast
    _broadcast = ErrorBroadcast(store, rank, world_size, report)


def stop() -> None:
    """Stop to watch for errors of other processes."""
    global _broadcast
    if _broadcast is not None:
        _broadcast.stop()
    _broadcast = None


def heard() -> UserError | None:
    """Return the first error of any process, or None."""
    return None if _broadcast is None else _broadcast.heard()


def tell(error: BaseException) -> None:
    """Send this process's error to all others, unless it follows from theirs."""
    if _broadcast is not None and words_of_loss(error) is None:
        _broadcast.tell(error)


def reason_of(error: BaseException) -> BaseException:
    """Return the first process's error if `error` is a lost process, else `error`."""
    words = words_of_loss(error)
    if _broadcast is None or words is None:
        return error
    time.sleep(_PAUSE / 5)  # a process closes its connections one after the other when it ends
    return _broadcast.heard() or _broadcast.lost(words)


def words_of_loss(error: BaseException) -> str | None:
    """Return a library's message that another process was lost; None for other errors."""
    if find_user_error(error) is not None:
        return None
    for link in chain_of(error):
        if isinstance(link, RuntimeError) and (isinstance(link, dist.DistNetworkError) or _LOST.search(str(link))):
            return first_line(link)
    return None


# ---- the end of a command ----


def showing_sentences(previous: Hook) -> Hook:
    """Return a `sys.excepthook` that prints a `UserError`'s sentence without traceback."""

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        sentence = find_user_error(error)
        if sentence is None:
            previous(kind, error, trace)
        else:
            print_error(str(sentence))
            _tell_torchrun(str(sentence))
        if several_processes():
            atexit.register(_leave)  # exit only after torch's hook around this one has printed its report

    # Without this, hydra prints exceptions itself, with a stack trace.
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")
    return hook


def _tell_torchrun(sentence: str) -> None:
    """Write the sentence to torchrun's report; torch's function would add the traceback."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path:
        details = {"py_callstack": sentence, "timestamp": str(int(time.time()))}
        with suppress(OSError), open(path, "w", encoding="utf-8") as file:
            json.dump({"message": {"message": sentence, "extraInfo": details}}, file)


def _leave() -> None:
    """End this process at once; an orderly exit could wait for the others."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)
