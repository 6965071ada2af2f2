"""The progress of a command with several steps: bars on a terminal, elsewhere a line now and then."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from fairseq_mtmoe.data.corpora.bitext import Item, Track

SECONDS_BETWEEN_LINES = 15.0


@contextmanager
def stopped_by_sigterm() -> Iterator[None]:
    """Within it a terminated run leaves through every `finally`, and so cleans up as an interrupted one does."""
    before = signal.signal(signal.SIGTERM, _stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _stop(signum: int, frame: FrameType | None) -> NoReturn:
    sys.exit(128 + signum)


@contextmanager
def shown_steps() -> Iterator[Track]:
    """A `Track` that shows on stderr how far each step is."""
    console = Console(stderr=True)
    if not console.is_terminal:
        with _Lines(console) as lines:
            yield lines.track
        return
    columns = (TextColumn("{task.description:<24}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:

        def track(items: Sequence[Item], label: str) -> Iterable[Item]:
            return progress.track(items, description=label)

        yield track


class _Lines:
    """One line when a step starts, one when it ends, and one every `SECONDS_BETWEEN_LINES` within it.

    A thread writes those within: a step may be one long call.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._write_now_and_then, daemon=True)
        self._step = ("", 0, 0, 0.0)  # label, items done, items in all, when it started

    def __enter__(self) -> _Lines:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()

    def track(self, items: Sequence[Item], label: str) -> Iterator[Item]:
        """Pass `items` through, as a step called `label`."""
        start = time.monotonic()
        for done, item in enumerate(items):
            self._step = (label, done, len(items), start)
            if done == 0:
                self._write()
            yield item
        self._step = (label, len(items), len(items), start)
        self._write()
        self._step = ("", 0, 0, 0.0)

    def _write_now_and_then(self) -> None:
        while not self._ended.wait(SECONDS_BETWEEN_LINES):
            self._write()

    def _write(self) -> None:
        label, done, count, start = self._step
        if label:
            line = f"{label}: {done:,} of {count:,}, {time.monotonic() - start:.0f} s"
            self._console.print(line, soft_wrap=True, highlight=False, markup=False)
