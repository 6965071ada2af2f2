"""Who does a stage's jobs (this process, others of this machine, or a Dask cluster), and what is shown of them.

A job is one value that says where something is, never the text itself; a function does it and writes files, and doing
it twice changes nothing. So what a lost process or machine had begun is done again by another.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent import futures
from concurrent.futures import CancelledError, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Protocol, TextIO, TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from fairseq_mtmoe.data.corpora.engine.store import WorkFolder
from fairseq_mtmoe.errors import UserError, first_line, raise_invalid

Job = TypeVar("Job")
Result = TypeVar("Result")

AT_ONCE = 2
"""Jobs per worker that are handed out at a time: one that is done, and one that waits, so that no worker does."""

ATTEMPTS = 3
"""How often work is begun whose process is lost."""

SECONDS_TO_CONNECT = 20.0
SECONDS_BETWEEN_LOOKS = 2.0
SECONDS_WITHOUT_WORKERS = 60.0
"""Time for a cluster to start a worker in the place of the last one."""

SECONDS_BETWEEN_LINES = 15.0


# ---- what is shown ----


class Step:
    """One stage's progress, in pairs or whatever `unit` says."""

    def __init__(self, label: str, total: int | None, unit: str, shown: Shown, bar: TaskID) -> None:
        self._label, self._total, self._unit = label, total, unit
        self._shown, self.bar = shown, bar
        self._done = 0  # of which `_skipped` were done by an earlier run
        self._skipped = 0
        self.share: float | None = None  # that is done, where it is known
        self._start = time.monotonic()

    def advance(self, count: int, share: float | None = None, skipped: bool = False) -> None:
        """Count what is done.

        Args:
            share: of all there is, where their number is not known before.
            skipped: whether an earlier run did them.
        """
        self._done += count
        self._skipped += count if skipped else 0
        self.share = self._done / self._total if self._total else share
        self._shown.show(self)

    def __str__(self) -> str:
        """`Encoding: 1,200,000 of 5,000,000 pairs, 61,234 pairs/s, 0:01:02 left`"""
        seconds = time.monotonic() - self._start
        if not self._done:
            return f"{self._label}: {seconds:.0f} s"
        of = f" of {self._total:,}" if self._total else ""
        speed = (self._done - self._skipped) / max(seconds, 1e-6)
        text = f"{self._label}: {self._done:,}{of} {self._unit}, {speed:,.0f} {self._unit}/s"
        if not self.share or not speed:
            return text
        left = max(0.0, self._done / self.share - self._done) / speed
        return f"{text}, {timedelta(seconds=round(left))} left"


class Shown:
    """Shows steps on stderr (a bar on a terminal, elsewhere a line now and then), and adds lines to a log."""

    def __init__(self, log: TextIO) -> None:
        self._log = log
        self._console = Console(stderr=True)
        self._last, self._writing = 0.0, threading.Lock()
        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        self.bars = Progress(*columns, console=self._console, disable=not self._console.is_terminal)

    @contextmanager
    def step(self, label: str, total: int | None = None, unit: str = "pairs") -> Iterator[Step]:
        """A stage: shown when it is advanced, now and then (it may be one long call), and at its end."""
        step = Step(label, total, unit, self, self.bars.add_task(label, total=1.0))
        ended = threading.Event()

        def show_now_and_then() -> None:
            while not ended.wait(SECONDS_BETWEEN_LINES):
                self.show(step)

        self.note(label)
        thread = threading.Thread(target=show_now_and_then, daemon=True)
        thread.start()
        try:
            yield step
        finally:
            ended.set()
            thread.join()
        step.share = None
        self.show(step, has_ended=True)

    def show(self, step: Step, has_ended: bool = False) -> None:
        """Show how far a step is."""
        self.bars.update(step.bar, description=str(step), completed=1.0 if has_ended else step.share or 0.0)
        with self._writing:
            now = time.monotonic()
            if has_ended or now - self._last >= SECONDS_BETWEEN_LINES:
                self._last = now
                self.note(str(step))
                if self.bars.disable:
                    self._console.print(str(step), soft_wrap=True, highlight=False, markup=False)

    def note(self, text: str) -> None:
        """Write a line to the log alone."""
        self._log.write(f"{datetime.now().isoformat(' ', 'seconds')} {text}\n")
        self._log.flush()


@contextmanager
def shown(log: Path) -> Iterator[Shown]:
    """Progress on stderr and, after what earlier runs wrote, in a file."""
    with open(log, "a", encoding="utf-8") as file:
        progress = Shown(file)
        with progress.bars:
            yield progress


# ---- who does it ----


class Workers(Protocol):
    """Does jobs, several at a time."""

    def map_blocks(self, function: Callable[[Job], Result], jobs: Iterable[Job]) -> Iterator[Result]:
        """The results as they come, in any order: one slow job keeps nobody waiting. Jobs are asked for as needed."""
        ...


@dataclass(frozen=True)
class Tools:
    """What every stage has: where its results stay, who does its jobs, and what shows how far it is."""

    work: WorkFolder
    workers: Workers
    shown: Shown

    def do(
        self,
        label: str,
        function: Callable[[Job], int],
        jobs: Sequence[Job],
        total: int | None = None,
        unit: str = "pairs",
    ) -> None:
        """Do these jobs, if there are any, in a step of this label; the function returns how much is done."""
        if jobs:
            with self.shown.step(label, total, unit) as step:
                for count in self.workers.map_blocks(function, jobs):
                    step.advance(count)


class ThisProcess:
    """Does one job after the other, here."""

    def map_blocks(self, function: Callable[[Job], Result], jobs: Iterable[Job]) -> Iterator[Result]:
        """See `Workers`."""
        return map(function, jobs)


class _Pool:
    """Workers behind an executor of `concurrent.futures`."""

    _executor: futures.Executor

    def map_blocks(self, function: Callable[[Job], Result], jobs: Iterable[Job]) -> Iterator[Result]:
        """See `Workers`.

        Raises:
            UserError: workers were lost, and no other can do their jobs.
        """
        running: dict[Future[Result], Job] = {}
        jobs, attempts = iter(jobs), 1
        while True:
            for job in itertools.islice(jobs, max(0, self._room() - len(running))):
                running[self._submit(function, job)] = job
            if not running:
                return
            done, _ = futures.wait(running, SECONDS_BETWEEN_LOOKS, futures.FIRST_COMPLETED)
            lost = {future for future in done if self._is_lost(future)}
            for future in done - lost:
                del running[future]
                attempts = 1
                yield future.result()
            if lost:
                self._begin_again(next(iter(lost)), attempts)
                attempts += 1
                running = {self._submit(function, job): job for job in running.values()}

    def _room(self) -> int:
        """How many jobs are handed out at a time."""
        raise AssertionError

    def _submit(self, function: Callable[[Job], Result], job: Job) -> Future[Result]:
        return self._executor.submit(function, job)

    def _is_lost(self, future: Future[Any]) -> bool:
        raise AssertionError

    def _begin_again(self, lost: Future[Any], attempts: int) -> None:
        raise AssertionError


class Processes(_Pool):
    """A number of processes of this machine, started once."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._executor: ProcessPoolExecutor = self._start()

    def _start(self) -> ProcessPoolExecutor:
        context = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(self._count, mp_context=context, initializer=_begin_worker)

    def _room(self) -> int:
        return self._count * AT_ONCE

    def _submit(self, function: Callable[[Job], Result], job: Job) -> Future[Result]:
        try:
            return super()._submit(function, job)
        except BrokenProcessPool as error:  # since the last result; who waits for this one hears of it
            broken: Future[Result] = Future()
            broken.set_exception(error)
            return broken

    def _is_lost(self, future: Future[Any]) -> bool:
        return isinstance(future.exception(), BrokenProcessPool)

    def _begin_again(self, lost: Future[Any], attempts: int) -> None:
        if attempts == ATTEMPTS:
            raise UserError(
                f"A worker process was stopped from outside {ATTEMPTS} times at the same work, for want of memory"
                " most likely; run it again with fewer `--workers`, and it goes on from here."
            )
        self.close()
        self._executor = self._start()

    def close(self) -> None:
        """End the processes; what they do is not waited for."""
        processes = list((self._executor._processes or {}).values())
        self._executor.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.kill()
        for process in processes:
            process.join()


def _begin_worker() -> None:
    """An interrupt is for the process that hands out jobs, and no worker outlives that one, however it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)


class Cluster(_Pool):
    """The workers of a Dask cluster, which see the same files under the same paths as this process does. Dask itself
    does again what a lost worker had begun, or had done and not handed over."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._executor = client.get_executor(pure=False)
        self._seen = 0.0  # when there was a worker last

    def map_blocks(self, function: Callable[[Job], Result], jobs: Iterable[Job]) -> Iterator[Result]:
        """See `Workers`."""
        self._seen = time.monotonic()
        return super().map_blocks(function, jobs)

    def _room(self) -> int:
        try:
            size = int(sum(self._client.nthreads().values()))
        except (CancelledError, OSError, ValueError, RuntimeError) as error:  # whichever way its connection breaks
            raise _scheduler_ended() from error
        if size:
            self._seen = time.monotonic()
        elif time.monotonic() - self._seen > SECONDS_WITHOUT_WORKERS:
            raise UserError(
                f"The scheduler of `--scheduler` has had no worker for {SECONDS_WITHOUT_WORKERS:.0f} seconds; start"
                " some (`dask worker ADDRESS --nthreads 1`), and run this again: it goes on from here."
            )
        return max(1, size * AT_ONCE)

    def _is_lost(self, future: Future[Any]) -> bool:
        from distributed import KilledWorker

        return future.cancelled() or isinstance(future.exception(), KilledWorker)

    def _begin_again(self, lost: Future[Any], attempts: int) -> None:
        if lost.cancelled():
            raise _scheduler_ended()
        raise UserError(f"The workers of `--scheduler` were lost, one after the other: {lost.exception()}")


def _scheduler_ended() -> UserError:
    return UserError(
        "The Dask scheduler of `--scheduler` has ended or cannot be reached any more; start it and its workers, and run"
        " this again: it goes on from here."
    )


@contextmanager
def local_workers(count: int) -> Iterator[Workers]:
    """A number of processes of this machine, or this one alone."""
    if count == 1:
        yield ThisProcess()
        return
    with closing(Processes(count)) as processes:
        yield processes


@contextmanager
def cluster(address: str) -> Iterator[Workers]:
    """The workers of the Dask scheduler at an address such as `tcp://host:8786`.

    Raises:
        UserError: Dask is not installed, or there is no scheduler.
    """
    try:
        import distributed
    except ImportError as error:
        raise UserError("`--scheduler` needs Dask: pip install 'fairseq_mtmoe[cluster]'.") from error
    try:
        connect: Any = distributed.Client
        client = connect(address, timeout=SECONDS_TO_CONNECT, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        raise_invalid("--scheduler", f"the address of a Dask scheduler that answers ({first_line(error)})", address)
    with closing(client):
        yield Cluster(client)
