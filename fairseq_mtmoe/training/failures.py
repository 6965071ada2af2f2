"""One process's failure ends all of a run, soon and in a sentence.

gloo and NCCL raise in words of their own, and wait for a failed process until their timeout. So the first process that
fails writes its sentence to the store at which the processes met, where a thread in each of the others looks.
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

# What gloo, the store that processes meet at, and NCCL say when another process is gone or silent.
_LOST = re.compile(
    r"gloo/transport|Connection (closed|reset|refused)|Timed out waiting|Broken pipe|Socket Timeout|[Ww]ait timeout"
    r"|TCPStore|Application timeout|NCCL (error|communicator)|ncclRemoteError|ncclSystemError"
    r"|collective operation timeout"
)
_KEY = "first error"
_PAUSE = 0.5  # seconds between two looks
_GRACE = 1.0  # seconds in which a process may end by itself, with what it has to say

_seconds: float | None = None  # what `set_timeout` set last
_between_hosts: dict[Any, Any] = {}  # by the group of all processes, the one that `between_hosts` made beside it
_broadcast: ErrorBroadcast | None = None

Hook = Callable[[type[BaseException], BaseException, TracebackType | None], Any]


# ---- groups and their timeout ----


def several_processes() -> bool:
    """Whether this process is one of several that are joined."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def set_timeout(seconds: float | None) -> None:
    """Let every exchange between processes, of every group there is, fail after `seconds` without an answer."""
    global _seconds
    if seconds is None or not several_processes():
        return
    _seconds = seconds
    timeout = timedelta(seconds=seconds)
    distributed_c10d._get_default_store().set_timeout(timeout)
    for group in list(distributed_c10d._world.pg_map):
        distributed_c10d._set_pg_timeout(timeout, group)


def between_hosts(make: bool = True) -> Any:
    """A group of all processes that sends between their hosts, and never by way of a GPU or its queue of work.

    All processes must call this together. Without `make`, the group of all processes stands in for one not yet made.

    Raises:
        UserError: the hosts cannot reach each other in this way.
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
                f"other, for what they agree on when they save; gloo could not join them. ({first_line(error)})"
            ) from error
    return _between_hosts.get(world, world)


# ---- the first error, told to all ----


class ErrorBroadcast:
    """Tells of the first error by a store; a thread ends this process by another's, after a `report` of it."""

    def __init__(self, store: Any, rank: int, world_size: int, report: Callable[[str], None]) -> None:
        self.rank, self._who, self._report = rank, f"Process {rank} of {world_size}", report
        self._line: socket.socket | None = None  # asking a store that is gone has torch print the frames of its stack
        with suppress(AttributeError, OSError):  # a store in a file has no address
            self._line = socket.create_connection((store.host, store.port), timeout=_GRACE)
            self._line.setblocking(False)  # with a timeout, also a look that should not wait does
        with suppress(AttributeError, RuntimeError, NotImplementedError):
            store = store.clone()  # others may wait in their own connection
        self._store = dist.PrefixStore("fairseq_mtmoe errors", store)  # type: ignore[attr-defined]
        self._heard: UserError | None = None  # for when the store has gone
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="first error", daemon=True)
        self._thread.start()

    def tell(self, error: BaseException) -> None:
        """Tell all processes why this one fails, unless another one failed first."""
        sentence = find_user_error(error)
        words = str(sentence or f"process {self.rank}: {type(error).__name__}: {first_line(error)}")
        with suppress(RuntimeError):  # the store is gone, and with it the first process
            self._store.compare_set(_KEY, "", json.dumps([sentence is not None, words]))
        self.heard()  # its own words, too

    def heard(self) -> UserError | None:
        """The sentence that the first error ends this process with; None as long as there is none."""
        if self._heard is None:
            with suppress(RuntimeError):
                if self._is_there() and self._store.check([_KEY]):
                    is_sentence, words = json.loads(self._store.get(_KEY))
                    self._heard = UserError(words) if is_sentence else self.lost(words)
        return self._heard

    def lost(self, words: str) -> UserError:
        """The sentence for losing another process, of which something is known."""
        within = "in time" if _seconds is None else f"within {_seconds:g} seconds (`--distributed-timeout`)"
        return UserError(
            f"{self._who} lost another process, which failed, was killed or did not answer {within}: see the first "
            f"message of the others, and go on from checkpoint_last.pt. ({words})"
        )

    def _is_there(self) -> bool:
        try:
            return self._line is None or self._line.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) != b""
        except BlockingIOError:
            return True  # it has nothing to say
        except OSError:
            return False

    def stop(self) -> None:
        """Let the process end in its own way: a thread that still ran then could make Python crash."""
        self._stopped.set()
        self._thread.join(timeout=_GRACE)
        if self._heard is not None:
            time.sleep(2.5 * _PAUSE)  # the store may go with this process, and the others look at it now and then
        if self._line is not None:
            self._line.close()

    def _listen(self) -> None:
        while not self._stopped.wait(_PAUSE):
            sentence = self.heard()
            if sentence is not None and not self._stopped.wait(_GRACE):
                self._report(str(sentence))
                _leave()


def print_error(sentence: str) -> None:
    """Print what ends this process."""
    print(f"error: {sentence}", file=sys.stderr, flush=True)


def start(store: Any, rank: int, world_size: int, report: Callable[[str], None] = print_error) -> None:
    """From now on the error of another process at the same store ends this one."""
    global _broadcast
    _broadcast = ErrorBroadcast(store, rank, world_size, report)


def stop() -> None:
    """Listen no more."""
    global _broadcast
    if _broadcast is not None:
        _broadcast.stop()
    _broadcast = None


def heard() -> UserError | None:
    """The first error of any process, if there is one."""
    return None if _broadcast is None else _broadcast.heard()


def tell(error: BaseException) -> None:
    """Tell all other processes of a run why this one fails, unless it fails because another one did."""
    if _broadcast is not None and words_of_loss(error) is None:
        _broadcast.tell(error)


def reason_of(error: BaseException) -> BaseException:
    """Why this process really ends: what the first one said, if `error` comes from losing another process."""
    words = words_of_loss(error)
    if _broadcast is None or words is None:
        return error
    time.sleep(_PAUSE / 5)  # a process that ends closes its connections one after the other
    return _broadcast.heard() or _broadcast.lost(words)


def words_of_loss(error: BaseException) -> str | None:
    """What a library said when another process was lost; None for all other errors."""
    if find_user_error(error) is not None:
        return None
    for link in chain_of(error):
        if isinstance(link, RuntimeError) and (isinstance(link, dist.DistNetworkError) or _LOST.search(str(link))):
            return first_line(link)
    return None


# ---- the end of a command ----


def showing_sentences(previous: Hook) -> Hook:
    """A `sys.excepthook` that prints a `UserError`'s sentence instead of its traceback, and leaves the rest alone."""

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        sentence = find_user_error(error)
        if sentence is None:
            previous(kind, error, trace)
        else:
            print_error(str(sentence))
            _tell_torchrun(str(sentence))
        if several_processes():
            atexit.register(_leave)  # at once, when torch's hook around this one has printed what it collects

    # hydra prints exceptions itself, with a stack trace, unless it is told to let them through.
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")
    return hook


def _tell_torchrun(sentence: str) -> None:
    """Give the sentence to torchrun's own report; torch's way to do so would add the traceback."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path:
        details = {"py_callstack": sentence, "timestamp": str(int(time.time()))}
        with suppress(OSError), open(path, "w", encoding="utf-8") as file:
            json.dump({"message": {"message": sentence, "extraInfo": details}}, file)


def _leave() -> None:
    """End this process, so that the others notice at once; leaving in order could wait for them."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)
