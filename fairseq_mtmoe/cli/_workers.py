"""Processes that decode or score batches.

They divide the threads and share the models.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from multiprocessing import active_children, get_context
from typing import TYPE_CHECKING, Any

from fairseq_mtmoe.cli._shared import cores
from fairseq_mtmoe.core.errors import UserError, raise_invalid
from fairseq_mtmoe.core.isolated import begin_worker

if TYPE_CHECKING:
    from fairseq_mtmoe.translation.decode.decode import Decoding
    from fairseq_mtmoe.translation.decode.text_translator import TextTranslator

Work = Callable[[Any], Any]  # of a batch
DoAll = Callable[[Sequence[Any]], Iterator[Any]]  # yields the results of batches in their order


def load(model: str, decoding: Decoding, workers: int = 1) -> TextTranslator:
    """Load MODEL, a file or an ensemble, to be shared by this number of processes."""
    if workers > 1:
        import torch

        if decoding.use_cuda:
            raise_invalid("--workers", "1 on a GPU (`--cpu` computes on the CPU)", workers)
        torch.set_num_threads(1)  # threads do not survive a fork
    from fairseq_mtmoe.translation.decode.text_translator import TextTranslator

    return TextTranslator(model.split(":"), decoding)


@contextmanager
def done_by(workers: int, work: Work) -> Iterator[DoAll]:
    """Yield a function that does the work of batches, here or in forked processes.

    Raises:
        UserError: the work raised it, or a process died.
    """
    if workers == 1:
        yield partial(map, work)
        return
    threads = max(1, cores() // workers)
    executor = ProcessPoolExecutor(workers, get_context("fork"), _begin, (work, threads))
    too_many = UserError(
        "`--workers` is too high: a process died or could not start, most likely because the "
        "memory is full."
    )
    try:
        try:
            # All are forked here, before the progress bar's thread is started.
            executor.submit(int).result()
        except OSError as error:
            raise too_many from error
        yield partial(executor.map, _done)
    except BrokenProcessPool as error:
        raise too_many from error
    finally:
        for process in active_children():
            process.terminate()
            process.join()
        executor.shutdown(cancel_futures=True)


_work: Work | None = None  # set in each of several processes


def _begin(work: Work, threads: int) -> None:
    """Prepare a new process: set its work, threads and signal handlers."""
    import torch

    global _work
    _work = work
    torch.set_num_threads(threads)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    begin_worker()


def _done(batch: Any) -> Any:
    assert _work is not None
    return _work(batch)
