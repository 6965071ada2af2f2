"""Who does the blocks: this process, others of this machine, or a Dask cluster.

A block is done by a function of one value, its job, which writes a file: doing it twice changes nothing. So what a lost
process or machine had begun is done again by another.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.connection import wait
from typing import Any, Protocol, TypeVar

from fairseq_mtmoe.errors import UserError, first_line, must_be

Job = TypeVar("Job")
Result = TypeVar("Result")
JobOf = TypeVar("JobOf", contravariant=True)

AT_ONCE = 2
"""Jobs per worker that are handed out at a time: one that is done, and one that waits, so that no worker does."""

ATTEMPTS = 3
"""How often a block is begun whose process is lost."""

SECONDS_TO_CONNECT = 20.0


class Workers(Protocol):
    """Does jobs, several at a time."""

    def map_blocks(self, function: Callable[[Job], Result], jobs: Iterable[Job]) -> Iterator[Result]:
        """The results in the order of the jobs, which are asked for as they are needed."""
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
            UserError: a process was lost with the same block `ATTEMPTS` times.
        """
        waiting: deque[tuple[Job, Future[Result]]] = deque()
        jobs, attempts = iter(jobs), 1
        while True:
            for job in itertools.islice(jobs, self._count * AT_ONCE - len(waiting)):
                waiting.append((job, self._submit(function, job)))
            if not waiting:
                return
            try:
                result = waiting[0][1].result()
            except BrokenProcessPool:
                if attempts == ATTEMPTS:
                    raise UserError(
                        f"A worker process was stopped from outside {ATTEMPTS} times at the same block, for want of"
                        " memory most likely; run it again with fewer `--workers`, and it goes on from here."
                    ) from None
                attempts += 1
                self.close()
                self._pool = self._start()
                waiting = deque((job, self._submit(function, job)) for job, _ in waiting)
                continue
            waiting.popleft()
            attempts = 1
            yield result

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

    def map_blocks(self, function: Callable[[Job], Result], jobs: Iterable[Job]) -> Iterator[Result]:
        """See `Workers`. Dask itself does again what a lost worker had begun, or had done and not handed over.

        Raises:
            UserError: no worker is left, or one was lost with the same block several times.
        """
        from distributed import KilledWorker

        waiting: deque[Any] = deque()
        jobs = iter(jobs)
        while True:
            for job in itertools.islice(jobs, max(1, self._size() * AT_ONCE - len(waiting))):
                waiting.append(self._client.submit(function, job, pure=False))
            if not waiting:
                return
            try:
                result = waiting[0].result()
            except KilledWorker as error:
                raise UserError(f"The workers of `--scheduler` were lost, one after the other: {error}") from error
            waiting.popleft()
            yield result

    def _size(self) -> int:
        return sum(self._client.nthreads().values())


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
        must_be("--scheduler", f"the address of a Dask scheduler that answers ({first_line(error)})", address)
    try:
        yield Cluster(client)
    finally:
        client.close()
