"""Processes that translate or score batches; they divide the threads and share the models."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import active_children, get_context
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from fairseq_mtmoe.cli._shared import cores
from fairseq_mtmoe.errors import UserError, raise_invalid
from fairseq_mtmoe.io.isolated import begin_worker

if TYPE_CHECKING:
    from fairseq_mtmoe.evaluation.text_translator import TextTranslator
    from fairseq_mtmoe.evaluation.translator import Decoding

Row = TypeVar("Row")  # of a batch
Found = TypeVar("Found")  # a row's result

PORTIONS = 2  # smallest number per process, as a short text has few batches
LEAST = 16  # smallest number of rows in a portion, as fewer take longer per row


@dataclass(frozen=True)
class Models:
    """Models to load, with decoding settings."""

    checkpoints: tuple[str, ...]
    decoding: Decoding
    data: str | None
    n_best: int

    def load(self, workers: int = 1) -> TextTranslator:
        """Load the models, to be shared by this number of processes (UserError: too many)."""
        most = max(64, 4 * cores())
        if workers > most:
            raise_invalid("--workers", f"at most {most} on this machine of {cores()} cores", workers)
        if workers > 1:
            import torch

            torch.set_num_threads(1)
        from fairseq_mtmoe.evaluation.text_translator import TextTranslator

        return TextTranslator(self.checkpoints, self.decoding, self.data)


class Here(Generic[Row, Found]):
    """Runs `work`, a function from rows to their results, in this process."""

    def __init__(self, work: Callable[[Sequence[Row]], list[Found]]) -> None:
        self._work = work

    def done(self, batches: Mapping[int, Sequence[Row]]) -> Iterator[tuple[int, list[Found]]]:
        """Yield each batch's number and results when they are ready."""
        for number, rows in batches.items():
            yield number, self._work(rows)

    def close(self) -> None:
        """Do nothing: there are no other processes."""


class Processes(Generic[Row, Found]):
    """Runs `work` in `count` forked processes that share this process's models.

    Until then torch must have used a single thread, as threads do not survive a fork. Each process starts its own.
    """

    def __init__(self, work: Callable[[Sequence[Row]], list[Found]], count: int) -> None:
        threads, self._count = max(1, cores() // count), count
        self._executor = ProcessPoolExecutor(count, get_context("fork"), _begin, (work, threads))
        try:
            self._executor.submit(_nothing).result()  # all are forked before the progress bar's thread is started
        except (BrokenProcessPool, OSError) as error:
            self.close()
            raise _too_many() from error

    def done(self, batches: Mapping[int, Sequence[Row]]) -> Iterator[tuple[int, list[Found]]]:
        """Yield results as `Here` does.

        Raises:
            UserError: the work raised it, or a process died.
        """
        try:
            share = math.ceil(PORTIONS * self._count / max(1, len(batches)))
            parts = {number: _parts(rows, share) for number, rows in batches.items()}
            found: dict[int, dict[int, list[Found]]] = {number: {} for number in batches}
            places = {
                self._executor.submit(_done, part): (number, at)
                for number, of_batch in parts.items() for at, part in enumerate(of_batch)
            }  # fmt: skip
            for future in as_completed(places):
                number, at = places[future]
                found[number][at] = future.result()
                if len(found[number]) == len(parts[number]):
                    yield number, [row for at in sorted(found[number]) for row in found[number][at]]
        except BrokenProcessPool as error:
            raise _too_many() from error

    def close(self) -> None:
        """Terminate the processes, even while they work."""
        for process in active_children():
            process.terminate()
        self._executor.shutdown(cancel_futures=True)


def _too_many() -> UserError:
    return UserError(
        "`--workers` must be a number of processes that fit into memory, but one process died or could not start, most "
        "likely for want of memory."
    )


def workers_of(work: Callable[[Sequence[Row]], list[Found]], count: int) -> Here[Row, Found] | Processes[Row, Found]:
    """Return this process for a count of 1, else `count` other processes."""
    return Processes(work, count) if count > 1 else Here(work)


def _parts(rows: Sequence[Row], count: int) -> list[Sequence[Row]]:
    """Split a batch into at most `count` parts, in order, none of them small."""
    size = max(LEAST, math.ceil(len(rows) / count))
    return [rows[start : start + size] for start in range(0, len(rows), size)]


_work: Callable[[Sequence[Any]], list[Any]] | None = None  # set in each of several processes


def _begin(work: Callable[[Sequence[Any]], list[Any]], threads: int) -> None:
    """Prepare a new process: set its work, threads and signal handlers."""
    import torch

    global _work
    _work = work
    torch.set_num_threads(threads)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    begin_worker()


def _nothing() -> None:
    """Do nothing; submitted to make the executor fork its processes."""


def _done(rows: Sequence[Any]) -> list[Any]:
    assert _work is not None
    return _work(rows)
