"""Processes that translate or score batches: each has its share of the threads, and all have the same models."""

from __future__ import annotations

import math
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import active_children, connection, get_context, parent_process
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from fairseq_mtmoe.cli._shared import cores
from fairseq_mtmoe.errors import UserError

if TYPE_CHECKING:
    from fairseq_mtmoe.evaluation.text_translator import TextTranslator
    from fairseq_mtmoe.evaluation.translator import Decoding

Row = TypeVar("Row")  # of a batch
Found = TypeVar("Found")  # what is found of it

PORTIONS = 2  # for each process, at least, as a short text has few batches
LEAST = 16  # rows of a portion, as smaller ones take longer for each row


@dataclass(frozen=True)
class Models:
    """What a process loads, and how it translates."""

    checkpoints: tuple[str, ...]
    decoding: Decoding
    data: str | None
    n_best: int

    def load(self, workers: int = 1) -> TextTranslator:
        """Load the models, ready to be shared by so many processes."""
        if workers > 1:
            import torch

            torch.set_num_threads(1)
        from fairseq_mtmoe.evaluation.text_translator import TextTranslator

        return TextTranslator(self.checkpoints, self.decoding, self.data)


class Here(Generic[Row, Found]):
    """This process, which does the `work`: of some rows it returns what is found of each."""

    def __init__(self, work: Callable[[Sequence[Row]], list[Found]]) -> None:
        self._work = work

    def done(self, batches: Mapping[int, Sequence[Row]]) -> Iterator[tuple[int, list[Found]]]:
        """What is found of each batch, by its number, as it comes."""
        for number, rows in batches.items():
            yield number, self._work(rows)

    def close(self) -> None:
        """Nothing runs."""


class Processes(Generic[Row, Found]):
    """So many others, which share this one's models to do the same work.

    torch must have computed in one thread alone until then, as threads do not survive a fork. Each begins its own.
    """

    def __init__(self, work: Callable[[Sequence[Row]], list[Found]], count: int) -> None:
        threads, self._count = max(1, cores() // count), count
        self._executor = ProcessPoolExecutor(count, get_context("fork"), _begin, (work, threads))
        self._executor.submit(_nothing).result()  # they are all there before this process shows its progress

    def done(self, batches: Mapping[int, Sequence[Row]]) -> Iterator[tuple[int, list[Found]]]:
        """As `Here`.

        Raises:
            UserError: as in this process, or a process has died.
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
            raise UserError(
                "`--workers` must be so many processes as there is memory for, but one of them has died, for want of "
                "it most likely."
            ) from error

    def close(self) -> None:
        """End them, whatever they are doing."""
        for process in active_children():
            process.terminate()
        self._executor.shutdown(cancel_futures=True)


def workers_of(work: Callable[[Sequence[Row]], list[Found]], count: int) -> Here[Row, Found] | Processes[Row, Found]:
    """Return what does the work: this process, or so many others."""
    return Processes(work, count) if count > 1 else Here(work)


def _parts(rows: Sequence[Row], count: int) -> list[Sequence[Row]]:
    """Return at most so many parts of a batch, in order, none of which is small."""
    size = max(LEAST, math.ceil(len(rows) / count))
    return [rows[start : start + size] for start in range(0, len(rows), size)]


_work: Callable[[Sequence[Any]], list[Any]] | None = None  # of a process that is one of several


def _begin(work: Callable[[Sequence[Any]], list[Any]], threads: int) -> None:
    """Called in a new process."""
    import torch

    global _work
    _work = work
    torch.set_num_threads(threads)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process ends this one
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this process when the first one is killed, which it would otherwise wait for forever."""
    parent = parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)


def _nothing() -> None:
    """What a process does to be there."""


def _done(rows: Sequence[Any]) -> list[Any]:
    assert _work is not None
    return _work(rows)
