"""The first error of a run, told to all its processes, which it ends wherever they wait.

A process whose partner failed can wait for it in the middle of an exchange, on GPUs until that times out, and does not
learn why. So the first one that fails writes its sentence to the store at which the processes met, and a thread in each
of the others looks there.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from contextlib import suppress
from multiprocessing.queues import SimpleQueue
from typing import Any

from torch import distributed as dist

from fairseq_mtmoe.errors import UserError, find_user_error, first_line
from fairseq_mtmoe.training import rank_failures

_KEY = "first error"
_PAUSE = 0.5  # seconds between two looks
_GRACE = 1.0  # seconds in which a process may end by itself, with what it has to say

_broadcast: ErrorBroadcast | None = None


class ErrorBroadcast:
    """Tells and hears of the first error by a store that all processes share; no thread of it runs before `listen`.

    Args:
        store: of which keys it uses one.
        line: a connection to where the store is, by which to see that it still is there; None to take it for granted.
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
        if self._heard is not None:
            return self._heard
        try:
            if not self._is_there() or not self._store.check([_KEY]):
                return None
            said = json.loads(self._store.get(_KEY))
        except RuntimeError:
            return None
        self._heard = UserError(said["sentence"]) if "sentence" in said else rank_failures.lost_with(said["words"])
        with suppress(RuntimeError):
            self._store.set(f"known to {dist.get_rank()}", "")
        return self._heard

    def _wait_for_others(self) -> None:
        """Until all know of the error, or had time for two looks: the store goes when its process does."""
        end = time.monotonic() + 2.5 * _PAUSE
        keys = [f"known to {rank}" for rank in range(dist.get_world_size())]
        with suppress(RuntimeError):
            while self._is_there() and not self._store.check(keys) and time.monotonic() < end:
                time.sleep(_PAUSE / 10)

    def _is_there(self) -> bool:
        """Whether the store is still there: asking it otherwise has torch print the frames of its stack."""
        if self._line is None:
            return True
        try:
            return self._line.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) != b""
        except BlockingIOError:
            return True  # it is there, and has nothing to say
        except OSError:
            return False

    def listen(self) -> None:
        """From now on another process's error ends this one, until `stop`."""
        self._thread = threading.Thread(target=self._listen, name="first error", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Let the process end in its own way: a thread that still ran then could make Python crash.

        After an error the others get up to 1.25 seconds to hear of it.
        """
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(timeout=_GRACE)
        if self._heard is not None:
            self._wait_for_others()
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
    if _broadcast is not None and not rank_failures.is_loss(error):
        _broadcast.tell(error)


def reason_of(error: BaseException) -> BaseException:
    """Why this process really ends: what the first one said, if `error` comes from losing another process."""
    if _broadcast is None or not rank_failures.is_loss(error):
        return error
    time.sleep(_PAUSE / 5)  # a process that ends closes its connections one after the other
    heard = _broadcast.heard()
    return error if heard is None or rank_failures.is_loss(heard) else heard
