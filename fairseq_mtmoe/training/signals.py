"""SIGINT (Ctrl-C), SIGTERM and SIGUSR1: a run saves after the update under way and ends; a second one ends it at once.

Python runs signal handlers between its own instructions, and none while the process waits for others inside C++ code.
Hence a thread reads the signals, from a socket into which Python puts them as soon as they come.
"""

from __future__ import annotations

import functools
import logging
import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from multiprocessing.context import SpawnProcess
from typing import Any

from torch import distributed as dist
from torch.multiprocessing.spawn import ProcessExitedException

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
AS_ONE = 1.0  # seconds: `timeout` signals the process and then its whole group, torchrun forwards what a terminal sent

_watch: _Watch | None = None


class Stopped(Exception):
    """Raised inside a validation that a signal ends before its time."""


class _Watch:
    """Takes the signals of this process but for those that it ignores, as what a script starts with `&` does SIGINT."""

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self.saves = False  # whether there are updates after whose end the run can be saved
        self._since = 0.0
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        self._wakeup = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        watched = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        self._handlers = {number: signal.signal(number, _do_nothing) for number in watched}
        threading.Thread(target=self._listen, name="signals", daemon=True).start()

    def close(self) -> None:
        """Give the signals back."""
        for number, handler in self._handlers.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        signal.set_wakeup_fd(self._wakeup)
        self._writer.shutdown(socket.SHUT_WR)  # the thread ends, also if a forked child has the socket, too
        self._writer.close()

    def _listen(self) -> None:
        while number := self._reader.recv(1):
            if number[0] in self._handlers:
                self._take(signal.Signals(number[0]))
        self._reader.close()

    def _take(self, number: signal.Signals) -> None:
        now = time.monotonic()
        if self.received is None:
            self.received, self._since = number, now
            spawned = [child for child in multiprocessing.active_children() if isinstance(child, SpawnProcess)]
            if self.saves:
                _say(f"{number.name}: the run saves after this update and ends; a second signal ends it at once.")
            elif spawned:  # they train, and this process waits for them
                _pass_on(number, spawned)
            else:
                _end_at_once(number, "before its first update, and nothing is lost: the same command starts it again")
        elif now - self._since > AS_ONE:
            _end_at_once(number, "at once: the same command goes on from what was saved before")


def _do_nothing(*_: Any) -> None:
    """The handler of our signals; what they do is the watch's."""


def _pass_on(number: signal.Signals, spawned: list[SpawnProcess]) -> None:
    """To processes that torch started, which then say how the run ends: torch has nothing to add."""
    logging.getLogger("torch.multiprocessing.spawn").setLevel(logging.ERROR)
    for child in spawned:
        if child.pid:
            with suppress(ProcessLookupError):  # it has ended
                os.kill(child.pid, number)


def _end_at_once(number: signal.Signals, how: str) -> None:
    _say(f"{number.name} ended the run {how}.")
    os._exit(exit_code(number))


def _say(sentence: str) -> None:
    """Show a sentence, of the first process alone; Python's own streams might be in use by what is interrupted."""
    if not dist.is_initialized() or dist.get_rank() == 0:
        os.write(2, f"{sentence}\n".encode())


def exit_code(number: signal.Signals) -> int:
    """What a shell calls the end by a signal: 130 for SIGINT, 143 for SIGTERM, 138 for SIGUSR1."""
    return 128 + number


@contextmanager
def watched() -> Iterator[None]:
    """Inside, our signals no longer end this process by themselves."""
    global _watch
    if _watch is not None or threading.current_thread() is not threading.main_thread():
        yield
        return
    _watch = _Watch()
    try:
        yield
    finally:
        if _watch is not None:  # in a child that was forked inside it is None
            _watch.close()
            _watch = None


def saves_from_now_on() -> None:
    """There are updates from now on: a signal waits for the end of one."""
    if _watch is not None:
        _watch.saves = True


def received() -> signal.Signals | None:
    """The first of our signals that this process got, if any."""
    return None if _watch is None else _watch.received


def vote(number: signal.Signals | None, world_size: int) -> float:
    """A number that says which signal a process got, if any, and whose sum over all processes `elected` understands."""
    return 0.0 if number is None else float((world_size + 1) ** SIGNALS.index(number))


def elected(votes: float, world_size: int) -> signal.Signals | None:
    """The first of our signals that any process got, from the sum of their votes."""
    counts = [round(votes) // (world_size + 1) ** place % (world_size + 1) for place in range(len(SIGNALS))]
    return next((number for number, count in zip(SIGNALS, counts, strict=True) if count), None)


def watching(original: Callable[..., Any]) -> Callable[..., Any]:
    """fairseq's `call_main`, which watches the signals of a training from its start."""

    @functools.wraps(original)
    def call_main(cfg: Any, main: Callable[..., Any], **kwargs: Any) -> Any:
        with watched_if_training(main):
            try:
                return original(cfg, main, **kwargs)
            except ProcessExitedException as error:
                number = received()
                code = error.exit_code if number is None else exit_code(number)
                if code in map(exit_code, SIGNALS):
                    raise SystemExit(code) from None  # the process that it started has said it
                raise

    return call_main


def watched_if_training(main: Callable[..., Any]) -> AbstractContextManager[None]:
    """`watched` where `main` is that of fairseq's training command."""
    return watched() if is_training(main) else nullcontext()


def is_training(main: Callable[..., Any]) -> bool:
    """Whether this is the main function of fairseq's training command."""
    return "validate_and_save" in getattr(main, "__globals__", {})


def _leave_to_parent() -> None:
    """In a forked child, such as a worker that loads data: only the parent ends it, which needs it until it has saved.

    A terminal, `timeout`, torchrun and SLURM send their signals to all processes of a run, the workers included.
    """
    global _watch
    if _watch is not None:
        _watch = None
        signal.set_wakeup_fd(-1)
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        threading.Thread(target=_obey_parent, daemon=True).start()


def _obey_parent() -> None:
    while True:
        info = signal.sigwaitinfo(SIGNALS)
        if info.si_signo == signal.SIGTERM and info.si_pid == os.getppid():
            os._exit(0)


os.register_at_fork(after_in_child=_leave_to_parent)
