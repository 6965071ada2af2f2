"""Who does the blocks: this process, others of this machine, or a Dask cluster.

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
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures
from concurrent.futures import CancelledError, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.connection import wait
from queue import Empty, SimpleQueue
from typing import Any, Protocol, TypeVar

from fairseq_mtmoe.errors import UserError, first_line, raise_invalid

Job = TypeVar("Job")
Result = TypeVar("Result")
JobOf = TypeVar("JobOf", contravariant=True)

AT_ONCE = 2
"""Jobs per worker that are handed out at a time: one that is done, and one that waits, so that no worker does."""

ATTEMPTS = 3
"""How often work is begun whose process is lost."""

SECONDS_TO_CONNECT = 20.0
SECONDS_BETWEEN_LOOKS = 2.0
SECONDS_WITHOUT_WORKERS = 60.0
"""Time for a cluster to start a worker in the place of the last one."""


class Workers(Protocol):
    """Does jobs, several at a time."""

    def map_blocks(self, function: Callable[[Job], Result], jobs: Iterable[Job]) -> Iterator[Result]:
        """The results as they come, in any order: one slow job keeps nobody waiting. Jobs are asked for as needed."""
        ...


class ThisProcess:
    """Does one job after the other, here."""

    def map_blocks(self, function: Callable[[Job], Result], jobs: Iterable[Job]) -> Iterator[Result]:
        """See `Workers`."""
        return map(function, jobs)


class Processes:
    """Processes of this machine, started once.

    Args:
        count: how many.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._pool = self._start()

    def _start(self) -> ProcessPoolExecutor:
        context = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(self._count, mp_context=context, initializer=_begin_worker)

    def map_blocks(self, function: Callable[[Job], Result], jobs: Iterable[Job]) -> Iterator[Result]:
        """See `Workers`.

        Raises:
            UserError: processes were lost `ATTEMPTS` times with no job done in between.
        """
        running: dict[Future[Result], Job] = {}
        jobs, attempts = iter(jobs), 1
        while True:
            for job in itertools.islice(jobs, self._count * AT_ONCE - len(running)):
                running[self._submit(function, job)] = job
            if not running:
                return
            done, _ = futures.wait(running, return_when=futures.FIRST_COMPLETED)
            ended = [future for future in done if not isinstance(future.exception(), BrokenProcessPool)]
            for future in ended:
                del running[future]
                attempts = 1
                yield future.result()
            if len(ended) == len(done):
                continue
            if attempts == ATTEMPTS:
                raise UserError(
                    f"A worker process was stopped from outside {ATTEMPTS} times at the same work, for want of memory"
                    " most likely; run it again with fewer `--workers`, and it goes on from here."
                )
            attempts += 1
            self.close()
            self._pool = self._start()
            running = {self._submit(function, job): job for job in running.values()}

    def _submit(self, function: Callable[[Job], Result], job: Job) -> Future[Result]:
        try:
            return self._pool.submit(function, job)
        except BrokenProcessPool as error:  # since the last result; who waits for this one hears of it
            broken: Future[Result] = Future()
            broken.set_exception(error)
            return broken

    def close(self) -> None:
        """End the processes; what they do is not waited for."""
        processes = list((self._pool._processes or {}).values())
        self._pool.shutdown(wait=False, cancel_futures=True)
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


class Cluster:
    """The workers of a Dask cluster, which see the same files under the same paths as this process does.

    Args:
        client: of Dask, connected.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._seen = 0.0  # when there was a worker last

    def map_blocks(self, function: Callable[[Job], Result], jobs: Iterable[Job]) -> Iterator[Result]:
        """See `Workers`. Dask itself does again what a lost worker had begun, or had done and not handed over.

        Raises:
            UserError: no worker is left, several were lost with the same job, or the scheduler ended.
        """
        running: set[Any] = set()
        ended: SimpleQueue[Any] = SimpleQueue()
        jobs = iter(jobs)
        self._seen = time.monotonic()
        while True:
            room = max(1, self._size() * AT_ONCE) - len(running)
            for job in itertools.islice(jobs, max(0, room)):  # none, after a worker was lost
                future = self._client.submit(function, job, pure=False)
                running.add(future)
                future.add_done_callback(ended.put)
            if not running:
                return
            try:
                future = ended.get(timeout=SECONDS_BETWEEN_LOOKS)
            except Empty:
                continue
            running.discard(future)
            self._seen = time.monotonic()
            yield self._result(future)

    def _result(self, future: Any) -> Any:
        from distributed import KilledWorker

        while True:
            try:
                return future.result(timeout=SECONDS_BETWEEN_LOOKS)
            except KilledWorker as error:
                raise UserError(f"The workers of `--scheduler` were lost, one after the other: {error}") from error
            except (CancelledError, OSError) as error:
                if future.status == "error":
                    raise  # the job's own
                if not isinstance(error, TimeoutError):
                    raise _scheduler_ended() from error
                self._size()  # a result was lost with its worker, and is made again if there is another

    def _size(self) -> int:
        """How many jobs the workers do at a time.

        Raises:
            UserError: there has been no worker for a while, or there is no scheduler.
        """
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
        return size


def _scheduler_ended() -> UserError:
    return UserError(
        "The Dask scheduler of `--scheduler` has ended or cannot be reached any more; start it and its workers, and run"
        " this again: it goes on from here."
    )


@contextmanager
def local_workers(count: int) -> Iterator[Workers]:
    """This machine's: so many processes, or this one alone."""
    if count == 1:
        yield ThisProcess()
        return
    processes = Processes(count)
    try:
        yield processes
    finally:
        processes.close()


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
    try:
        yield Cluster(client)
    finally:
        client.close()
