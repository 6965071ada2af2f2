"""Workers for a stage's jobs, and the display of progress.

A job is a call that says where something is, never the text itself.
"""

import multiprocessing
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from rich.console import Console

from fairseq_mtmoe.core.errors import UserError, first_line, raise_invalid
from fairseq_mtmoe.core.isolated import begin_worker

Result = TypeVar("Result")

MEGABYTE = 1e6
SECONDS_TO_CONNECT = 20.0
SECONDS_BETWEEN_LOOKS = 2.0
SECONDS_WITHOUT_WORKERS = 60.0  # for a cluster to start a worker after the last one was lost
SECONDS_BETWEEN_LINES = 15.0
CLUSTER_ENDED = (
    "The Dask `--scheduler` has ended or cannot be reached; start it and its workers,"
    " and run the command again to continue with this stage."
)


@dataclass
class Step:
    """The progress of a stage's jobs, noted now and then."""

    label: str
    total: float
    unit: str
    note: Callable[[str], None]
    done: float = 0.0
    start: float = field(default_factory=time.monotonic)
    last_shown: float = field(default_factory=time.monotonic)

    def advance(self, size: float) -> None:
        """Count a finished job by its size."""
        self.done += size
        if time.monotonic() - self.last_shown >= SECONDS_BETWEEN_LINES:
            self.show()

    def show(self) -> None:
        """Note such as `Encoding: 12,000 of 50,000 pairs, 6,123 pairs/s, 0:00:06 left`."""
        self.last_shown = time.monotonic()
        seconds = max(self.last_shown - self.start, 1e-6)
        speed = self.done / seconds
        text = f"{self.label}: {self.done:,.0f} of {self.total:,.0f} {self.unit}"
        text += f", {speed:,.0f} {self.unit}/s"
        if 0 < self.done < self.total:
            text += f", {timedelta(seconds=round((self.total - self.done) / speed))} left"
        self.note(text)


class Progress:
    """Shows steps on stderr: a spinner on a terminal, and a line now and then.

    log: a file that gets these lines, too, each with its time.
    """

    def __init__(self, log: Path | None = None) -> None:
        self.console = Console(stderr=True)
        self.log = log

    @contextmanager
    def step(self, label: str, total: float, unit: str) -> Iterator[Step]:
        """Yield a step, which shows its end."""
        step = Step(label, total, unit, self.note)
        with self.console.status(label):
            yield step
        step.show()

    @contextmanager
    def call(self, label: str) -> Iterator[None]:
        """Show one long call."""
        start = time.monotonic()
        with self.console.status(label):
            yield
        self.note(f"{label}: {time.monotonic() - start:.0f} s")

    def note(self, text: str) -> None:
        """Print a line, and add it to the log."""
        self.console.print(text, soft_wrap=True, highlight=False, markup=False)
        if self.log is not None:
            moment = datetime.now().isoformat(" ", "seconds")
            with open(self.log, "a", encoding="utf-8") as file:
                file.write(f"{moment} {text}\n")


@dataclass(frozen=True)
class Workers:
    """An executor of `concurrent.futures`; None runs jobs in this process."""

    executor: Executor | None = None
    check: Callable[[], None] = lambda: None  # raises a UserError if no worker is left to wait for

    def results(self, jobs: Sequence[Callable[[], Result]]) -> Iterator[tuple[int, Result]]:
        """Yield each job's number and result as jobs finish, in any order."""
        if self.executor is None:
            yield from enumerate(job() for job in jobs)
            return
        finished: SimpleQueue[Future[Result]] = SimpleQueue()
        numbers: dict[Future[Result], int] = {}
        waiting = list(range(len(jobs)))
        try:
            while waiting or numbers:
                for number in waiting:
                    future = self.executor.submit(jobs[number])
                    numbers[future] = number
                    future.add_done_callback(finished.put)
                waiting = []
                future = self._next(finished)
                number = numbers.pop(future)
                try:
                    yield number, future.result()
                except TypeError as error:
                    if not _was_lost(error):
                        raise
                    waiting = [number]
        except BrokenProcessPool as error:
            raise UserError(
                "A worker process was killed, most likely for lack of memory; run the command again"
                " with fewer `--workers` to continue with this stage."
            ) from error
        except CancelledError as error:
            raise UserError(CLUSTER_ENDED) from error
        except OSError as error:  # of a job, or of the connection to the scheduler
            if type(error).__module__.startswith("distributed"):
                raise UserError(CLUSTER_ENDED) from error
            raise

    def _next(self, finished: "SimpleQueue[Future[Result]]") -> Future[Result]:
        while True:
            try:
                return finished.get(timeout=SECONDS_BETWEEN_LOOKS)
            except Empty:
                self.check()


def _was_lost(error: TypeError) -> bool:
    """Return whether a result's worker was lost when Dask fetched it.

    Dask's executor then unpacks the result as an exception.
    """
    frames = traceback.extract_tb(error.__traceback__)
    return frames[-1].filename.endswith("cfexecutor.py")


@dataclass(frozen=True)
class Tools:
    """Tools of every stage: workers and the display of progress."""

    workers: Workers
    progress: Progress

    def run(
        self,
        label: str,
        jobs: Sequence[tuple[partial[Result], float]],
        unit: str = "pairs",
    ) -> list[Result]:
        """Return the results of jobs with sizes, in order; the largest begin first."""
        if not jobs:
            return []
        order = sorted(range(len(jobs)), key=lambda number: -jobs[number][1])
        results: dict[int, Result] = {}
        with self.progress.step(label, sum(size for _, size in jobs), unit) as step:
            for position, result in self.workers.results([jobs[number][0] for number in order]):
                results[order[position]] = result
                step.advance(jobs[order[position]][1])
        return [results[number] for number in range(len(jobs))]


@contextmanager
def local_workers(count: int) -> Iterator[Workers]:
    """Yield processes of this machine, which are killed at the end, or this one alone."""
    if count == 1:
        yield Workers()
        return
    executor = ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), begin_worker)
    try:
        yield Workers(executor)
    finally:
        processes = list((executor._processes or {}).values())
        executor.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.kill()


@contextmanager
def cluster(address: str) -> Iterator[Workers]:
    """Yield the workers of the Dask scheduler at an address such as `tcp://host:8786`.

    They see the same files under the same paths as this process does. Dask does again what a lost
    worker had begun.
    """
    try:
        import distributed
    except ImportError as error:
        raise UserError(
            "`--scheduler` needs Dask: run `pip install 'fairseq_mtmoe[cluster]'`."
        ) from error
    try:
        connect: Any = distributed.Client
        client = connect(address, timeout=SECONDS_TO_CONNECT, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        raise_invalid(
            "--scheduler",
            f"the address of a Dask scheduler that answers ({first_line(error)})",
            address,
        )
    with closing(client):
        try:
            yield Workers(client.get_executor(pure=False), partial(_check_cluster, client))
        except distributed.KilledWorker as error:
            raise UserError(f"All workers of `--scheduler` were lost: {error}") from error


def _check_cluster(client: Any) -> None:
    """Wait for a worker if the cluster has none."""
    try:
        client.wait_for_workers(1, timeout=SECONDS_WITHOUT_WORKERS)
    except TimeoutError as error:
        raise UserError(
            f"The Dask `--scheduler` has had no worker for {SECONDS_WITHOUT_WORKERS:.0f}"
            " seconds; start workers (`dask worker ADDRESS --nthreads 1`), and run the command"
            " again to continue with this stage."
        ) from error
    except (
        CancelledError,
        OSError,
        ValueError,
        RuntimeError,
    ) as error:  # whichever way its connection breaks
        raise UserError(CLUSTER_ENDED) from error
