"""How the failure of one process ends all of them, soon and in a sentence.

gloo and NCCL raise in the middle of whatever they did, in words of their own, and wait for a failed process until their
timeout. So the first process that fails writes its sentence to the store at which the processes met, where a thread in
each of the others looks. A process that leaves through the interpreter's ordinary exit can wait there for ever.
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
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from multiprocessing.queues import SimpleQueue
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
_IN_SPAWNED = re.compile(r"^fairseq_mtmoe\.(?:errors\.UserError|training\.failures\.LostProcess): (.*)$", re.MULTILINE)
_KEY = "first error"
_PAUSE = 0.5  # seconds between two looks
_GRACE = 1.0  # seconds in which a process may end by itself, with what it has to say

_seconds: float | None = None  # what `set_timeout` set last
_between_hosts: dict[Any, Any] = {}  # by the group of all processes, the one that `between_hosts` made beside it
_broadcast: ErrorBroadcast | None = None

Hook = Callable[[type[BaseException], BaseException, TracebackType | None], Any]


class LostProcess(UserError):
    """Another process is gone or silent; why, it says itself, if it can."""


# ---- groups and their timeout ----


def several_processes() -> bool:
    """Whether this process is one of several that are joined."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def set_timeout(seconds: float) -> None:
    """Let every exchange between processes, of every group there is, fail after `seconds` without an answer."""
    global _seconds
    if not several_processes():
        return
    _seconds = seconds
    timeout = timedelta(seconds=seconds)
    distributed_c10d._get_default_store().set_timeout(timeout)
    for group in list(distributed_c10d._world.pg_map):
        distributed_c10d._set_pg_timeout(timeout, group)


def between_hosts() -> Any:
    """A group of all processes that sends between their hosts, and never by way of a GPU or its queue of work.

    The first call makes it, and must be made by all processes together.

    Raises:
        UserError: the hosts cannot reach each other in this way.
    """
    world = dist.group.WORLD
    if dist.get_backend() == "gloo":
        return world
    if world not in _between_hosts:
        try:
            _between_hosts.clear()
            _between_hosts[world] = dist.new_group(backend="gloo")
        except RuntimeError as error:
            raise UserError(
                "`GLOO_SOCKET_IFNAME` must name the network interface by which the machines of the run reach each "
                f"other, for what they agree on when they save; gloo could not join them. ({first_line(error)})"
            ) from error
    return _between_hosts[world]


def made_between_hosts() -> Any:
    """The group of `between_hosts` where there is one already; else that of all processes."""
    return _between_hosts.get(dist.group.WORLD, dist.group.WORLD)


# ---- the loss of another process ----


@contextmanager
def naming_lost_processes() -> Iterator[None]:
    """Turn what the libraries raise when another process is lost into a sentence.

    Raises:
        UserError: another process is lost, or did not answer in time.
    """
    try:
        yield
    except Exception as error:
        lost = lost_process(error)
        if lost is None:
            raise
        raise lost from error


def lost_process(error: BaseException) -> LostProcess | None:
    """The sentence for an error that comes from losing another process; None for all other errors."""
    if not several_processes() or find_user_error(error) is not None:
        return None
    for link in chain_of(error):
        if isinstance(link, RuntimeError) and (isinstance(link, dist.DistNetworkError) or _LOST.search(str(link))):
            return _lost_with(first_line(link))
    return None


def _lost_with(words: str) -> LostProcess:
    """The sentence for losing another process, of which something is known."""
    within = "in time" if _seconds is None else f"within {_seconds:g} seconds (`--distributed-timeout`)"
    return LostProcess(
        f"Process {dist.get_rank()} of {dist.get_world_size()} lost another process, which failed, was killed or did "
        f"not answer {within}: see the first message of the others, and go on from checkpoint_last.pt. ({words})"
    )


def _is_loss(error: BaseException) -> bool:
    """Whether an error comes from losing another process, as a sentence already or as a library said it."""
    return isinstance(find_user_error(error), LostProcess) or lost_process(error) is not None


# ---- the first error, told to all ----


class ErrorBroadcast:
    """Tells and hears of the first error by a store that all processes share; no thread of it runs before `listen`.

    Args:
        store: of which keys it uses one.
        line: a connection to where the store is, by which to see that it still is there: asking it otherwise has torch
            print the frames of its stack. None to take it for granted.
        parent: where a process that another one started says what ends it; None to print it.
    """

    def __init__(self, store: Any, line: socket.socket | None = None, parent: SimpleQueue[str] | None = None) -> None:
        self._store, self._line, self._parent = store, line, parent
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._heard: UserError | None = None  # for when the store has gone

    def tell(self, error: BaseException) -> None:
        """Tell all processes why this one fails, unless another one failed first."""
        sentence = find_user_error(error)
        words = f"process {dist.get_rank()}: {type(error).__name__}: {first_line(error)}"
        said = {"words": words} if sentence is None else {"sentence": str(sentence)}
        with suppress(RuntimeError):  # the store is gone, and with it the first process
            self._store.compare_set(_KEY, "", json.dumps(said))
        self.heard()  # its own words, too

    def heard(self) -> UserError | None:
        """The sentence that the first error ends this process with; None as long as there is none."""
        if self._heard is None:
            with suppress(RuntimeError):
                if self._is_there() and self._store.check([_KEY]):
                    said = json.loads(self._store.get(_KEY))
                    self._heard = UserError(said["sentence"]) if "sentence" in said else _lost_with(said["words"])
        return self._heard

    def _is_there(self) -> bool:
        if self._line is None:
            return True
        try:
            return self._line.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) != b""
        except BlockingIOError:
            return True  # it has nothing to say
        except OSError:
            return False

    def listen(self) -> None:
        """From now on another process's error ends this one, until `stop`."""
        self._thread = threading.Thread(target=self._listen, name="first error", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Let the process end in its own way: a thread that still ran then could make Python crash."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(timeout=_GRACE)
        if self._heard is not None:
            time.sleep(2.5 * _PAUSE)  # the store may go with this process, and the others look at it now and then
        if self._line is not None:
            self._line.close()

    def _listen(self) -> None:
        while not self._stopped.wait(_PAUSE):
            sentence = self.heard()
            if sentence is not None and not self._stopped.wait(_GRACE):
                if self._parent is None:
                    print(f"error: {sentence}", file=sys.stderr, flush=True)
                else:
                    self._parent.put(str(sentence))
                sys.stdout.flush()
                os._exit(1)


def start(store: Any, parent: SimpleQueue[str] | None = None) -> None:
    """Listen at a store, by a connection of its own where torch can make one: others may wait in theirs."""
    global _broadcast
    line = None
    with suppress(AttributeError, OSError):  # a store in a file has no address
        line = socket.create_connection((store.host, store.port), timeout=_GRACE)
        line.setblocking(False)  # with a timeout, also a look that should not wait does
    with suppress(AttributeError, RuntimeError, NotImplementedError):
        store = store.clone()
    store = dist.PrefixStore("fairseq_mtmoe errors", store)  # type: ignore[attr-defined]
    _broadcast = ErrorBroadcast(store, line, parent)
    _broadcast.listen()


def stop() -> None:
    """Listen no more."""
    global _broadcast
    if _broadcast is not None:
        _broadcast.stop()
    _broadcast = None


def tell(error: BaseException) -> None:
    """Tell all other processes of a run why this one fails, unless it fails because another one did."""
    if _broadcast is not None and not _is_loss(error):
        _broadcast.tell(error)


def reason_of(error: BaseException) -> BaseException:
    """Why this process really ends: what the first one said, if `error` comes from losing another process."""
    if _broadcast is None or not _is_loss(error):
        return error
    time.sleep(_PAUSE / 5)  # a process that ends closes its connections one after the other
    heard = _broadcast.heard()
    return error if heard is None or _is_loss(heard) else heard


# ---- the end of a command ----


def showing_sentences(previous: Hook) -> Hook:
    """A `sys.excepthook` that prints a `UserError`'s sentence instead of its traceback, and leaves the rest to another.

    In several processes it also has this one end at once: the interpreter's ordinary exit can wait for the others.
    """

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        sentence = lost_process(error) or raised_in_spawned(error) or find_user_error(error)
        if sentence is None:
            previous(kind, error, trace)
        else:
            show(sentence)
        if several_processes():
            atexit.register(_leave)  # when torch's hook, which is around this one, has printed what it collects

    # hydra prints exceptions itself, with a stack trace, unless it is told to let them through.
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")
    return hook


def show(error: UserError) -> None:
    """Print the sentence, and give it to torchrun's own report, which comes below."""
    print(f"error: {error}", file=sys.stderr)
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path:
        details = {"py_callstack": str(error), "timestamp": str(int(time.time()))}
        with suppress(OSError), open(path, "w", encoding="utf-8") as file:
            json.dump({"message": {"message": str(error), "extraInfo": details}}, file)


def _leave() -> None:
    """End this process, so that the others notice at once; leaving in order could wait for them."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


def raised_in_spawned(error: BaseException) -> UserError | None:
    """The `UserError` in the traceback that torch brings, as text, from a process that it started."""
    match = _IN_SPAWNED.search(str(error)) if type(error).__name__ == "ProcessRaisedException" else None
    return UserError(match[1]) if match else None
