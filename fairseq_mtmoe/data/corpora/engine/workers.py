"""Workers for a stage's jobs (this process, others, a Dask cluster), and the display of progress.

A job is a call that says where something is, never the text itself; another may do it again.
"""

import itertools
import multiprocessing
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent import futures
from concurrent.futures import CancelledError, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, TextIO, TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from fairseq_mtmoe.data.corpora.engine.store import WorkFolder
from fairseq_mtmoe.errors import UserError, first_line, raise_invalid
from fairseq_mtmoe.io.files import open_in_place
from fairseq_mtmoe.io.isolated import begin_worker

Result = TypeVar("Result")

AT_ONCE = 2  # jobs per worker that are handed out at a time: one that is done, and one that waits
ATTEMPTS = 3  # how often work is begun whose process is lost
SECONDS_TO_CONNECT = 20.0
SECONDS_BETWEEN_LOOKS = 2.0
SECONDS_WITHOUT_WORKERS = 60.0  # for a cluster to start a worker after the last one was lost
SECONDS_BETWEEN_LINES = 15.0
_ENDED = (
    "The Dask scheduler of `--scheduler` has ended or cannot be reached; start it and its workers, and run the"
    " command again to continue from here."
)


@dataclass
class Step:
    """A stage's progress, in pairs or another `unit`."""

    label: str
    total: int | None
    unit: str
    show: Callable[[], None]
    done: int = 0
    skipped: int = 0  # of `done`, by an earlier run
    share: float | None = None  # finished share of all, if known
    start: float = field(default_factory=time.monotonic)

    def advance(self, count: int, share: float | None = None, skipped: bool = False) -> None:
        """Count finished units, by an earlier run if `skipped`; `share` is of the whole if no total is known."""
        self.done += count
        self.skipped += count if skipped else 0
        self.share = self.done / self.total if self.total else share
        self.show()

    def __str__(self) -> str:
        """Return `Encoding: 1,200,000 of 5,000,000 pairs, 61,234 pairs/s, 0:01:02 left`."""
        seconds = time.monotonic() - self.start
        if not self.done:
            return f"{self.label}: {seconds:.0f} s"
        of = f" of {self.total:,}" if self.total else ""
        speed = (self.done - self.skipped) / max(seconds, 1e-6)
        text = f"{self.label}: {self.done:,}{of} {self.unit}, {speed:,.0f} {self.unit}/s"
        if not self.share or not speed:
            return text
        left = max(0.0, self.done / self.share - self.done) / speed
        return f"{text}, {timedelta(seconds=round(left))} left"


class Shown:
    """Shows steps on stderr (a bar on a terminal, elsewhere a line now and then), and adds lines to a log."""

    def __init__(self, log: TextIO) -> None:
        self._log = log
        self._last, self._writing = 0.0, threading.Lock()
        console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        self.bars = Progress(*columns, console=console, disable=not console.is_terminal)

    @contextmanager
    def step(self, label: str, total: int | None = None, unit: str = "pairs") -> Iterator[Step]:
        """Yield a stage's progress, shown when it advances, at intervals (for long calls), and at its end."""
        bar = self.bars.add_task(label, total=1.0)

        def show(has_ended: bool = False) -> None:
            self.bars.update(bar, description=str(step), completed=1.0 if has_ended else step.share or 0.0)
            with self._writing:
                now = time.monotonic()
                if has_ended or now - self._last >= SECONDS_BETWEEN_LINES:
                    self._last = now
                    self.note(str(step))
                    if self.bars.disable:
                        self.bars.console.print(str(step), soft_wrap=True, highlight=False, markup=False)

        def show_now_and_then() -> None:
            while not ended.wait(SECONDS_BETWEEN_LINES):
                show()

        step, ended = Step(label, total, unit, show), threading.Event()
        self.note(label)
        thread = threading.Thread(target=show_now_and_then, daemon=True)
        thread.start()
        try:
            yield step
        finally:
            ended.set()
            thread.join()
        step.share = None
        show(has_ended=True)

    def note(self, text: str) -> None:
        """Add a line to the log."""
        self._log.write(f"{datetime.now().isoformat(' ', 'seconds')} {text}\n")
        self._log.flush()


@contextmanager
def shown(log: Path) -> Iterator[Shown]:
    """Show progress on stderr and, after what earlier runs wrote, in a file."""
    with open_in_place(log, "a", encoding="utf-8") as file:
        progress = Shown(file)
        with progress.bars:
            yield progress


class Workers:
    """Runs jobs one after the other in this process; subclasses run several at a time in others."""

    def map_blocks(self, jobs: Iterable[partial[Result]]) -> Iterator[Result]:
        """Yield results as jobs finish, in any order; jobs are taken from the iterator as needed."""
        return (job() for job in jobs)


@dataclass(frozen=True)
class Tools:
    """Tools of every stage: the work folder, workers and the display of progress."""

    work: WorkFolder
    workers: Workers
    shown: Shown

    def do(self, label: str, jobs: Sequence[partial[int]], total: int = 0, unit: str = "pairs") -> None:
        """Run the jobs, if any, in a step with this label; each job returns its number of finished units."""
        if jobs:
            with self.shown.step(label, total, unit) as step:
                for count in self.workers.map_blocks(jobs):
                    step.advance(count)


class _Pool(Workers, ABC):
    """Workers behind an executor of `concurrent.futures`."""

    _executor: futures.Executor

    def map_blocks(self, jobs: Iterable[partial[Result]]) -> Iterator[Result]:
        """Yield results as `Workers` does (UserError: workers were lost and none can replace them)."""
        running: dict[Future[Result], partial[Result]] = {}
        jobs, attempts = iter(jobs), 1
        while True:
            for job in itertools.islice(jobs, max(0, self._room() - len(running))):
                running[self._submit(job)] = job
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
                running = {self._submit(job): job for job in running.values()}

    def _submit(self, job: partial[Result]) -> Future[Result]:
        try:
            return self._executor.submit(job)
        except BrokenProcessPool as error:  # since the last result; who waits for this one hears of it
            broken: Future[Result] = Future()
            broken.set_exception(error)
            return broken

    @abstractmethod
    def _room(self) -> int: ...  # jobs that are handed out at a time

    @abstractmethod
    def _is_lost(self, future: Future[Any]) -> bool: ...

    @abstractmethod
    def _begin_again(self, lost: Future[Any], attempts: int) -> None: ...


class Processes(_Pool):
    """Processes on this machine, started once."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._executor: ProcessPoolExecutor = ProcessPoolExecutor(self._count, context, begin_worker)

    def _room(self) -> int:
        return self._count * AT_ONCE

    def _is_lost(self, future: Future[Any]) -> bool:
        return isinstance(future.exception(), BrokenProcessPool)

    def _begin_again(self, lost: Future[Any], attempts: int) -> None:
        if attempts == ATTEMPTS:
            raise UserError(
                f"A worker process was killed {ATTEMPTS} times at the same work, most likely for lack of memory;"
                " run the command again with fewer `--workers` to continue from here."
            )
        self.close()
        self._start()

    def close(self) -> None:
        """End the processes without waiting for their jobs."""
        processes = list((self._executor._processes or {}).values())
        self._executor.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.kill()
        for process in processes:
            process.join()


class Cluster(_Pool):
    """The workers of a Dask cluster, which see the same files under the same paths as this process does. Dask itself
    does again what a lost worker had begun, or had done and not handed over."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._executor = client.get_executor(pure=False)
        self._seen = 0.0  # when there was a worker last

    def map_blocks(self, jobs: Iterable[partial[Result]]) -> Iterator[Result]:
        self._seen = time.monotonic()
        return super().map_blocks(jobs)

    def _room(self) -> int:
        try:
            size = int(sum(self._client.nthreads().values()))
        except (CancelledError, OSError, ValueError, RuntimeError) as error:  # whichever way its connection breaks
            raise UserError(_ENDED) from error
        if size:
            self._seen = time.monotonic()
        elif time.monotonic() - self._seen > SECONDS_WITHOUT_WORKERS:
            raise UserError(
                f"The scheduler of `--scheduler` has had no worker for {SECONDS_WITHOUT_WORKERS:.0f} seconds; start"
                " some (`dask worker ADDRESS --nthreads 1`), and run the command again to continue from here."
            )
        return max(1, size * AT_ONCE)

    def _is_lost(self, future: Future[Any]) -> bool:
        from distributed import KilledWorker

        return future.cancelled() or isinstance(future.exception(), KilledWorker)

    def _begin_again(self, lost: Future[Any], attempts: int) -> None:
        if lost.cancelled():
            raise UserError(_ENDED)
        raise UserError(f"The workers of `--scheduler` were lost, one after the other: {lost.exception()}")


@contextmanager
def local_workers(count: int) -> Iterator[Workers]:
    """Yield a number of processes of this machine, or this one alone."""
    if count == 1:
        yield Workers()
        return
    with closing(Processes(count)) as processes:
        yield processes


@contextmanager
def cluster(address: str) -> Iterator[Workers]:
    """Yield the workers of the Dask scheduler at an address such as `tcp://host:8786`."""
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
